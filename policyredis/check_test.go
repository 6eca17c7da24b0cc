package policyredis_test

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policyredis"
)

// nowhere returns a client of a server that does not exist.
func nowhere(t *testing.T) *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	t.Cleanup(func() { client.Close() })
	return client
}

// TestACheckFindsWhatRedisWouldRefuse, also what a Tenant and a cluster cannot have, and asks no server.
func TestACheckFindsWhatRedisWouldRefuse(t *testing.T) {
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}, MaxRedirects: -1})
	t.Cleanup(func() { cluster.Close() })
	const tenants = "rules:\n- {name: a, key: tenant, limit: leaky-bucket 9/s queue 9}\n- {name: b, key: user, limit: fixed-window 9/s, plans: {pro: leaky-bucket 9/s queue 9}}"
	const global = "rules:\n- {name: a, key: user, limit: fixed-window 9/s}\n- {name: b, limit: fixed-window 9/s}"
	for _, test := range []struct {
		rules  string
		engine policy.Engine
		want   string
	}{
		{"rules: [{name: a, limit: sliding-log 2000/h}]", policyredis.New(nowhere(t), nil), ""},
		{"rules: [{name: a, limit: sliding-log 5000/h}]", policyredis.New(nowhere(t), nil), "rules[0].limit: redislimit: ratelimit: invalid limit: Rate.Units is 5000"},
		{tenants, policyredis.New(nowhere(t), nil), ""},
		{tenants, policyredis.New(nowhere(t), &policyredis.Options{Tenant: "tenant"}), "rules[1].plans.pro: policyredis: rule \"b\" has a leaky bucket"},
		{global, policyredis.New(nowhere(t), nil), ""},
		{global, policyredis.New(cluster, nil), "rules: policyredis: rule \"b\" has one budget for all requests"},
		{global, policyredis.New(cluster, &policyredis.Options{Tenant: "tenant"}), ""},
		{global, policyredis.New(nil, nil), "client is nil"},
		{global, policyredis.New(nowhere(t), &policyredis.Options{MaxBatch: -1}), "Options.MaxBatch is -1"},
	} {
		set, all := policy.Check([]byte(test.rules), test.engine)
		if test.want == "" {
			require.NotNil(t, set, "%v", all)
			continue
		}
		require.Nil(t, set, test.want)
		assert.ErrorContains(t, all[0], test.want)
		_, err := policy.New(parsed(t, test.rules), &policy.Options{Engine: test.engine})
		assert.Error(t, err, "New refuses it, too")
	}
}

// TestASetThatRedisRefusesIsInForceNowhere: the stand-in in memory keeps its rules and its spending, whichever of the two is updated.
func TestASetThatRedisRefusesIsInForceNowhere(t *testing.T) {
	const good, bad = "rules: [{name: api, key: user, limit: fixed-window 10/h}]", "rules: [{name: other, key: user, limit: sliding-log 5000/h}]"
	local, err := policy.New(nil, &policy.Options{Engine: policy.Memory(&policy.MemoryOptions{Processes: 2})})
	require.NoError(t, err)
	shared, err := policy.New(parsed(t, good), &policy.Options{Engine: policyredis.New(nowhere(t), nil), StandIn: local})
	require.NoError(t, err)
	ann := policy.Attributes{"user": "ann"}
	require.True(t, local.Allow(ann, 3))
	for i, p := range []*policy.Policies{shared, local} {
		require.ErrorContains(t, p.Update(parsed(t, bad)), "Rate.Units is 5000", i)
		assert.Equal(t, parsed(t, good), shared.Current())
		assert.Equal(t, parsed(t, good), local.Current())
	}
	require.NoError(t, shared.Update(parsed(t, good+"\nversion: next")))
	assert.Equal(t, "next", local.Current().Version)
	assert.True(t, local.Allow(ann, 2), "half of 10, of which 3 are spent")
	assert.False(t, local.Allow(ann, 1))
}
