package ratelimit_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

// inBubble returns a limiter on the bubble's time.
func inBubble(limit ratelimit.Limit) *ratelimit.Keyed[string] {
	return ratelimit.Must(ratelimit.New[string](limit, nil))
}

// A wait that is cancelled while a queue delays it used to be settled in the other layers:
// what they had regained in the meantime stayed charged.
func TestAStacksWaitThatFailsHasSpentNothing(t *testing.T) {
	for _, limit := range everyAlgorithm {
		t.Run(limit.Algorithm.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				limit := limit
				limit.Rate = ratelimit.PerSecond(10)
				tried, twin := inBubble(limit), inBubble(limit)
				queue := inBubble(ratelimit.LeakyBucket(ratelimit.PerSecond(1), 5))
				stack := stackOf(t, ratelimit.By(tried, byUser), ratelimit.By(queue, byUser))
				require.True(t, queue.Allow("ann", 1))
				for _, l := range []*ratelimit.Keyed[string]{tried, twin} {
					require.True(t, l.Allow("ann", 1))
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				time.AfterFunc(50*ms, cancel)
				require.ErrorIs(t, stack.Wait(ctx, call{user: "ann"}, 1), context.Canceled)
				same(t, twin, tried)
				d, err := queue.Peek("ann", 1)
				require.NoError(t, err)
				assert.Equal(t, 4, d.Remaining)
			})
		})
	}
}

// same requires that the limiters say the same about the key.
func same(t *testing.T, want, got *ratelimit.Keyed[string]) {
	t.Helper()
	for cost := range 4 {
		w, err := want.Peek("ann", cost)
		require.NoError(t, err)
		g, err := got.Peek("ann", cost)
		require.NoError(t, err)
		require.Equal(t, w, g)
	}
}

// What others have spent during a wait that fails then has been spent on what was there
// without it: the key stands as if it had never been, to the nanosecond. Two things keep
// their instants, and are not played: what entered a leaky bucket later, and a debt of a log.
func TestNothingIsLeftOfWaitsThatFailAmongOthers(t *testing.T) {
	for _, limit := range []ratelimit.Limit{
		ratelimit.TokenBucket(ratelimit.Per(7, 3*s), 6), ratelimit.SlidingLog(ratelimit.Per(6, 3*s)),
	} {
		for seed := range uint64(60) {
			t.Run(fmt.Sprint(limit.Algorithm, " seed=", seed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { failAmongOthers(t, limit, rand.New(rand.NewPCG(seed, 8))) })
			})
		}
	}
}

func failAmongOthers(t *testing.T, limit ratelimit.Limit, rnd *rand.Rand) {
	tried, twin := inBubble(limit), inBubble(limit)
	queue := inBubble(ratelimit.LeakyBucket(ratelimit.PerHour(1), 1000))
	stack := stackOf(t, ratelimit.By(queue, byRoute), ratelimit.By(tried, byUser))
	require.True(t, queue.Allow("", 1)) // so each wait sleeps
	var wg sync.WaitGroup
	for range 40 {
		time.Sleep(time.Duration(rnd.Int64N(int64(s))))
		switch cost := 1 + rnd.IntN(3); rnd.IntN(5) {
		case 0, 1:
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Duration(rnd.Int64N(int64(2*s))), cancel)
			wg.Go(func() { assert.Error(t, stack.Wait(ctx, call{user: "ann"}, cost)) })
			synctest.Wait()
		case 2:
			if r, _ := tried.Reserve(t.Context(), "ann", cost, 0); r.Allowed {
				twin.Allow("ann", cost)
			}
		case 3:
			if limit.Algorithm == ratelimit.AlgorithmSlidingLog {
				continue
			}
			require.NoError(t, tried.Adjust("ann", cost))
			require.NoError(t, twin.Adjust("ann", cost))
		case 4:
			if tried.Allow("ann", cost) {
				require.True(t, twin.Allow("ann", cost), "what fits beside the waits fits without them")
			}
		}
	}
	wg.Wait()
	same(t, twin, tried)
	time.Sleep(time.Duration(rnd.Int64N(int64(s))))
	same(t, twin, tried)
}

func TestAWaitThatSucceedsStaysCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := inBubble(ratelimit.TokenBucket(ratelimit.PerHour(1), 5))
		queue := inBubble(ratelimit.LeakyBucket(ratelimit.PerSecond(1), 5))
		stack := stackOf(t, ratelimit.By(bucket, byUser), ratelimit.By(queue, byUser))
		for range 3 {
			require.NoError(t, stack.Wait(t.Context(), call{user: "ann"}, 1))
		}
		assert.Equal(t, 2, remaining(t, bucket, "ann"))
		time.Sleep(2*time.Hour + time.Minute)
		assert.Equal(t, 4, remaining(t, bucket, "ann"))
		time.Sleep(time.Hour)
		assert.Equal(t, 1, bucket.Sweep())
	})
}

// A settlement of others does not take out what a waiter holds at the same instant, nor
// does it lose what was spent before the hold began.
func TestOthersSettleWhileAWaitIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := ratelimit.TokenBucket(ratelimit.PerSecond(1), 20)
		tried, twin := inBubble(limit), inBubble(limit)
		queue := inBubble(ratelimit.LeakyBucket(ratelimit.PerHour(1), 5))
		stack := stackOf(t, ratelimit.By(tried, byUser), ratelimit.By(queue, byUser))
		require.True(t, queue.Allow("ann", 1))
		before, err := tried.Reserve(t.Context(), "ann", 6, 0) // at the instant of the wait
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { assert.ErrorIs(t, stack.Wait(ctx, call{user: "ann"}, 3), context.Canceled) })
		synctest.Wait()
		require.NoError(t, before.Settle(2))
		require.True(t, twin.Allow("ann", 2))
		time.Sleep(500 * ms)
		during, err := tried.Reserve(t.Context(), "ann", 5, 0)
		require.NoError(t, err)
		require.NoError(t, during.Settle(9))
		require.True(t, twin.Allow("ann", 9))
		time.Sleep(500 * ms)
		cancel()
		wg.Wait()
		same(t, twin, tried)
	})
}

func TestALimitThatChangesDuringAWaitLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := inBubble(ratelimit.TokenBucket(ratelimit.PerHour(1), 9))
		queue := inBubble(ratelimit.LeakyBucket(ratelimit.PerHour(1), 5))
		stack := stackOf(t, ratelimit.By(bucket, byUser), ratelimit.By(queue, byUser))
		require.True(t, queue.Allow("ann", 1))
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { assert.Error(t, stack.Wait(ctx, call{user: "ann"}, 2)) })
		synctest.Wait()
		require.True(t, bucket.Allow("ann", 3))
		require.NoError(t, bucket.SetLimit(ratelimit.TokenBucket(ratelimit.PerHour(1), 20)))
		assert.Equal(t, 15, remaining(t, bucket, "ann"))
		cancel()
		wg.Wait()
		assert.Equal(t, 17, remaining(t, bucket, "ann"))
	})
}

// A key that is decided on very often while it is held keeps a bounded number of
// bookings. After that a wait that fails is settled instead.
func TestAHeldKeyOfManyDecisionsKeepsABound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := inBubble(ratelimit.TokenBucket(ratelimit.PerSecond(1000), 1000))
		queue := inBubble(ratelimit.LeakyBucket(ratelimit.PerHour(1), 5000))
		stack := stackOf(t, ratelimit.By(bucket, byUser), ratelimit.By(queue, byRoute))
		require.True(t, queue.Allow("", 1))
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { assert.Error(t, stack.Wait(ctx, call{user: "ann"}, 900)) })
		synctest.Wait()
		for range 10_000 {
			time.Sleep(ms)
			require.True(t, bucket.Allow("ann", 1))
		}
		assert.Equal(t, 100, remaining(t, bucket, "ann"))
		cancel()
		wg.Wait()
		assert.Equal(t, 100, remaining(t, bucket, "ann"), "what was regained in 10 s is not given back")
	})
}
