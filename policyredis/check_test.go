package policyredis_test

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policyredis"
	"github.com/weir-go/ratelimit/redislimit"
)

// TestACheckFindsWhatRedisWouldRefuse also checks rules impossible with a Tenant,
// or with several servers. Check calls no server, and New refuses the same rules.
func TestACheckFindsWhatRedisWouldRefuse(t *testing.T) {
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}, MaxRedirects: -1})
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1", "b": "127.0.0.1:2"}})
	t.Cleanup(func() { cluster.Close(); ring.Close() })
	const (
		counters = "rules: [{name: all, limit: fixed-window 5/d}]"
		global   = "rules: [{name: a, key: user, limit: fixed-window 9/s}, {name: b, limit: fixed-window 9/s}]"
		ofPlan   = "rules: [{name: a, key: user, limit: blocked, plans: {pro: fixed-window 9/s}}, {name: b, limit: fixed-window 9/s}]"
		leaky    = "rules: [{name: slow, limit: leaky-bucket 5/s queue 5}, {name: tenant, key: tenant, limit: fixed-window 5/s}]"
		plans    = "rules: [{name: a, key: tenant, limit: leaky-bucket 9/s queue 9}," +
			" {name: b, key: user, limit: fixed-window 9/s, plans: {pro: leaky-bucket 9/s queue 9}}]"
		nothing = "rules: [{name: a, key: user, limit: fixed-window 9/s}, {name: b, limit: blocked}, {name: c, limit: unlimited}]"
		others  = "rules: [{name: a, key: user, limit: blocked}, {name: b, key: user, limit: unlimited}," +
			" {name: c, key: user, limit: token-bucket 9/s burst 9, share: 1}, {name: d, limit: fixed-window 9/s}]"
		tooLarge  = "rules:\n- name: up\n  key: tenant\n  share: 1\n  limit: token-bucket 10/s burst 2000000000\n"
		uncounted = "redislimit: ratelimit: invalid limit: "
	)
	one, several, none := []redis.UniversalClient{nowhere(t)}, []redis.UniversalClient{ring, cluster}, policyredis.Options{}
	slot, tenant := policyredis.Options{Slot: func(string) string { return "one" }}, policyredis.Options{Tenant: "tenant"}
	for _, row := range []struct {
		clients []redis.UniversalClient
		opts    policyredis.Options
		rules   string
		want    string
	}{
		{one, none, "rules: [{name: a, limit: sliding-log 2000/h}]", ""},
		{one, none, "rules: [{name: a, limit: sliding-log 5000/h}]", "rules[0].limit: " + uncounted + "Rate.Units is 5000"},
		{one, none, "rules: [{name: a, limit: fixed-window 1/1ns}]", "rules[0].limit: " + uncounted},
		{one, none, "rules: [{name: a, limit: fixed-window 1/h, plans: {pro: fixed-window 1/1ns}}]", "rules[0].plans.pro: " + uncounted},
		{one, none, tooLarge, `policy: line 5: rule "up": rules[0].limit: ` + uncounted + "Burst is 2000000000, want at most 2^30"},
		{one, none, plans, ""},
		{one, tenant, plans, `rules[1].plans.pro: policyredis: rule "b" has a leaky bucket`},
		{one, none, global, ""},
		{[]redis.UniversalClient{nil}, none, global, "client is nil"},
		{one, policyredis.Options{MaxBatch: -1}, global, "Options.MaxBatch is -1"},
		{several, none, global, `rules: policyredis: rule "b" has one budget for all requests`},
		{several, none, ofPlan, `rules: policyredis: rule "b" has one budget for all requests`},
		{several, none, nothing, ""},
		{several, none, others, ""},
		{several, none, tenantRules, "Options.Tenant"},
		{several, policyredis.Options{Tenant: "tenant", Slot: slot.Slot}, tenantRules, "one of them"},
		{several, policyredis.Options{Tenant: "tenant", MaxBatch: -1}, tenantRules, "MaxBatch"},
		{several, tenant, leaky, "leaky"},
		{several, tenant, tenantRules, ""},
		{several, slot, tenantRules, ""},
		{several, none, counters, ""},
	} {
		for _, client := range row.clients {
			engine := policyredis.New(client, &row.opts)
			set, all := policy.Check([]byte(row.rules), engine)
			_, err := policy.New(parsed(row.rules), &policy.Options{Engine: engine})
			if row.want == "" {
				require.NotNil(t, set, "%v", all)
				assert.NoError(t, err)
				continue
			}
			require.Nil(t, set, row.want)
			assert.ErrorContains(t, all[0], row.want)
			assert.Error(t, err, row.want)
		}
	}
}

func TestNothingIsSentBeforeTheFirstDecision(t *testing.T) {
	p := over(nowhere(t), "rules: [{name: a, limit: fixed-window 1/h}]", policyredis.Options{}, policy.Options{})
	_, err := p.Take(t.Context(), policy.Attributes{}, 1)
	require.ErrorIs(t, err, ratelimit.ErrUnavailable)
	require.ErrorIs(t, p.Each(t.Context(), "a", func([]string, ratelimit.Decision) bool { return true }), ratelimit.ErrUnavailable)
	require.Error(t, p.Update(parsed("rules: [{name: a, limit: sliding-log 1000000/h}]")))
	assert.Equal(t, uint64(1), p.Stats().Generation)
	require.NoError(t, p.Update(parsed("rules: []")))
	assert.True(t, p.Allow(policy.Attributes{}, 1), "no rule, no server")
}

// A leased limit cannot become a leaky bucket.
func TestRulesWithoutTheTenantAreLeased(t *testing.T) {
	for name, row := range map[string]struct {
		opts   policyredis.Options
		key    []string
		leased bool
	}{
		"no tenant":              {policyredis.Options{}, nil, false},
		"batches, and no tenant": {policyredis.Options{MaxBatch: 9}, nil, false},
		"one budget for all":     {policyredis.Options{Tenant: "tenant"}, nil, true},
		"batches of their size":  {policyredis.Options{Tenant: "tenant", MaxBatch: 9}, []string{"user"}, true},
		"the tenant, and more":   {policyredis.Options{Tenant: "tenant"}, []string{"user", "tenant"}, false},
	} {
		l, err := policyredis.New(nowhere(t), &row.opts)(policy.Budget{Name: "a", Key: row.key, Limit: ratelimit.FixedWindow(ratelimit.PerHour(9))}, nil)
		require.NoError(t, err)
		err = l.(*redislimit.Limiter).SetLimit(ratelimit.LeakyBucket(ratelimit.PerHour(9), 9))
		assert.Equal(t, row.leased, err != nil, "%s: %v", name, err)
	}
}
