package policyredis_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/redistest"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policyredis"
)

const tenantRules = `
rules:
- {name: user, key: [tenant, user], limit: fixed-window 20/d, plans: {pro: fixed-window 40/d}}
- {name: tenant, key: tenant, limit: fixed-window 50/d}
- {name: route, key: route, limit: fixed-window 1500/d}
- {name: all, limit: fixed-window 2000/d}
`

func TestTenantsSpreadOverACluster(t *testing.T) {
	cluster := redistest.StartCluster(t, 3, false)
	const processes, batch = 3, 25
	var all []*policy.Policies
	for range processes {
		client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs(), ReadTimeout: time.Minute})
		t.Cleanup(func() { client.Close() })
		engine := policyredis.New(client, &policyredis.Options{Tenant: "tenant", MaxBatch: batch, Timeout: time.Minute})
		p, err := policy.New(parsed(t, tenantRules), &policy.Options{Engine: engine})
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			_, err := p.Peek(t.Context(), policy.Attributes{"tenant": "t0", "user": "u", "route": "r"}, 1)
			return err == nil
		}, 30*time.Second, 20*time.Millisecond)
		all = append(all, p)
	}
	var allowed, byRoute atomic.Int64
	var byTenant [60]atomic.Int64
	var wg sync.WaitGroup
	for n, p := range all {
		wg.Go(func() {
			for i := range 60 * 40 {
				k := (i + n) % 60
				route := "other"
				if i%4 > 0 {
					route = "busy"
				}
				d, err := p.Take(t.Context(), policy.Attributes{"tenant": fmt.Sprint("t", k), "user": fmt.Sprint(i % 5), "route": route}, 1)
				assert.NoError(t, err)
				if d.Allowed {
					allowed.Add(1)
					byTenant[k].Add(1)
					if route == "busy" {
						byRoute.Add(1)
					}
				}
			}
		})
	}
	wg.Wait()
	assert.LessOrEqual(t, allowed.Load(), int64(2000+processes*batch))
	assert.GreaterOrEqual(t, allowed.Load(), int64(1900))
	assert.LessOrEqual(t, byRoute.Load(), int64(1500+processes*batch))
	for k := range byTenant {
		assert.LessOrEqual(t, byTenant[k].Load(), int64(50))
	}
	for _, p := range all {
		require.NoError(t, p.Flush(t.Context()))
	}
	d, err := all[0].Peek(t.Context(), policy.Subject{Rule: "all"}, 0)
	require.NoError(t, err)
	assert.EqualValues(t, max(0, 2000-allowed.Load()), d.Remaining, "what is told is charged")
	require.NoError(t, all[0].Reset(t.Context(), policy.Subject{Rule: "all"}))
	d, err = all[0].Peek(t.Context(), policy.Subject{Rule: "user", Key: []string{"t1", "u"}, Plan: "pro"}, 0)
	require.NoError(t, err)
	assert.Equal(t, 40, d.Remaining)
}

func TestFlushGivesBackBatchesLeasedBeforeAReload(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: redistest.Start(t).Addr})
	defer client.Close()
	engine := policyredis.New(client, &policyredis.Options{Tenant: "tenant", Timeout: time.Minute})
	set := parsed(t, tenantRules)
	p, err := policy.New(set, &policy.Options{Engine: engine})
	require.NoError(t, err)
	take := func(n int) {
		for i := range n {
			require.True(t, p.Allow(policy.Attributes{"tenant": fmt.Sprint(i), "user": "u", "route": "r"}, 1))
		}
	}
	take(60)
	next := *set
	next.Version = "next"
	require.NoError(t, p.Update(&next))
	take(1)
	require.NoError(t, p.Flush(t.Context()))
	d, err := p.Peek(t.Context(), policy.Subject{Rule: "all"}, 0)
	require.NoError(t, err)
	assert.Equal(t, 2000-61, d.Remaining)
}

func TestRulesThatCannotBeOnOneServerAreRefused(t *testing.T) {
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1", "b": "127.0.0.1:2"}})
	defer ring.Close()
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer cluster.Close()
	for _, client := range []redis.UniversalClient{ring, cluster} {
		for _, c := range []struct {
			rules string
			opts  policyredis.Options
			want  string
		}{
			{tenantRules, policyredis.Options{}, "Options.Tenant"},
			{tenantRules, policyredis.Options{Tenant: "tenant", Slot: func(string) string { return "" }}, "one of them"},
			{tenantRules, policyredis.Options{Tenant: "tenant", MaxBatch: -1}, "MaxBatch"},
			{`{rules: [{name: slow, limit: leaky-bucket 5/s queue 5}, {name: tenant, key: tenant, limit: fixed-window 5/s}]}`, policyredis.Options{Tenant: "tenant"}, "leaky"},
			{tenantRules, policyredis.Options{Tenant: "tenant"}, ""},
			{tenantRules, policyredis.Options{Slot: func(string) string { return "one" }}, ""},
			{`{rules: [{name: all, limit: fixed-window 5/d}]}`, policyredis.Options{}, ""},
		} {
			_, err := policy.New(parsed(t, c.rules), &policy.Options{Engine: policyredis.New(client, &c.opts)})
			if c.want == "" {
				assert.NoError(t, err)
			} else {
				assert.ErrorContains(t, err, c.want)
			}
		}
	}
}
