package policyredis_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/internal/dev/redistest"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policyredis"
)

// 200 tenants of three plans in Wait in three processes have one limit, by weight, also while their weights and the limit change.
func TestAFleetSharesTheLimitOfARuleByPlan(t *testing.T) {
	const text = `
rules:
- name: upstream
  key: tenant
  limit: token-bucket %d/s burst 1000
  share: 1
  shares: {pro: %d}
  overrides: [{key: acme, share: 20}, {key: mallory, limit: blocked}]
`
	// weight returns a tenant's part, and its plan.
	weight := func(n, pro int) (int, string) {
		switch {
		case n == 0:
			return 20, "free"
		case n%4 == 1:
			return pro, "pro"
		}
		return 1, "free"
	}
	fleet(t, redistest.Start(t), fmt.Sprintf(text, 1000, 3), 3, policyredis.Options{Timeout: 10 * time.Second}, alike, func(t *testing.T, all []*policy.Policies) {
		ctx, stop := context.WithCancel(t.Context())
		var waiters sync.WaitGroup
		var used [200]atomic.Int64
		for n := range used {
			r := policy.Attributes{"tenant": fmt.Sprint(n)}
			if _, r["plan"] = weight(n, 0); n == 0 {
				r["tenant"] = "acme"
			}
			for range 2 {
				waiters.Go(func() {
					for ctx.Err() == nil {
						if err := all[n%3].Wait(ctx, r, 1); err == nil {
							used[n].Add(1)
						} else if ctx.Err() == nil {
							t.Error(err)
							return
						}
					}
				})
			}
		}
		for _, step := range []struct{ rate, pro int }{{1000, 3}, {1000, 9}, {2000, 2}, {500, 2}} {
			for _, p := range all {
				require.NoError(t, p.Update(parsed(t, fmt.Sprintf(text, step.rate, step.pro))))
			}
			time.Sleep(8 * time.Second)
			for n := range used {
				used[n].Store(0)
			}
			time.Sleep(20 * time.Second)
			weights, total := float64(20+149+50*step.pro), 0
			for n := range used {
				total += int(used[n].Load())
			}
			assert.InEpsilon(t, 20*step.rate, total, 0.01, step)
			sums, shares := map[int]float64{}, map[int]float64{} // by weight
			for n := range used {
				weight, _ := weight(n, step.pro)
				share := float64(20*step.rate*weight) / weights
				sums[weight], shares[weight] = sums[weight]+float64(used[n].Load()), shares[weight]+share
				// Usually within 5 %. A call that a loaded machine delays is a beat late, and in virtual time a beat is long.
				assert.InDelta(t, share, float64(used[n].Load()), max(0.2*share, 5), "tenant %d of weight %d, %v", n, weight, step)
			}
			for weight, share := range shares {
				assert.InEpsilon(t, share, sums[weight], 0.05, "all tenants of weight %d, %v", weight, step)
			}
		}
		assert.False(t, all[0].Allow(policy.Attributes{"tenant": "mallory"}, 1))
		stop()
		waiters.Wait()
	})
}

// All rules that match are charged, or none: the share is asked after the rules that one script decides.
func TestAShareBesideOtherRulesOnRedisIsAllOrNone(t *testing.T) {
	const text = `
rules:
- {name: own, key: tenant, limit: token-bucket 1/h burst 1000}
- {name: up, key: tenant, limit: token-bucket 1/h burst 400, share: 1}
`
	server := redistest.Start(t)
	fleet(t, server, text, 2, policyredis.Options{Timeout: 10 * time.Second}, alike, func(t *testing.T, all []*policy.Policies) {
		own := func(tenant string) int { return 1000 - peek(t, all[0], "own", tenant).Remaining }
		ann, bob := policy.Attributes{"tenant": "ann"}, policy.Attributes{"tenant": "bob"}
		require.True(t, take(t, all[0], ann, 290).Allowed)
		require.True(t, take(t, all[0], bob, 1).Allowed)
		assert.Equal(t, []int{290, 1}, []int{own("ann"), own("bob")})
		d := take(t, all[1], bob, 200)
		assert.False(t, d.Allowed)
		assert.Equal(t, "up", d.Limit.Name)
		assert.Equal(t, 1, own("bob"), "given back")
		_, err := all[1].Take(t.Context(), ann, 401)
		require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
		time.Sleep(time.Second) // until then the process denies bob without a call
		res := reserve(t, all[1], bob, 8)
		require.True(t, res.Allowed)
		assert.Equal(t, 9, own("bob"))
		require.NoError(t, res.Settle(2))
		assert.Equal(t, 3, own("bob"))
		time.Sleep(time.Second)
		assert.True(t, take(t, all[0], bob, 5).Allowed, "the refund is in Redis, for all processes")

		require.ErrorContains(t, all[0].Adjust(t.Context(), bob, 1), "no Adjust")
		assert.Equal(t, 8, own("bob"), "nothing is adjusted if one rule cannot be")
		_, err = all[0].Peek(t.Context(), bob, 1)
		require.ErrorContains(t, err, "cannot look")
		server.Kill()
		_, err = all[0].Take(t.Context(), bob, 1)
		require.ErrorIs(t, err, ratelimit.ErrUnavailable)
	})
}

// While Redis is down, each process shares its part of the limit by the same weights.
func TestAShareOfAFleetFailsOverToAShareInMemory(t *testing.T) {
	const text = "rules: [{name: up, key: tenant, limit: token-bucket 900/s burst 900, share: 1, shares: {pro: 3}}]"
	server := redistest.Start(t)
	var standIn *policy.Policies
	inMemory := func(int) policy.Options {
		standIn = ratelimit.Must(policy.New(nil, &policy.Options{Engine: policy.Memory(&policy.MemoryOptions{Processes: 3})}))
		return policy.Options{StandIn: standIn}
	}
	fleet(t, server, text, 1, policyredis.Options{Timeout: 50 * time.Millisecond}, inMemory, func(t *testing.T, all []*policy.Policies) {
		l := ratelimit.Must(failover.New[policy.Request](all[0], standIn, &failover.Options{Timeout: -1, Logger: slog.New(slog.DiscardHandler)}))
		ctx, stop := context.WithCancel(t.Context())
		var waiters sync.WaitGroup
		var ann, bob atomic.Int64
		for used, r := range map[*atomic.Int64]policy.Attributes{&ann: {"tenant": "ann"}, &bob: {"tenant": "bob", "plan": "pro"}} {
			for range 4 {
				waiters.Go(func() {
					for ctx.Err() == nil {
						if ratelimit.Wait[policy.Request](ctx, l, r, 1) == nil {
							used.Add(1)
						}
					}
				})
			}
		}
		measure := func(rate float64) {
			time.Sleep(10 * time.Second)
			ann.Store(0)
			bob.Store(0)
			time.Sleep(20 * time.Second)
			assert.InEpsilon(t, 20*rate, float64(ann.Load()+bob.Load()), 0.03)
			assert.InEpsilon(t, 3, float64(bob.Load())/float64(ann.Load()), 0.05)
		}
		measure(900)
		server.Kill()
		measure(300)
		d := take(t, l, policy.Attributes{"tenant": "ann"}, 200)
		assert.False(t, d.Allowed)
		assert.True(t, d.Degraded)
		assert.Equal(t, 300, d.Limit.Burst)
		stop()
		waiters.Wait()
	})
}
