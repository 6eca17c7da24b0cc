package policyredis_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/internal/dev/redistest"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policyredis"
)

// bubbleTime is the clock of a testing/synctest bubble.
type bubbleTime struct{ began time.Time }

func (b bubbleTime) Now() time.Duration { return time.Since(b.began) }

// fleet plays processes in virtual time on a real server: time passes only while all wait, and not while a call is under way.
func fleet(t *testing.T, text string, processes int, play func(t *testing.T, server *redistest.Server, all []*policy.Policies)) {
	server := redistest.Start(t)
	synctest.Test(t, func(t *testing.T) {
		clock := onClock{bubbleTime{time.Now()}}
		all := make([]*policy.Policies, processes)
		var clients []*redis.Client
		for i := range all {
			client := redis.NewClient(&redis.Options{Addr: server.Addr, MaxRetries: -1})
			clients = append(clients, client)
			p, err := policy.New(parsed(t, text), &policy.Options{Engine: policyredis.New(client, &policyredis.Options{Timeout: 10 * time.Second, Hooks: []redis.Hook{clock}})})
			require.NoError(t, err)
			all[i] = p
		}
		time.Sleep(time.Second)
		play(t, server, all)
		for _, p := range all {
			_ = p.Flush(t.Context()) // with a server that is down, the units lapse
		}
		time.Sleep(time.Minute) // the goroutines of processes that hold nothing end
		for _, c := range clients {
			require.NoError(t, c.Close())
		}
		time.Sleep(time.Minute) // a pool that is closed tries no server again
	})
}

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
	fleet(t, fmt.Sprintf(text, 1000, 3), 3, func(t *testing.T, _ *redistest.Server, all []*policy.Policies) {
		ctx, stop := context.WithCancel(t.Context())
		var waiters sync.WaitGroup
		var used [200]atomic.Int64
		request := func(n int) policy.Attributes {
			switch {
			case n == 0:
				return policy.Attributes{"tenant": "acme"}
			case n%4 == 1:
				return policy.Attributes{"tenant": fmt.Sprint(n), "plan": "pro"}
			}
			return policy.Attributes{"tenant": fmt.Sprint(n), "plan": "free"}
		}
		for n := range used {
			r := request(n)
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
				weight := 1
				switch {
				case n == 0:
					weight = 20
				case n%4 == 1:
					weight = step.pro
				}
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
	fleet(t, text, 2, func(t *testing.T, server *redistest.Server, all []*policy.Policies) {
		own := func(tenant string) int {
			d, err := all[0].Peek(t.Context(), policy.Subject{Rule: "own", Key: []string{tenant}}, 0)
			require.NoError(t, err)
			return 1000 - d.Remaining
		}
		ann, bob := policy.Attributes{"tenant": "ann"}, policy.Attributes{"tenant": "bob"}
		for i, who := range []string{"ann", "bob"} {
			cost := []int{290, 1}[i]
			d, err := all[0].Take(t.Context(), policy.Attributes{"tenant": who}, cost)
			require.NoError(t, err)
			require.True(t, d.Allowed)
			assert.Equal(t, cost, own(who))
		}
		d, err := all[1].Take(t.Context(), bob, 200)
		require.NoError(t, err)
		assert.False(t, d.Allowed)
		assert.Equal(t, "up", d.Limit.Name)
		assert.Equal(t, 1, own("bob"), "given back")
		_, err = all[1].Take(t.Context(), ann, 401)
		require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
		time.Sleep(time.Second) // until then the process denies bob without a call
		res, err := all[1].Reserve(t.Context(), bob, 8, 0)
		require.NoError(t, err)
		require.True(t, res.Allowed)
		assert.Equal(t, 9, own("bob"))
		require.NoError(t, res.Settle(2))
		assert.Equal(t, 3, own("bob"))
		time.Sleep(time.Second)
		d, err = all[0].Take(t.Context(), bob, 5)
		require.NoError(t, err)
		assert.True(t, d.Allowed, "the refund is in Redis, for all processes")

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
	synctest.Test(t, func(t *testing.T) {
		client := redis.NewClient(&redis.Options{Addr: server.Addr, MaxRetries: -1})
		standIn, err := policy.New(nil, &policy.Options{Engine: policy.Memory(&policy.MemoryOptions{Processes: 3})})
		require.NoError(t, err)
		p, err := policy.New(parsed(t, text), &policy.Options{Engine: policyredis.New(client, &policyredis.Options{Hooks: []redis.Hook{onClock{bubbleTime{time.Now()}}}}), StandIn: standIn})
		require.NoError(t, err)
		l, err := failover.New[policy.Request](p, standIn, &failover.Options{Timeout: -1, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
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
		d, err := l.Take(ctx, policy.Attributes{"tenant": "ann"}, 200)
		require.NoError(t, err)
		assert.False(t, d.Allowed)
		assert.True(t, d.Degraded)
		assert.Equal(t, 300, d.Limit.Burst)
		stop()
		waiters.Wait()
		time.Sleep(time.Minute)
		require.NoError(t, client.Close())
		time.Sleep(time.Minute)
	})
}

func TestASharedLimitThatRedisCannotCountIsAnErrorOfItsLine(t *testing.T) {
	engine := policyredis.New(redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}), nil)
	set, all := policy.Check([]byte("rules:\n- name: up\n  key: tenant\n  share: 1\n  limit: token-bucket 10/s burst 2000000000\n"), engine)
	require.Nil(t, set)
	require.Len(t, all, 1)
	assert.Equal(t, "rules[0].limit", all[0].Field)
	assert.Equal(t, 5, all[0].Line)
	assert.ErrorContains(t, all[0], "Burst is 2000000000, want at most 2^30")
}
