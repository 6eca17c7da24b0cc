package ratelimit_test

import (
	"context"
	"math"
	"net/netip"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/model"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// storm runs f in n concurrent goroutines, and returns when all are done.
func storm(n int, f func(i int)) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() { <-start; f(i) })
	}
	close(start)
	wg.Wait()
}

// meanwhile calls f again and again until stop is called.
func meanwhile(f func()) (stop func()) {
	var wg sync.WaitGroup
	var done atomic.Bool
	wg.Go(func() {
		for !done.Load() {
			f()
			runtime.Gosched()
		}
	})
	return func() { done.Store(true); wg.Wait() }
}

func hammered(t *testing.T, l ratelimit.Limit, o ratelimit.Options[string]) (*ratelimit.Keyed[string], *testClock) {
	clock := &testClock{}
	o.Clock = clock
	limiter, err := ratelimit.New(l, &o)
	require.NoError(t, err)
	return limiter, clock
}

func TestThousandGoroutinesOnOneKeyGetTheCapacityExactly(t *testing.T) {
	for _, l := range model.Five(ratelimit.PerSecond(777)) {
		t.Run(l.Algorithm.String(), func(t *testing.T) {
			limiter, clock := hammered(t, l, ratelimit.Options[string]{})
			for range 3 { // each with a fresh key
				var admitted atomic.Int64
				storm(1000, func(i int) {
					for n := 1; n <= 3; n++ {
						if limiter.Allow("k", n) {
							admitted.Add(int64(n))
						}
					}
				})
				for limiter.Allow("k", 1) {
					admitted.Add(1)
				}
				require.EqualValues(t, 777, admitted.Load())
				clock.now.Add(int64(2 * time.Second))
			}
		})
	}
}

func TestThousandGoroutinesOnManyKeysGetEachCapacityExactly(t *testing.T) {
	limiter, _ := hammered(t, ratelimit.TokenBucket(ratelimit.PerSecond(5), 5), ratelimit.Options[string]{})
	const keys = 100
	var admitted [keys]atomic.Int64
	storm(1000, func(i int) {
		for n := range keys {
			k := (i + n) % keys
			if d, err := limiter.Take(context.Background(), strconv.Itoa(k), 1); err == nil && d.Allowed {
				admitted[k].Add(1)
			}
		}
	})
	for k := range admitted {
		require.EqualValues(t, 5, admitted[k].Load(), k)
	}
	require.Equal(t, keys, limiter.Stats().Keys)
}

// Some limiters' sweeps forget spending that still counts, or lose charges to an entry found before the sweep.
func TestSweepAndPeekLoseNoCharge(t *testing.T) {
	for _, l := range model.Five(ratelimit.PerDay(500)) {
		t.Run(l.Algorithm.String(), func(t *testing.T) {
			limiter, _ := hammered(t, l, ratelimit.Options[string]{})
			defer meanwhile(func() { limiter.Sweep() })()
			defer meanwhile(func() { _, _ = limiter.Peek(context.Background(), "k", 500) })()
			var admitted atomic.Int64
			storm(100, func(int) {
				for range 20 {
					if limiter.Allow("k", 1) {
						admitted.Add(1)
					}
				}
			})
			require.EqualValues(t, 500, admitted.Load())
		})
	}
}

// A key swept away whenever it is fresh has one budget at each instant.
func TestKeySweptAwayAllTheTimeHasOneBudget(t *testing.T) {
	limiter, clock := hammered(t, ratelimit.TokenBucket(ratelimit.Per(1, 10), 1), ratelimit.Options[string]{})
	defer meanwhile(func() { limiter.Sweep() })()
	for range 300 {
		var admitted atomic.Int64
		storm(8, func(int) {
			if limiter.Allow("k", 1) {
				admitted.Add(1)
			}
		})
		require.EqualValues(t, 1, admitted.Load())
		clock.now.Add(10)
	}
}

func TestResetGivesOneBudgetEach(t *testing.T) {
	limiter, _ := hammered(t, ratelimit.FixedWindow(ratelimit.PerDay(10)), ratelimit.Options[string]{})
	var admitted, resets atomic.Int64
	storm(50, func(i int) {
		for n := range 200 {
			if i == 0 && n%10 == 0 {
				limiter.Reset(context.Background(), "k")
				resets.Add(1)
			} else if limiter.Allow("k", 1) {
				admitted.Add(1)
			}
		}
	})
	require.LessOrEqual(t, admitted.Load(), 10*(resets.Load()+1))
	require.GreaterOrEqual(t, admitted.Load(), int64(10))
}

// crowd makes many keys compete for few places, and returns the sum of the admitted costs.
func crowd(t *testing.T, limiter *ratelimit.Keyed[string], maxKeys, keys int) (admitted int64) {
	var sum, over atomic.Int64
	stop := meanwhile(func() {
		limiter.Sweep()
		over.Store(max(over.Load(), int64(limiter.Stats().Keys)))
	})
	storm(16, func(i int) {
		for n := range 3000 {
			if limiter.Allow(strconv.Itoa((n*(2*i+1)+i)%keys), 1) {
				sum.Add(1)
			}
			over.Store(max(over.Load(), int64(limiter.Stats().Keys)))
		}
	})
	stop()
	require.LessOrEqual(t, over.Load(), int64(maxKeys))
	require.Equal(t, limiter.Stats().Keys, limiter.Stats().Keys)
	return sum.Load()
}

func TestEvictionForgetsKeysAndCountsThem(t *testing.T) {
	many := 5000
	if testsize.Race {
		many = 500
	}
	for _, maxKeys := range []int{1, 2, 50, many} {
		t.Run(strconv.Itoa(maxKeys), func(t *testing.T) {
			limiter, _ := hammered(t, ratelimit.SlidingLog(ratelimit.PerDay(2)), ratelimit.Options[string]{MaxKeys: maxKeys})
			admitted := crowd(t, limiter, maxKeys, 3*maxKeys)
			stats := limiter.Stats()
			require.Zero(t, stats.Expired, "none was fresh")
			require.LessOrEqual(t, admitted, 2*int64(stats.Evicted+uint64(stats.Keys)), "two budgets for a key")
			require.LessOrEqual(t, stats.EvictedThrottled, stats.Evicted)
		})
	}
}

func TestFullTableThatRefusesForgetsNothing(t *testing.T) {
	for _, maxKeys := range []int{1, 2, 50, 5000} {
		t.Run(strconv.Itoa(maxKeys), func(t *testing.T) {
			limiter, _ := hammered(t, ratelimit.SlidingLog(ratelimit.PerDay(2)), ratelimit.Options[string]{MaxKeys: maxKeys, OnFull: ratelimit.RefuseNew})
			admitted := crowd(t, limiter, maxKeys, 3*maxKeys)
			stats := limiter.Stats()
			require.Equal(t, maxKeys, stats.Keys, "exactly as many fit")
			require.LessOrEqual(t, admitted, 2*int64(maxKeys))
			require.Zero(t, stats.Evicted)
			require.Positive(t, stats.Refused)
		})
	}
}

func TestBoundHoldsWhileTheClockMovesAndKeysAreSwept(t *testing.T) {
	limiter, clock := hammered(t, ratelimit.TokenBucket(ratelimit.PerSecond(1000), 50), ratelimit.Options[string]{})
	defer meanwhile(func() { clock.now.Add(1000); limiter.Sweep() })()
	var admitted atomic.Int64
	storm(8, func(int) {
		for range 5000 {
			if limiter.Allow("k", 1) {
				admitted.Add(1)
			}
		}
	})
	elapsed := clock.now.Load()
	require.LessOrEqual(t, admitted.Load(), 50+elapsed*1000/int64(time.Second))
	require.GreaterOrEqual(t, admitted.Load(), int64(50))
}

// Concurrent bookings, settlements and cancellations add up.
func TestSettlingFromAllSidesAddsUp(t *testing.T) {
	for _, l := range model.Five(ratelimit.PerDay(10_000)) {
		if l.Algorithm == ratelimit.AlgorithmLeakyBucket {
			continue // a cost does not come back after it has left a queue
		}
		t.Run(l.Algorithm.String(), func(t *testing.T) {
			limiter, _ := hammered(t, l, ratelimit.Options[string]{})
			storm(100, func(i int) {
				for range 5 {
					r, err := limiter.Reserve(context.Background(), "k", 10, 0)
					if err == nil {
						go r.Settle(7) // only the first of the two counts
						r.Settle(7)
					}
					if r, err = limiter.Reserve(context.Background(), "k", 10, 0); err == nil {
						r.Cancel()
					}
				}
			})
			d, err := limiter.Peek(context.Background(), "k", 1)
			require.NoError(t, err)
			require.Equal(t, 10_000-100*5*7, d.Remaining)
		})
	}
}

// ---- bugs of other limiters ----

// swinging returns t0 and t0 + 1 ms in turn, like readings taken before a lock.
type swinging struct{ n atomic.Int64 }

func (c *swinging) Now() time.Duration { return time.Duration(c.n.Add(1)%2) * time.Millisecond }

func TestReadingsThatStepBackMintNothing(t *testing.T) {
	for _, l := range model.Five(ratelimit.PerSecond(1000)) {
		t.Run(l.Algorithm.String(), func(t *testing.T) {
			limiter, err := ratelimit.New(l, &ratelimit.Options[string]{Clock: &swinging{}})
			require.NoError(t, err)
			var admitted atomic.Int64
			storm(20, func(int) {
				for range 1000 {
					if limiter.Allow("k", 1) {
						admitted.Add(1)
					}
				}
			})
			require.LessOrEqual(t, admitted.Load(), int64(1001))
			require.GreaterOrEqual(t, admitted.Load(), int64(1000))
		})
	}
}

func TestNegativeCostMintsNothing(t *testing.T) {
	for _, l := range model.Five(ratelimit.PerDay(10)) {
		r := newRig(t, l)
		require.True(t, r.limiter.Allow("k", 10))
		for _, cost := range []int{-1, -5, -10, -1 << 31} {
			require.False(t, r.limiter.Allow("k", cost))
			d, err := r.limiter.Take(context.Background(), "k", cost)
			require.ErrorIs(t, err, ratelimit.ErrNegativeCost)
			require.ErrorContains(t, err, strconv.Itoa(cost))
			require.False(t, d.Allowed)
		}
		require.False(t, r.limiter.Allow("k", 1))
	}
}

func TestFastRateAdmitsItsBurstAtOneInstant(t *testing.T) {
	r := newRig(t, ratelimit.TokenBucket(ratelimit.PerSecond(model.Whole(1e12)), 1))
	require.True(t, r.limiter.Allow("k", 1))
	require.False(t, r.limiter.Allow("k", 1))
	r.clock.now.Add(1)
	require.True(t, r.limiter.Allow("k", 1))
	require.False(t, r.limiter.Allow("k", 1))
}

func TestLargeBurstIsNotOffByOne(t *testing.T) {
	burst := model.Whole(1<<53 + 2)
	r := newRig(t, ratelimit.TokenBucket(ratelimit.PerSecond(burst/1000), burst))
	require.True(t, r.limiter.Allow("k", burst-1))
	require.True(t, r.limiter.Allow("k", 1))
	require.False(t, r.limiter.Allow("k", 1))
}

func TestCostFarAboveTheCapacityIsNever(t *testing.T) {
	for _, l := range model.Five(ratelimit.PerDay(1)) {
		for _, cost := range []int{2, 213_504, 1<<31 - 1, model.Whole(1 << 62)} {
			r := newRig(t, l)
			d, err := r.limiter.Take(context.Background(), "k", cost)
			require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
			require.False(t, d.Allowed)
			require.Zero(t, d.RetryAfter, "retrying is of no use")
			require.Zero(t, r.limiter.Stats().Keys)
		}
	}
}

func TestSlowRateAdmitsAFreshKey(t *testing.T) {
	_, err := ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerDay(1), 200_000), nil)
	require.ErrorIs(t, err, ratelimit.ErrInvalidLimit, "547 years")
	r := newRig(t, ratelimit.TokenBucket(ratelimit.PerDay(1), 36_000))
	require.True(t, r.limiter.Allow("k", 36_000))
	require.False(t, r.limiter.Allow("k", 1))
}

func TestPeekingNeverConsumes(t *testing.T) {
	limiter, _ := hammered(t, ratelimit.TokenBucket(ratelimit.PerDay(100), 100), ratelimit.Options[string]{})
	storm(100, func(int) {
		for range 100 {
			_, _ = limiter.Peek(context.Background(), "k", 1)
		}
	})
	require.Zero(t, limiter.Stats().Keys)
	require.True(t, limiter.Allow("k", 100))
}

func TestIdleKeyKeepsItsDailyQuota(t *testing.T) {
	for _, l := range model.Five(ratelimit.PerDay(2)) {
		limiter, clock := hammered(t, l, ratelimit.Options[string]{IdleTTL: time.Millisecond})
		require.True(t, limiter.Allow("k", 2))
		clock.now.Store(int64(time.Hour))
		require.Zero(t, limiter.Sweep())
		for i := range 100 {
			limiter.Allow("other"+strconv.Itoa(i), 1)
		}
		require.False(t, limiter.Allow("k", 1))
	}
}

func TestDeniedCostIsNotCharged(t *testing.T) {
	for _, l := range model.Five(ratelimit.PerDay(10)) {
		r := newRig(t, l)
		require.True(t, r.limiter.Allow("k", 7))
		for range 100 {
			require.False(t, r.limiter.Allow("k", 4))
		}
		require.True(t, r.limiter.Allow("k", 3))
	}
}

func TestInventedKeysDoNotFlushAThrottledOne(t *testing.T) {
	testsize.Arithmetic(t)
	for _, capacity := range []int{1, 5} {
		for _, l := range model.Five(ratelimit.PerDay(capacity)) {
			limiter, clock := hammered(t, l, ratelimit.Options[string]{MaxKeys: 64})
			require.True(t, limiter.Allow("attacker", capacity))
			require.False(t, limiter.Allow("attacker", 1))
			for i := range 10_000 {
				clock.now.Add(1000)
				limiter.Allow(strconv.Itoa(i), 1)
				require.LessOrEqual(t, limiter.Stats().Keys, 64)
			}
			require.False(t, limiter.Allow("attacker", 1), "%v", l)
			require.Zero(t, limiter.Stats().EvictedThrottled)
		}
	}
}

func TestMappedAddressesDoNotShareAKey(t *testing.T) {
	limiter, err := ratelimit.New[netip.Addr](ratelimit.FixedWindow(ratelimit.PerDay(1)), &ratelimit.Options[netip.Addr]{Clock: &testClock{}})
	require.NoError(t, err)
	for _, text := range []string{"::ffff:1.2.3.4", "::ffff:1.2.3.5", "1.2.3.4", "::1", "fe80::1%eth0", "fe80::1%eth1", "fe80::1"} {
		require.True(t, limiter.Allow(netip.MustParseAddr(text), 1), text)
		require.False(t, limiter.Allow(netip.MustParseAddr(text), 1), text)
	}
	require.True(t, limiter.Allow(netip.Addr{}, 1))
	require.Equal(t, 8, limiter.Stats().Keys)
}

func TestNoGoroutineIsLeftOver(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 100 {
		limiter := ratelimit.Must(ratelimit.New[int](ratelimit.TokenBucket(ratelimit.PerSecond(1), 1), nil))
		for key := range 100 {
			limiter.Allow(key, 1)
		}
		limiter.Sweep()
	}
	require.LessOrEqual(t, runtime.NumGoroutine(), before)
}

func TestKeysThatComeOnceAreForgotten(t *testing.T) {
	testsize.Arithmetic(t)
	limiter, clock := hammered(t, ratelimit.TokenBucket(ratelimit.PerSecond(10), 10), ratelimit.Options[string]{})
	for i := range 200_000 {
		clock.now.Add(int64(time.Second))
		limiter.Allow(strconv.Itoa(i), 1)
	}
	require.Less(t, limiter.Stats().Keys, 200, "as many as came in the last minute, or so")
	require.Zero(t, limiter.Stats().Evicted)
}

// A fresh leaky bucket accepts a cost even if the caller may book very far ahead.
// For example, Wait books up to MaxInt64 ahead if its context has no deadline.
func TestLeakyBucketBooksAheadOnAClockThatReadsBelowZero(t *testing.T) {
	r := newRig(t, ratelimit.LeakyBucket(ratelimit.PerSecond(4), 4))
	r.clock.now.Store(-33)
	res, err := r.limiter.Reserve(context.Background(), "k", 1, time.Duration(math.MaxInt64))
	require.NoError(t, err)
	require.True(t, res.Allowed)
	require.NoError(t, r.limiter.Wait(context.Background(), "other", 1))
}

// A debt is a number of 64 bits, but 100 years at 3 units/ns are above MaxInt64.
func TestDebtIsKeptAtRatesAroundThreeUnitsANanosecond(t *testing.T) {
	r := newRig(t, ratelimit.TokenBucket(ratelimit.Per(3, 1), 19))
	require.NoError(t, r.limiter.Adjust(context.Background(), "k", 60))
	d, err := r.limiter.Peek(context.Background(), "k", 1)
	require.NoError(t, err)
	require.Equal(t, 20*time.Nanosecond, d.ResetAfter)
}

// Instants are whole nanoseconds, but positions in the queue are not. After
// a cancellation, a new charge must not come later than the cancelled one.
func TestCancellingInALeakyBucketDelaysNoOtherCaller(t *testing.T) {
	r := newRig(t, ratelimit.LeakyBucket(ratelimit.Per(6, 38), 3))
	ctx := context.Background()
	first, err := r.limiter.Reserve(ctx, "k", 2, 0)
	require.NoError(t, err)
	second, err := r.limiter.Reserve(ctx, "k", 1, time.Minute) // it leaves at 12⅔, and its cost is regained at 19
	require.NoError(t, err)
	require.True(t, second.Allowed)
	before, err := r.limiter.Take(ctx, "k", 3)
	require.NoError(t, err)
	require.Equal(t, 19*time.Nanosecond, before.RetryAfter)

	r.clock.now.Store(4)
	first.Cancel()
	r.clock.now.Store(19)
	require.True(t, r.limiter.Allow("k", 3), "denied when it was told to retry, though nothing was spent since")
}

// A refund after a cost has left the queue only moves the queue's end. The end has fractions of a nanosecond.
func TestRefundInALeakyBucketLeavesLaterWorkItsSpace(t *testing.T) {
	r := newRig(t, ratelimit.LeakyBucket(ratelimit.Per(6, 1), 12))
	ctx := context.Background()
	require.True(t, r.limiter.Allow("k", 9)) // it drains until 1½
	early, err := r.limiter.Reserve(ctx, "k", 2, time.Minute)
	require.NoError(t, err)
	require.Equal(t, 2*time.Nanosecond, early.Delay) // it drains until 1⅚

	r.clock.now.Store(2)
	d, err := r.limiter.Take(ctx, "k", 1) // it drains from 2 until 2⅙
	require.NoError(t, err)
	require.True(t, d.Allowed)
	early.Cancel()
	d, err = r.limiter.Peek(context.Background(), "k", 1)
	require.NoError(t, err)
	require.Equal(t, time.Nanosecond, d.Delay, "leaves together with what it has to queue behind")
}

// After the clock has stepped back, the booked instant is further away than the caller's maxDelay.
func TestNothingIsBookedBeyondMaxDelayByAClockThatSteppedBack(t *testing.T) {
	r := newRig(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 1))
	ctx := context.Background()
	r.clock.now.Store(int64(10 * time.Second))
	require.True(t, r.limiter.Allow("k", 1)) // the next cost fits at 11 s
	r.clock.now.Store(0)
	res, err := r.limiter.Reserve(ctx, "k", 1, 2*time.Second)
	require.NoError(t, err)
	require.False(t, res.Allowed && res.Delay > 2*time.Second, "allowed with %v", res.Delay)
}

// The regained part of an old debt may exceed MaxInt64.
func TestNewDebtInASlidingLogIsChargedHoweverMuchOfAnOldOneIsOver(t *testing.T) {
	r := newRig(t, ratelimit.SlidingLog(ratelimit.Per(model.Whole(1<<53), 1)))
	require.NoError(t, r.limiter.Adjust(context.Background(), "k", math.MaxInt))
	r.clock.now.Store(2000)
	require.NoError(t, r.limiter.Adjust(context.Background(), "k", math.MaxInt))
	d, err := r.limiter.Peek(context.Background(), "k", 1)
	require.NoError(t, err)
	require.Zero(t, d.Remaining)
}

// Bookings count as spent, but a debt behind them is still bounded.
func TestDebtBehindBookingsIsCapped(t *testing.T) {
	for _, limit := range []ratelimit.Limit{
		ratelimit.TokenBucket(ratelimit.PerDay(1), 1), ratelimit.LeakyBucket(ratelimit.PerDay(1), 1),
		ratelimit.FixedWindow(ratelimit.PerDay(1)), ratelimit.SlidingLog(ratelimit.PerDay(1)), ratelimit.SlidingCounter(ratelimit.PerDay(1)),
	} {
		for _, at := range []int64{0, 1 << 61, 1<<62 - 1} {
			r := newRig(t, limit)
			r.clock.now.Store(at)
			for range 3000 {
				_, err := r.limiter.Reserve(t.Context(), "k", 1, math.MaxInt64)
				require.NoError(t, err)
			}
			require.NoError(t, r.limiter.Adjust(context.Background(), "k", math.MaxInt))
			d, err := r.limiter.Take(t.Context(), "k", 1)
			require.NoError(t, err)
			require.False(t, d.Allowed)
			require.InDelta(t, 100, d.ResetAfter.Hours()/8766, 0.01, "%v at %d: years", limit, at)
		}
	}
}
