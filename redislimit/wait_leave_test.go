package redislimit

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/crowd"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/lease"
)

// waits are the Wait methods of processes sharing a budget in Redis, by package.
var waits = map[string]func(t *testing.T, l *Limiter) func(context.Context) error{
	"redislimit": func(_ *testing.T, l *Limiter) func(context.Context) error {
		return func(ctx context.Context) error { return l.Wait(ctx, "k", 1) }
	},
	"lease": func(t *testing.T, l *Limiter) func(context.Context) error {
		leased, err := lease.New[string](l, &lease.Options[string]{MaxBatch: 10, Timeout: 20 * time.Second})
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, flushAll(leased, context.Background())) })
		return func(ctx context.Context) error { return leased.Wait(ctx, "k", 1) }
	},
}

// waitsOf returns several processes' Waits: limiters of one name, each with its own client.
func waitsOf(t *testing.T, s *server, kind string, n int, limit ratelimit.Limit, name string) (all []func(context.Context) error) {
	for range n {
		l := newOn(t, s.client(), limit, name, Options{})
		warm(t, l)
		all = append(all, waits[kind](t, l))
	}
	return all
}

// A crowd calling at twice the rate, from one process or four, uses the whole rate, although half the callers or more leave.
func TestTheRateIsServedThoughCallersLeave(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds of real time")
	}
	testsize.Alone(t)
	const rate = 100
	s := startServer(t)
	for _, burst := range testsize.Of([]int{5}, []int{1, 5, 100}) {
		var cases sync.WaitGroup
		for _, n := range []int{1, 4} {
			for kind := range waits {
				name := fmt.Sprintf("%s_%d-processes_burst-%d", kind, n, burst)
				limit := ratelimit.TokenBucket(ratelimit.PerSecond(rate), burst)
				probe := newOn(t, s.client(), limit, name, Options{})
				all := waitsOf(t, s, kind, n, limit, name)
				cases.Go(func() {
					r := crowd.Twice(rate).Play(all...)
					d, err := probe.Peek(context.Background(), "k", 1)
					t.Logf("%s: %v, then %v", name, r, d.RetryAfter)
					if assert.NoError(t, err, name) {
						r.Check(t, name, limit, d.RetryAfter, n)
					}
				})
			}
		}
		cases.Wait()
	}
}

// The budget regains a unit an hour, so each booking left behind shows.
func TestCallersThatLeaveGiveEveryBookingBack(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	for kind := range waits {
		for _, n := range []int{1, 4} {
			t.Run(fmt.Sprintf("%s_%d-processes", kind, n), func(t *testing.T) {
				limit := ratelimit.TokenBucket(ratelimit.PerHour(1), 5)
				name := fmt.Sprintf("%s_%d", kind, n)
				probe := newOn(t, s.client(), limit, name, Options{})
				all := waitsOf(t, s, kind, n, limit, name)
				require.True(t, probe.Allow("k", 5))
				c := crowd.Crowd{PerSecond: 400, Patience: 100 * time.Millisecond, For: 400 * time.Millisecond, Seed: testsize.Seed(2)}
				r := c.Play(all...)
				assert.Zero(t, r.Served)
				assert.Empty(t, r.Errors)
				d, err := probe.Peek(t.Context(), "k", 1)
				require.NoError(t, err)
				if r.Unsure == 0 {
					assert.LessOrEqual(t, d.RetryAfter, time.Hour, "of %d callers", r.Callers)
				}
			})
		}
	}
}

func TestAWaiterThatStaysTakesOneRoundTrip(t *testing.T) {
	t.Parallel()
	var sent counting
	l := newOn(t, startServer(t).client(), ratelimit.TokenBucket(ratelimit.PerSecond(20), 1), "stays", Options{Hooks: []redis.Hook{&sent}})
	warm(t, l)
	require.True(t, l.Allow("k", 1))
	require.NoError(t, l.Wait(t.Context(), "k", 1)) // this loads the script
	for range 3 {
		before := sent.calls.Load() + sent.pipelines.Load()
		require.NoError(t, l.Wait(t.Context(), "k", 1))
		assert.Equal(t, int64(1), sent.calls.Load()+sent.pipelines.Load()-before)
	}
}
