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

// TestACheckFindsWhatRedisWouldRefuse, also what a Tenant and several servers cannot have, and asks no server. New refuses the same.
func TestACheckFindsWhatRedisWouldRefuse(t *testing.T) {
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}, MaxRedirects: -1})
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1", "b": "127.0.0.1:2"}})
	t.Cleanup(func() { cluster.Close(); ring.Close() })
	const (
		counters  = "rules: [{name: all, limit: fixed-window 5/d}]"
		global    = "rules: [{name: a, key: user, limit: fixed-window 9/s}, {name: b, limit: fixed-window 9/s}]"
		leaky     = "rules: [{name: slow, limit: leaky-bucket 5/s queue 5}, {name: tenant, key: tenant, limit: fixed-window 5/s}]"
		plans     = "rules: [{name: a, key: tenant, limit: leaky-bucket 9/s queue 9}, {name: b, key: user, limit: fixed-window 9/s, plans: {pro: leaky-bucket 9/s queue 9}}]"
		tooLarge  = "rules:\n- name: up\n  key: tenant\n  share: 1\n  limit: token-bucket 10/s burst 2000000000\n"
		uncounted = "redislimit: ratelimit: invalid limit: "
	)
	slot, tenant := policyredis.Options{Slot: func(string) string { return "one" }}, policyredis.Options{Tenant: "tenant"}
	type row struct {
		rules  string
		client redis.UniversalClient
		opts   policyredis.Options
		want   string
	}
	rows := []row{
		{"rules: [{name: a, limit: sliding-log 2000/h}]", nowhere(t), policyredis.Options{}, ""},
		{"rules: [{name: a, limit: sliding-log 5000/h}]", nowhere(t), policyredis.Options{}, "rules[0].limit: " + uncounted + "Rate.Units is 5000"},
		{"rules: [{name: a, limit: fixed-window 1/1ns}]", nowhere(t), policyredis.Options{}, "rules[0].limit: " + uncounted},
		{"rules: [{name: a, limit: fixed-window 1/h, plans: {pro: fixed-window 1/1ns}}]", nowhere(t), policyredis.Options{}, "rules[0].plans.pro: " + uncounted},
		{tooLarge, nowhere(t), policyredis.Options{}, `policy: line 5: rule "up": rules[0].limit: ` + uncounted + "Burst is 2000000000, want at most 2^30"},
		{plans, nowhere(t), policyredis.Options{}, ""},
		{plans, nowhere(t), tenant, `rules[1].plans.pro: policyredis: rule "b" has a leaky bucket`},
		{global, nowhere(t), policyredis.Options{}, ""},
		{global, nil, policyredis.Options{}, "client is nil"},
		{global, nowhere(t), policyredis.Options{MaxBatch: -1}, "Options.MaxBatch is -1"},
	}
	for _, several := range []redis.UniversalClient{ring, cluster} {
		rows = append(rows, row{global, several, policyredis.Options{}, `rules: policyredis: rule "b" has one budget for all requests`},
			row{tenantRules, several, policyredis.Options{}, "Options.Tenant"},
			row{tenantRules, several, policyredis.Options{Tenant: "tenant", Slot: slot.Slot}, "one of them"},
			row{tenantRules, several, policyredis.Options{Tenant: "tenant", MaxBatch: -1}, "MaxBatch"},
			row{leaky, several, tenant, "leaky"},
			row{tenantRules, several, tenant, ""},
			row{tenantRules, several, slot, ""},
			row{counters, several, policyredis.Options{}, ""})
	}
	for _, row := range rows {
		engine := policyredis.New(row.client, &row.opts)
		set, all := policy.Check([]byte(row.rules), engine)
		_, err := policy.New(parsed(t, row.rules), &policy.Options{Engine: engine})
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

func TestNothingIsSentBeforeTheFirstDecision(t *testing.T) {
	p := over(t, nowhere(t), "rules: [{name: a, limit: fixed-window 1/h}]", policyredis.Options{}, policy.Options{})
	_, err := p.Take(t.Context(), policy.Attributes{}, 1)
	require.ErrorIs(t, err, ratelimit.ErrUnavailable)
	require.Error(t, p.Update(parsed(t, "rules: [{name: a, limit: sliding-log 1000000/h}]")))
	assert.Equal(t, uint64(1), p.Stats().Generation)
	require.NoError(t, p.Update(parsed(t, "rules: []")))
	assert.True(t, p.Allow(policy.Attributes{}, 1), "no rule, no server")
}

// A limit that is leased refuses to become a leaky bucket.
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
