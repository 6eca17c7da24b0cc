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
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// inBubble returns a limiter on the bubble's time.
func inBubble(limit ratelimit.Limit) *ratelimit.Keyed[string] {
	return ratelimit.Must(ratelimit.New[string](limit, nil))
}

// When a wait fails in a queue, a token bucket refunds its charge as Cancel does, without
// the budget regained in the meantime. All other limits are as if there had been no wait.
func TestAStacksWaitThatFailsRefundsAsCancelDoes(t *testing.T) {
	for _, limit := range everyAlgorithm {
		t.Run(limit.Algorithm.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				limit := limit
				if limit.Rate.Units = 10; limit.Rate.Per > 0 {
					limit.Rate.Per = time.Second
				}
				tried, twin := inBubble(limit), inBubble(limit)
				queue := inBubble(ratelimit.LeakyBucket(ratelimit.PerSecond(1), 5))
				stack := stackOf(t, ratelimit.By(tried, byUser), ratelimit.By(queue, byUser))
				require.True(t, queue.Allow("ann", 1))
				for _, l := range []*ratelimit.Keyed[string]{tried, twin} {
					require.True(t, l.Allow("ann", 1))
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				time.AfterFunc(50*ms, cancel)
				start := time.Now()
				require.ErrorIs(t, stack.Wait(ctx, call{user: "ann"}, 1), context.Canceled)
				require.Equal(t, 50*ms, time.Since(start))
				if limit.Algorithm == ratelimit.AlgorithmTokenBucket {
					// 1 was spent before, and half of it regained. The wait spent another 1, now given back.
					d, err := tried.Peek(context.Background(), "ann", 1)
					require.NoError(t, err)
					require.Equal(t, 50*ms, d.ResetAfter)
				} else {
					same(t, twin, tried)
				}
				d, err := queue.Peek(context.Background(), "ann", 1)
				require.NoError(t, err)
				assert.Equal(t, 4, d.Remaining)
			})
		})
	}
}

// same requires that both limiters make the same decisions on the key.
func same(t *testing.T, want, got *ratelimit.Keyed[string]) {
	t.Helper()
	for cost := range 4 {
		w, err := want.Peek(context.Background(), "ann", cost)
		require.NoError(t, err)
		g, err := got.Peek(context.Background(), "ann", cost)
		require.NoError(t, err)
		require.Equal(t, w, g)
	}
}

// Windows and logs record when each cost was spent. So after a failed wait, the others' spending is exactly as if there had
// been no wait. Two cases are left out, because they keep their instants: a window begun by the wait, and a log's debt.
func TestWindowsAndLogsKeepNothingOfWaitsThatFailAmongOthers(t *testing.T) {
	for _, limit := range []ratelimit.Limit{
		ratelimit.FixedWindow(ratelimit.PerHour(60)), ratelimit.SlidingCounter(ratelimit.PerHour(60)),
		ratelimit.SlidingLog(ratelimit.Per(6, 3*s)),
	} {
		manySeeds(t, limit, func(t *testing.T, rnd *rand.Rand) {
			failAmongOthers(t, limit, rnd, func(twin *ratelimit.Keyed[string], cost int) context.CancelFunc { return func() {} })
		})
	}
}

// A failed wait has the effect of a reservation made when the wait began to
// sleep, and cancelled when it failed. Others may make any calls in the meantime.
func TestAWaitThatFailsAmongOthersIsACancelledReservation(t *testing.T) {
	for _, limit := range []ratelimit.Limit{
		ratelimit.TokenBucket(ratelimit.Per(7, 3*s), 6), ratelimit.FixedWindow(ratelimit.Per(6, 3*s)),
		ratelimit.SlidingCounter(ratelimit.Per(6, 3*s)), ratelimit.SlidingLog(ratelimit.Per(6, 3*s)),
	} {
		manySeeds(t, limit, func(t *testing.T, rnd *rand.Rand) {
			failAmongOthers(t, limit, rnd, func(twin *ratelimit.Keyed[string], cost int) context.CancelFunc {
				r, err := twin.Reserve(t.Context(), "ann", cost, 0)
				require.NoError(t, err)
				return func() { assert.NoError(t, r.Cancel()) }
			})
		})
	}
}

func manySeeds(t *testing.T, limit ratelimit.Limit, play func(*testing.T, *rand.Rand)) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(limit.Algorithm, " seed=", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { play(t, rand.New(rand.NewPCG(testsize.Seed(seed), 8))) })
		})
	}
}

// failAmongOthers plays waits that fail among other calls. The twin gets the other calls, and a
// call of instead for each wait. When the wait fails, the function returned by instead is called.
func failAmongOthers(t *testing.T, limit ratelimit.Limit, rnd *rand.Rand, instead func(*ratelimit.Keyed[string], int) context.CancelFunc) {
	tried, twin := inBubble(limit), inBubble(limit)
	queue := inBubble(ratelimit.LeakyBucket(ratelimit.PerHour(1), 1000))
	stack := stackOf(t, ratelimit.By(queue, byRoute), ratelimit.By(tried, byUser))
	require.True(t, queue.Allow("", 1)) // makes each wait sleep
	require.True(t, tried.Allow("ann", 1) && twin.Allow("ann", 1))
	var wg sync.WaitGroup
	defer wg.Wait()
	for range 40 {
		time.Sleep(time.Duration(rnd.Int64N(int64(s))))
		switch cost := 1 + rnd.IntN(3); rnd.IntN(5) {
		case 0, 1:
			if remaining(t, tried, "ann") < cost {
				continue // such a wait would only charge when the bucket has room
			}
			ctx, cancel := context.WithCancel(t.Context())
			wg.Go(func() { assert.Error(t, stack.Wait(ctx, call{user: "ann"}, cost)) })
			synctest.Wait()
			giveBack := instead(twin, cost)
			wg.Go(func() {
				time.Sleep(time.Duration(rnd.Int64N(int64(2 * s))))
				cancel()
				giveBack()
			})
			synctest.Wait()
		case 2:
			if r, _ := tried.Reserve(t.Context(), "ann", cost, 0); r.Allowed {
				require.True(t, twin.Allow("ann", cost))
			}
		case 3:
			if limit.Algorithm == ratelimit.AlgorithmSlidingLog {
				continue
			}
			require.NoError(t, tried.Adjust(context.Background(), "ann", cost))
			require.NoError(t, twin.Adjust(context.Background(), "ann", cost))
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

// Another call's settlement does not remove a waiter's spending at the same instant.
func TestOthersSettleWhileAWaitIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := ratelimit.TokenBucket(ratelimit.PerSecond(1), 20)
		tried := inBubble(limit)
		queue := inBubble(ratelimit.LeakyBucket(ratelimit.PerHour(1), 5))
		stack := stackOf(t, ratelimit.By(tried, byUser), ratelimit.By(queue, byUser))
		require.True(t, queue.Allow("ann", 1))
		before, err := tried.Reserve(t.Context(), "ann", 6, 0) // at the wait's instant
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { assert.ErrorIs(t, stack.Wait(ctx, call{user: "ann"}, 3), context.Canceled) })
		synctest.Wait()
		require.NoError(t, before.Settle(2))
		require.Equal(t, 20-2-3, remaining(t, tried, "ann"))
		time.Sleep(500 * ms)
		during, err := tried.Reserve(t.Context(), "ann", 5, 0)
		require.NoError(t, err)
		require.NoError(t, during.Settle(9))
		time.Sleep(500 * ms)
		require.Equal(t, 20-2-3-9+1, remaining(t, tried, "ann"))
		cancel()
		wg.Wait()
		require.Equal(t, 20-2-9+1, remaining(t, tried, "ann"), "the 3 are given back")
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

// The refund of a failed wait used to depend on other decisions and on an
// older wait. It was lower after 4096 decisions since the older wait began.
func TestOlderWaitsAndManyDecisionsChangeNothingThatAWaitGivesBack(t *testing.T) {
	for _, decisions := range []int{0, 10, 4090, 10_000} {
		synctest.Test(t, func(t *testing.T) {
			bucket := inBubble(ratelimit.TokenBucket(ratelimit.PerSecond(1), 20_000))
			queue := inBubble(ratelimit.LeakyBucket(ratelimit.PerHour(1), 5000))
			stack := stackOf(t, ratelimit.By(bucket, byUser), ratelimit.By(queue, byRoute))
			require.True(t, queue.Allow("", 1))
			var wg sync.WaitGroup
			waits := func(cost int) context.CancelFunc {
				ctx, cancel := context.WithCancel(t.Context())
				wg.Go(func() { assert.Error(t, stack.Wait(ctx, call{user: "ann"}, cost)) })
				synctest.Wait()
				return cancel
			}
			older := waits(1)
			for range decisions {
				time.Sleep(time.Nanosecond)
				require.True(t, bucket.Allow("ann", 1))
			}
			cancel := waits(100)
			for range 10 {
				time.Sleep(s)
				require.True(t, bucket.Allow("ann", 1))
			}
			before := remaining(t, bucket, "ann")
			cancel()
			synctest.Wait()
			assert.Equal(t, before+100, remaining(t, bucket, "ann"), "as if they had never been spent")
			older()
			wg.Wait()
		})
	}
}

// Even if a Wait tries several times, its observers receive one decision.
func TestAStacksWaitIsReportedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events []ratelimit.Event[string]
		bucket := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket(ratelimit.PerSecond(1), 1), &ratelimit.Options[string]{
			OnDecision: func(e ratelimit.Event[string]) { events = append(events, e) },
		}))
		queue := inBubble(ratelimit.LeakyBucket(ratelimit.PerHour(1), 5))
		require.True(t, queue.Allow("ann", 1))
		stack := stackOf(t, ratelimit.By(bucket, byUser), ratelimit.By(queue, byUser))
		spend := func() {
			require.True(t, bucket.Allow("ann", 1))
			events = nil
		}
		spend()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { assert.ErrorIs(t, stack.Wait(ctx, call{user: "ann"}, 1), context.Canceled) })
		synctest.Wait()
		time.Sleep(s - 1)
		require.NoError(t, bucket.Adjust(context.Background(), "ann", 1)) // so that its next try is denied, too
		time.Sleep(2 * s)
		require.Empty(t, events)
		require.Equal(t, 0, remaining(t, bucket, "ann"), "it has been charged, and sleeps for the queue")
		cancel()
		wg.Wait()
		require.Len(t, events, 1)
		assert.False(t, events[0].Spent)
		assert.ErrorIs(t, events[0].Err, context.Canceled)
	})
}
