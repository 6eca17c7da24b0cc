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

// Tenants share a limit by weight, also when the weights and the limit change. While Redis is down, each process shares its part of it.
func TestAShareOfAFleetFailsOverToAShareInMemory(t *testing.T) {
	const text = "rules: [{name: up, key: tenant, limit: token-bucket %[1]d/s burst %[1]d, share: 1, shares: {pro: %[2]d}}]"
	server := redistest.Start(t)
	var standIn *policy.Policies
	inMemory := func(int) policy.Options {
		standIn = ratelimit.Must(policy.New(nil, &policy.Options{Engine: policy.Memory(&policy.MemoryOptions{Processes: 3})}))
		return policy.Options{StandIn: standIn}
	}
	fleet(t, server, fmt.Sprintf(text, 900, 3), 1, policyredis.Options{Timeout: 50 * time.Millisecond}, inMemory, func(t *testing.T, all []*policy.Policies) {
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
		measure := func(rate, pro float64) {
			time.Sleep(10 * time.Second)
			ann.Store(0)
			bob.Store(0)
			time.Sleep(20 * time.Second)
			assert.InEpsilon(t, 20*rate, float64(ann.Load()+bob.Load()), 0.03)
			assert.InEpsilon(t, pro, float64(bob.Load())/float64(ann.Load()), 0.05)
		}
		measure(900, 3)
		require.NoError(t, all[0].Update(parsed(t, fmt.Sprintf(text, 600, 2))))
		measure(600, 2)
		server.Kill()
		measure(200, 2)
		d := take(t, l, policy.Attributes{"tenant": "ann"}, 200)
		assert.False(t, d.Allowed)
		assert.True(t, d.Degraded)
		assert.Equal(t, 200, d.Limit.Burst)
		stop()
		waiters.Wait()
	})
}
