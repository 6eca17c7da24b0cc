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

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/redistest"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policyredis"
)

const tenantRules = `
rules:
- {name: user, key: [user, tenant], limit: fixed-window 20/d, plans: {pro: fixed-window 40/d}}
- {name: tenant, key: tenant, limit: fixed-window 50/d}
- {name: route, key: route, limit: fixed-window 1500/d}
- {name: all, limit: fixed-window 2000/d}
`

func TestTenantsSpreadOverACluster(t *testing.T) {
	cluster := redistest.StartCluster(t, 3, false)
	const processes, batch = 3, 25
	var all [processes]*policy.Policies
	for i := range all {
		client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs(), ReadTimeout: time.Minute})
		t.Cleanup(func() { client.Close() })
		all[i] = over(client, tenantRules, policyredis.Options{Tenant: "tenant", MaxBatch: batch}, policy.Options{})
		require.Eventually(t, func() bool {
			_, err := all[i].Peek(t.Context(), policy.Attributes{"tenant": "t0", "user": "u", "route": "r"}, 1)
			return err == nil
		}, 30*time.Second, 20*time.Millisecond)
	}
	var allowed, busy atomic.Int64
	var byTenant [60]atomic.Int64
	var wg sync.WaitGroup
	for n, p := range all {
		wg.Go(func() {
			for i := range 60 * 40 {
				k, route := (i+n)%60, []string{"other", "busy", "busy", "busy"}[i%4]
				d, err := p.Take(t.Context(), policy.Attributes{"tenant": fmt.Sprint("t", k), "user": fmt.Sprint(i % 5), "route": route}, 1)
				if assert.NoError(t, err); !d.Allowed {
					continue
				}
				allowed.Add(1)
				byTenant[k].Add(1)
				if route == "busy" {
					busy.Add(1)
				}
			}
		})
	}
	wg.Wait()
	assert.LessOrEqual(t, allowed.Load(), int64(2000+processes*batch))
	assert.GreaterOrEqual(t, allowed.Load(), int64(1900))
	assert.LessOrEqual(t, busy.Load(), int64(1500+processes*batch))
	for k := range byTenant {
		assert.LessOrEqual(t, byTenant[k].Load(), int64(50))
	}
	for _, p := range all {
		require.NoError(t, p.Flush(t.Context()))
	}
	assert.EqualValues(t, max(0, 2000-allowed.Load()), peek(t, all[0], "all", "").Remaining, "what is told is charged")
	require.NoError(t, all[0].Reset(t.Context(), policy.Subject{Rule: "all"}))
	assert.Equal(t, 40, peek(t, all[0], "user", "pro", "u", "t1").Remaining)
}

func TestFlushGivesBackBatchesLeasedBeforeAReload(t *testing.T) {
	p := over(local(t), tenantRules, policyredis.Options{Tenant: "tenant"}, policy.Options{})
	for i := range 61 {
		if i == 60 {
			require.NoError(t, p.Update(parsed(tenantRules+"version: next")))
		}
		require.True(t, p.Allow(policy.Attributes{"tenant": fmt.Sprint(i), "user": "u", "route": "r"}, 1))
	}
	require.NoError(t, p.Flush(t.Context()))
	assert.Equal(t, 2000-61, peek(t, p, "all", "").Remaining)
}

// What other processes see as spent is at most MaxBatch ahead of what this one has let pass.
func TestAProcessLeasesAtMostMaxBatch(t *testing.T) {
	client := local(t)
	const batch = 3
	process, other := over(client, tenantRules, policyredis.Options{Tenant: "tenant", MaxBatch: batch}, policy.Options{}),
		over(client, tenantRules, policyredis.Options{Tenant: "tenant"}, policy.Options{})
	for i := range 50 {
		require.True(t, take(t, process, policy.Attributes{"tenant": fmt.Sprint(i % 10), "user": "u", "route": "r"}, 1).Allowed)
		spent := 2000 - peek(t, other, "all", "").Remaining
		require.LessOrEqual(t, spent, i+1+batch)
		require.GreaterOrEqual(t, spent, i+1)
	}
}

// Each reads the keys of a rule, and passes over keys in Redis that only look like them.
func TestKeysOfAnotherProgramAreNotListed(t *testing.T) {
	client := local(t)
	p := over(client, tenantRules, policyredis.Options{Tenant: "tenant"}, policy.Options{})
	require.True(t, p.Allow(policy.Attributes{"tenant": "t", "user": "u", "route": "r"}, 1))
	for _, key := range []string{"policy:user:{t}", "policy:user:{t}x", "policy:user:{}", "policy:tenant:{}x"} {
		require.NoError(t, client.Set(t.Context(), key, "x", 0).Err())
	}
	var listed [][]string
	require.NoError(t, p.Each(t.Context(), "user", func(key []string, _ ratelimit.Decision) bool {
		listed = append(listed, key)
		return true
	}))
	assert.Equal(t, [][]string{{"u", "t"}}, listed)
}
