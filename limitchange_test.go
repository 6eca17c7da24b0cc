package ratelimit_test

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/model"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// makers make a limit of each algorithm: n an hour, and all of them at once for a fresh key.
var makers = []func(n int) ratelimit.Limit{
	func(n int) ratelimit.Limit { return ratelimit.TokenBucket(ratelimit.PerHour(n), n) },
	func(n int) ratelimit.Limit { return ratelimit.LeakyBucket(ratelimit.PerHour(n), n) },
	func(n int) ratelimit.Limit { return ratelimit.FixedWindow(ratelimit.PerHour(n)) },
	func(n int) ratelimit.Limit { return ratelimit.SlidingLog(ratelimit.PerHour(n)) },
	func(n int) ratelimit.Limit { return ratelimit.SlidingCounter(ratelimit.PerHour(n)) },
}

func TestSetLimitKeepsTheSpending(t *testing.T) {
	for _, from := range makers {
		for _, to := range makers {
			t.Run(fmt.Sprint(from(1).Algorithm, " to ", to(1).Algorithm), func(t *testing.T) {
				l, _ := newLimiter(t, from(50))
				require.True(t, l.Allow("k", 40))
				require.NoError(t, l.SetLimit(to(500)))
				assert.Equal(t, 460, remaining(t, l, "k"))
				require.True(t, l.Allow("k", 60))
				require.NoError(t, l.SetLimit(from(50)))
				d, err := l.Take(t.Context(), "k", 1)
				require.NoError(t, err)
				assert.False(t, d.Allowed)
				assert.Zero(t, d.Remaining)
				assert.Equal(t, from(50), d.Limit)
				assert.Positive(t, d.RetryAfter)
			})
		}
	}
}

func TestALoweredLimitIsDeniedUntilItIsRegained(t *testing.T) {
	for _, test := range []struct {
		limit        func(int) ratelimit.Limit
		retry, reset time.Duration
	}{
		{makers[0], 72 * s, time.Hour}, // the 50 units that count, at 50 an hour
		{makers[1], 72 * s, time.Hour},
		{makers[2], time.Hour, time.Hour},            // one window of units
		{makers[3], time.Hour, time.Hour},            // each spending keeps its age
		{makers[4], time.Hour + 72*s, 2 * time.Hour}, // one window, and its weight in the next one
	} {
		limit := test.limit(1)
		t.Run(limit.Algorithm.String(), func(t *testing.T) {
			l, clock := newLimiter(t, test.limit(500))
			require.True(t, l.Allow("k", 100))
			require.NoError(t, l.SetLimit(test.limit(50)))
			d, err := l.Take(t.Context(), "k", 1)
			require.NoError(t, err)
			assert.Equal(t, ratelimit.Decision{
				Limit: test.limit(50), RetryAfter: test.retry, ResetAfter: test.reset, NextAfter: test.retry,
			}, d)
			clock.set(test.retry - 1)
			assert.False(t, l.Allow("k", 1))
			clock.set(test.retry)
			assert.True(t, l.Allow("k", 1))
		})
	}
}

func TestFractionsOfAUnitCarryOver(t *testing.T) {
	l, clock := newLimiter(t, ratelimit.TokenBucket(ratelimit.PerSecond(3), 3))
	require.True(t, l.Allow("k", 3))
	clock.set(500 * ms) // 1.5 of the 3 units are regained
	require.NoError(t, l.SetLimit(ratelimit.TokenBucket(ratelimit.PerSecond(7), 3)))
	d, err := l.Take(t.Context(), "k", 1)
	require.NoError(t, err)
	assert.True(t, d.Allowed)
	assert.Zero(t, d.Remaining)
	assert.Equal(t, 357_142_858*time.Nanosecond, d.ResetAfter, "2.5 at 7 a second, rounded up")
}

func TestAKeyRegainsAtTheOldRateUntilItsNextDecision(t *testing.T) {
	l, clock := newLimiter(t, ratelimit.TokenBucket(ratelimit.PerSecond(10), 10))
	require.True(t, l.Allow("k", 10))
	require.NoError(t, l.SetLimit(ratelimit.TokenBucket(ratelimit.PerSecond(1), 10)))
	clock.set(500 * ms)
	assert.Equal(t, 5, remaining(t, l, "k"), "by the old rate")
	require.True(t, l.Allow("k", 1))
	clock.set(1500 * ms)
	assert.Equal(t, 5, remaining(t, l, "k"), "by the new one")
}

func TestAnEqualLimitChangesNothing(t *testing.T) {
	for _, limit := range everyAlgorithm {
		requested := 0
		clock := new(testClock)
		l := newWith(t, limit, ratelimit.Options[string]{Clock: clock, LimitFor: func(string) ratelimit.Limit {
			requested++
			return ratelimit.Limit{}
		}})
		require.True(t, l.Allow("k", 2))
		clock.advance(30 * ms)
		before, err := l.Peek(context.Background(), "k", 1)
		require.NoError(t, err)
		require.NoError(t, l.SetLimit(limit))
		after, err := l.Peek(context.Background(), "k", 1)
		require.NoError(t, err)
		assert.Equal(t, before, after)
		assert.Equal(t, 1, requested)
		require.NoError(t, l.SetLimit(limit.Named("renamed")))
		after, err = l.Peek(context.Background(), "k", 1)
		require.NoError(t, err)
		before.Limit.Name = "renamed"
		assert.Equal(t, before, after)
	}
}

func TestABadLimitIsRefusedAndChangesNothing(t *testing.T) {
	limit := ratelimit.FixedWindow(ratelimit.PerSecond(5))
	l, _ := newLimiter(t, limit)
	require.True(t, l.Allow("k", 2))
	err := l.SetLimit(ratelimit.FixedWindow(ratelimit.PerSecond(-5)))
	require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
	require.EqualError(t, err, "ratelimit: invalid limit: Rate.Units is -5, want at least 1")
	d, err := l.Take(t.Context(), "k", 1)
	require.NoError(t, err)
	assert.Equal(t, limit, d.Limit)
	assert.Equal(t, 2, d.Remaining)
}

func TestBookingsKeepTheirInstants(t *testing.T) {
	const m = time.Minute
	for _, test := range []struct {
		limit           func(int) ratelimit.Limit
		spend           int
		booked          time.Duration
		behind, without time.Duration // when one more fits at 5 an hour: after the booking, and if the booking was cancelled
	}{
		{makers[0], 10, 6 * m, 24 * m, 12 * m},  // 6 or 5 at 5 an hour, less the 4 that may be owed
		{makers[1], 5, 30 * m, 24 * m, 12 * m},  // until the queue has room again
		{makers[2], 10, 60 * m, 60 * m, 60 * m}, // one window of units, and 1 in the next
		{makers[3], 10, 60 * m, 60 * m, 60 * m}, // the 5 units leave at the same time
		{makers[4], 10, 66 * m, 84 * m, 72 * m}, // 5 count; 1 more in the second window
	} {
		t.Run(test.limit(1).Algorithm.String(), func(t *testing.T) {
			for _, cancel := range []bool{false, true} {
				l, _ := newLimiter(t, test.limit(10))
				require.True(t, l.Allow("k", test.spend))
				r, err := l.Reserve(t.Context(), "k", 1, 2*time.Hour)
				require.NoError(t, err)
				require.Equal(t, test.booked, r.Delay)
				require.NoError(t, l.SetLimit(test.limit(5)))
				want := test.behind
				if cancel {
					r.Cancel()
					want = test.without
				}
				next, err := l.Reserve(t.Context(), "k", 1, 9*time.Hour)
				require.NoError(t, err)
				assert.Equal(t, want, next.Delay+next.RetryAfter)
			}
		})
	}
}

func TestLimitForGivesEachKeyItsPlan(t *testing.T) {
	plans := map[string]ratelimit.Limit{
		"free":    ratelimit.TokenBucket(ratelimit.PerHour(1), 1).Named("free"),
		"pro":     ratelimit.SlidingLog(ratelimit.PerHour(10)).Named("pro"),
		"big":     ratelimit.Unlimited(),
		"banned":  ratelimit.Blocked(),
		"invalid": ratelimit.TokenBucket(ratelimit.PerHour(1), 0),
	}
	def := ratelimit.FixedWindow(ratelimit.PerHour(2))
	requested := map[string]int{}
	l := newWith(t, def, ratelimit.Options[string]{Clock: new(testClock), LimitFor: func(key string) ratelimit.Limit {
		requested[key]++
		return plans[key]
	}})
	for _, test := range []struct {
		key  string
		left int
	}{{"free", 0}, {"pro", 9}, {"big", math.MaxInt}, {"nobody", 1}} {
		d, err := l.Take(t.Context(), test.key, 1)
		require.NoError(t, err)
		assert.True(t, d.Allowed)
		assert.Equal(t, test.left, d.Remaining)
		if test.key != "nobody" {
			assert.Equal(t, plans[test.key], d.Limit)
		}
		_, _ = l.Take(t.Context(), test.key, 1)
	}
	assert.Equal(t, map[string]int{"free": 1, "pro": 1, "big": 1, "nobody": 1}, requested, "tracked keys are asked for once")
	_, err := l.Take(t.Context(), "banned", 1)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	assert.Equal(t, 3, l.Stats().Keys)
}

func TestABadLimitFromLimitForDenies(t *testing.T) {
	bad := ratelimit.TokenBucket(ratelimit.PerHour(1), -1)
	l := newWith(t, ratelimit.FixedWindow(ratelimit.PerHour(2)), ratelimit.Options[string]{
		Clock: new(testClock), LimitFor: func(string) ratelimit.Limit { return bad },
	})
	d, err := l.Take(t.Context(), "k", 1)
	require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
	require.EqualError(t, err, "ratelimit: Options.LimitFor: ratelimit: invalid limit: Burst is -1, want at least 1")
	assert.Zero(t, d)
	assert.False(t, l.Allow("k", 1))
	_, err = l.Peek(context.Background(), "k", 1)
	require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
	require.ErrorIs(t, l.Adjust(context.Background(), "k", 1), ratelimit.ErrInvalidLimit)
	require.ErrorIs(t, l.Wait(t.Context(), "k", 1), ratelimit.ErrInvalidLimit)
	assert.Zero(t, l.Stats().Keys)
	bad.Burst = 1
	assert.True(t, l.Allow("k", 1))
}

func TestRefreshCallsLimitForAgain(t *testing.T) {
	units, requested := 10, map[string]int{}
	l := newWith(t, ratelimit.FixedWindow(ratelimit.PerHour(2)), ratelimit.Options[string]{
		Clock: new(testClock), LimitFor: func(key string) ratelimit.Limit {
			requested[key]++
			return ratelimit.FixedWindow(ratelimit.PerHour(units))
		},
	})
	for _, key := range []string{"a", "b"} {
		require.True(t, l.Allow(key, 4))
	}
	units = 20
	assert.Equal(t, 6, remaining(t, l, "a"))
	l.Refresh("a", "never seen")
	assert.Equal(t, map[string]int{"a": 1, "b": 1}, requested, "lazily")
	assert.Equal(t, 16, remaining(t, l, "a"))
	require.True(t, l.Allow("a", 1))
	assert.Equal(t, 15, remaining(t, l, "a"))
	assert.Equal(t, 6, remaining(t, l, "b"))
	l.Refresh()
	assert.Equal(t, 16, remaining(t, l, "b"))
	assert.Equal(t, 15, remaining(t, l, "a"))
}

func TestAnUpgradeAndBackHandsOutNothing(t *testing.T) {
	plan := ratelimit.TokenBucket(ratelimit.PerDay(10), 10)
	free := plan
	l := newWith(t, plan, ratelimit.Options[string]{
		Clock: new(testClock), LimitFor: func(string) ratelimit.Limit { return plan },
	})
	require.True(t, l.Allow("k", 10))
	for _, other := range []ratelimit.Limit{ratelimit.Unlimited(), ratelimit.Blocked(), ratelimit.SlidingLog(ratelimit.PerDay(100))} {
		plan = other
		l.Refresh("k")
		_, err := l.Peek(context.Background(), "k", 1)
		if other == ratelimit.Blocked() {
			require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
		}
		assert.Equal(t, other != ratelimit.Blocked(), l.Allow("k", 1))
		plan = free
		l.Refresh("k")
		assert.False(t, l.Allow("k", 1), "after %v", other)
	}
}

func TestLimitForRunsOutsideEveryLock(t *testing.T) {
	var l *ratelimit.Keyed[string]
	limit := ratelimit.FixedWindow(ratelimit.PerHour(5))
	l = newWith(t, limit, ratelimit.Options[string]{
		Clock: new(testClock), LimitFor: func(key string) ratelimit.Limit {
			if len(key) < 3 {
				l.Allow(key+"+", 1) // this call, for another key, looks up its own limit
				l.Sweep()
				l.Reset(context.Background(), key)
				_ = l.SetLimit(limit)
				_ = l.Stats()
			}
			return ratelimit.Limit{}
		},
	})
	require.True(t, l.Allow("k", 1))
	assert.Equal(t, 3, l.Stats().Keys)
}

// While one goroutine changes the limits, the others must never get more than
// the larger limit allows. Each decision must follow one of the two limits.
func TestLimitsChangeUnderLoad(t *testing.T) {
	low, high := ratelimit.TokenBucket(ratelimit.PerDay(1), 1000), ratelimit.SlidingLog(ratelimit.PerDay(2000))
	var plan atomic.Pointer[ratelimit.Limit]
	plan.Store(&low)
	clock := new(testClock)
	l := newWith(t, low, ratelimit.Options[string]{Clock: clock, LimitFor: func(string) ratelimit.Limit { return *plan.Load() }})
	var allowed atomic.Int64
	var work, changes sync.WaitGroup
	stop := make(chan struct{})
	changes.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			plan.Store([]*ratelimit.Limit{&low, &high}[i%2])
			switch i % 3 {
			case 0:
				l.Refresh("k")
			case 1:
				l.Refresh()
			default:
				_ = l.SetLimit([]ratelimit.Limit{low, high}[i%2])
			}
		}
	})
	for range 4 {
		work.Go(func() {
			for range 4000 {
				d, err := l.Take(t.Context(), "k", 1)
				if err != nil || d.Limit != low && d.Limit != high {
					t.Error(d, err)
					return
				}
				if d.Allowed {
					allowed.Add(1)
				}
			}
		})
	}
	work.Wait()
	close(stop)
	changes.Wait()
	assert.LessOrEqual(t, allowed.Load(), int64(2000))
	assert.GreaterOrEqual(t, allowed.Load(), int64(1000))
	plan.Store(&high)
	l.Refresh("k")
	assert.Equal(t, 2000-int(allowed.Load()), remaining(t, l, "k"))
}

// A Refresh during a call to LimitFor must not be lost. Otherwise the key would keep the limit read before the Refresh.
func TestARefreshDuringLimitForIsNotLost(t *testing.T) {
	for _, known := range []bool{false, true} {
		units := 10
		var l *ratelimit.Keyed[string]
		during := func() {}
		l = newWith(t, ratelimit.FixedWindow(ratelimit.PerHour(2)), ratelimit.Options[string]{
			Clock: new(testClock), LimitFor: func(string) ratelimit.Limit {
				limit := ratelimit.FixedWindow(ratelimit.PerHour(units))
				during()
				return limit
			},
		})
		if known {
			require.True(t, l.Allow("k", 1))
			l.Refresh("k")
		}
		during = func() {
			during = func() {}
			units = 50
			l.Refresh("k")
		}
		d, err := l.Take(t.Context(), "k", 1)
		require.NoError(t, err)
		assert.Equal(t, 10, d.Limit.Rate.Units)
		d, err = l.Take(t.Context(), "k", 1)
		require.NoError(t, err)
		assert.Equal(t, 50, d.Limit.Rate.Units)
	}
}

func TestMoreLimitsThanArePlansAreKept(t *testing.T) {
	units := 0
	l := newWith(t, ratelimit.FixedWindow(ratelimit.PerHour(2)), ratelimit.Options[int]{
		Clock: new(testClock), LimitFor: func(int) ratelimit.Limit {
			units++
			return ratelimit.FixedWindow(ratelimit.PerHour(units))
		},
	})
	for key := range 10_000 {
		d, err := l.Take(t.Context(), key, 1)
		require.NoError(t, err)
		require.Equal(t, units-1, d.Remaining)
	}
}

// Refusing a cost that can never pass promises nothing about the new limit. So
// if the key is fresh, the call leaves the change pending and records no time.
func TestACostThatCanNeverPassLeavesAChangeOfLimitPendingForAFreshKey(t *testing.T) {
	for name, take := range map[string]func(t *testing.T, l *ratelimit.Keyed[string], cost int) error{
		"Keyed.Take": func(t *testing.T, l *ratelimit.Keyed[string], cost int) error {
			_, err := l.Take(t.Context(), "ann", cost)
			return err
		},
		"Keyed.Reserve": func(t *testing.T, l *ratelimit.Keyed[string], cost int) error {
			_, err := l.Reserve(t.Context(), "ann", cost, time.Hour)
			return err
		},
		"Layered.Take": func(t *testing.T, l *ratelimit.Keyed[string], cost int) error {
			_, err := stackOf(t, ratelimit.By(l, byUser)).Take(t.Context(), call{user: "ann"}, cost)
			return err
		},
		"Layered.Reserve": func(t *testing.T, l *ratelimit.Keyed[string], cost int) error {
			_, err := stackOf(t, ratelimit.By(l, byUser)).Reserve(t.Context(), call{user: "ann"}, cost, time.Hour)
			return err
		},
		"Layered.Wait": func(t *testing.T, l *ratelimit.Keyed[string], cost int) error {
			return stackOf(t, ratelimit.By(l, byUser)).Wait(t.Context(), call{user: "ann"}, cost)
		},
		"Layered.Take, because of another layer": func(t *testing.T, l *ratelimit.Keyed[string], _ int) error {
			tight := model.WithCost(ratelimit.By(l, byRoute), func(call) int { return 11 })
			_, err := stackOf(t, ratelimit.By(l, byUser), tight).Take(t.Context(), call{user: "ann", route: "/"}, 2)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			clock := new(testClock)
			l := onClock(t, clock, ratelimit.TokenBucket(ratelimit.PerSecond(1), 10))
			require.True(t, l.Allow("ann", 10))
			require.NoError(t, l.SetLimit(ratelimit.TokenBucket(ratelimit.PerSecond(4), 10)))
			clock.advance(time.Hour)
			require.ErrorIs(t, take(t, l, 11), ratelimit.ErrExceedsLimit)
			clock.advance(2*time.Second - time.Hour)
			require.True(t, l.Allow("ann", 1))
			assert.Equal(t, 1, remaining(t, l, "ann"), "it has regained at the old rate for two seconds")
			clock.advance(time.Second)
			assert.Equal(t, 5, remaining(t, l, "ann"), "and at the new one since")
		})
	}
}

// A sliding counter's previous window keeps the length in which it was counted. Spending that
// left this window before the limit changed does not count again, even if windows are longer now.
func TestACancelAfterAChangeToLongerWindowsGivesBackOnlyUnitsThatCount(t *testing.T) {
	l, clock := newLimiter(t, ratelimit.SlidingCounter(ratelimit.PerSecond(10)))
	early, err := l.Reserve(t.Context(), "k", 4, 0)
	require.NoError(t, err)
	require.True(t, l.Allow("k", 6))
	clock.set(1500 * ms)
	require.True(t, l.Allow("k", 4)) // the previous window still weighs 5
	clock.set(2500 * ms)
	require.True(t, l.Allow("k", 1)) // 4 are in the previous window, and the early spending no longer counts
	require.NoError(t, l.SetLimit(ratelimit.SlidingCounter(ratelimit.Per(10, 10*time.Second))))
	require.True(t, l.Allow("k", 1)) // puts the key under the new limit
	before := remaining(t, l, "k")
	require.NoError(t, early.Cancel())
	require.Equal(t, before, remaining(t, l, "k"))
}

// After the change, a cancellation still gives back spending counted in the current window.
func TestACancelAfterAChangeOfWindowsGivesBackTheCurrentWindow(t *testing.T) {
	for _, make := range makers[2:] {
		l, clock := newLimiter(t, make(10))
		r, err := l.Reserve(t.Context(), "k", 4, 0)
		require.NoError(t, err)
		clock.set(time.Minute)
		require.True(t, l.Allow("k", 1))
		limit := make(10)
		limit.Rate.Per *= 2
		require.NoError(t, l.SetLimit(limit))
		require.True(t, l.Allow("k", 1))
		require.NoError(t, r.Cancel())
		require.Equal(t, 8, remaining(t, l, "k"), limit)
	}
}

// A future booking is given back as a whole, under any limit.
func TestACancelOfABookingLeavesNoTraceAfterAChangeOfLimit(t *testing.T) {
	for _, from := range makers {
		for _, to := range makers {
			with, _ := newLimiter(t, from(10))
			without, _ := newLimiter(t, from(10))
			spend := 10
			if from(1).Algorithm == ratelimit.AlgorithmLeakyBucket {
				spend = 5 // leaves room to queue 3
			}
			require.True(t, with.Allow("k", spend))
			require.True(t, without.Allow("k", spend))
			r, err := with.Reserve(t.Context(), "k", 3, 24*time.Hour)
			require.NoError(t, err)
			require.Positive(t, r.Delay)
			for _, l := range []*ratelimit.Keyed[string]{with, without} {
				require.NoError(t, l.SetLimit(to(5)))
				_, err := l.Take(t.Context(), "k", 5) // applies the change to the key
				require.NoError(t, err)
			}
			require.NoError(t, r.Cancel())
			got, err := with.Peek(context.Background(), "k", 1)
			require.NoError(t, err)
			want, err := without.Peek(context.Background(), "k", 1)
			require.NoError(t, err)
			require.Equal(t, want, got, "%v to %v", from(10), to(5))
		}
	}
}

// A debt behind a booking stays behind it under the new limit.
func TestADebtBehindABookingOutlivesAChangeOfLimit(t *testing.T) {
	const debt = 1000
	per := ratelimit.PerSecond(1)
	all := []ratelimit.Limit{
		ratelimit.TokenBucket(per, 1), ratelimit.LeakyBucket(per, 3), ratelimit.FixedWindow(per),
		ratelimit.SlidingLog(per), ratelimit.SlidingCounter(per),
	}
	for _, from := range all {
		for _, to := range all {
			t.Run(fmt.Sprint(from.Algorithm, " to ", to.Algorithm), func(t *testing.T) {
				l, _ := newLimiter(t, from)
				require.True(t, l.Allow("k", 1))
				r, err := l.Reserve(t.Context(), "k", 1, time.Minute)
				require.NoError(t, err)
				require.True(t, r.Allowed)
				require.NoError(t, l.Adjust(context.Background(), "k", debt))
				require.NoError(t, l.SetLimit(to))
				for range 2 { // once before the change applies to the key, and once after
					d, err := l.Peek(context.Background(), "k", 1)
					require.NoError(t, err)
					require.False(t, d.Allowed)
					require.GreaterOrEqual(t, d.RetryAfter, (debt-2)*time.Second)
					require.False(t, l.Allow("k", 1))
				}
			})
		}
	}
}

// Before a change of limit reaches a key, Peek returns the decision that Take then makes, with any bookings, due or not.
func TestPeekBeforeAChangeHasReachedTheKeyAgreesWithTake(t *testing.T) {
	for _, from := range makers {
		for _, to := range makers {
			for _, at := range []time.Duration{1, 5 * time.Minute, 6 * time.Minute, 7 * time.Minute, 30 * time.Minute, time.Hour, 61 * time.Minute, 2 * time.Hour, 5 * time.Hour} {
				for i, units := range []int{5, 10, 20} {
					limit := to(units)
					limit.Rate.Per = []time.Duration{20 * time.Minute, time.Hour, 3 * time.Hour}[(i+int(at/time.Minute))%3]
					l, clock := newLimiter(t, from(10))
					require.True(t, l.Allow("k", 10))
					for _, n := range []int{1, 2, 10, 3} {
						_, err := l.Reserve(t.Context(), "k", n, 24*time.Hour)
						require.NoError(t, err)
					}
					require.NoError(t, l.SetLimit(limit))
					clock.set(at)
					want, err := l.Peek(context.Background(), "k", 1)
					require.NoError(t, err)
					got, err := l.Take(t.Context(), "k", 1)
					require.NoError(t, err)
					if want.Allowed {
						require.True(t, got.Allowed)
						continue
					}
					require.Equal(t, want, got, "%v to %v at %v", from(10), limit, at)
				}
			}
		}
	}
}

// On a clock past 92 years, instants and debts add up to more than 2^63 ns.
func TestASlowLimitDeniesOnAClockFarFromItsOrigin(t *testing.T) {
	for _, limit := range append(model.Saturated(), model.EdgeLimits()...) {
		for _, raw := range []int64{90 * model.Year, 93 * model.Year, 120 * model.Year, 146 * model.Year, math.MaxInt64} {
			r := newRig(t, limit)
			r.clock.now.Store(raw)
			require.True(t, r.limiter.Allow("k", limit.Capacity()), "%v at %d", limit, raw)
			require.NoError(t, r.limiter.Adjust(context.Background(), "k", math.MaxInt))
			for range 3 {
				require.False(t, r.limiter.Allow("k", 1), "%v at %d", limit, raw)
			}
		}
	}
}

// A booking ahead may take much longer to regain under a slower limit. The limiter must not forget such a booking.
func TestBookingsAreNotForgottenOnAClockFarFromItsOrigin(t *testing.T) {
	slow := model.Five(ratelimit.Per(1, time.Duration(model.Century)))
	for _, from := range model.Five(ratelimit.Per(1, time.Duration(10*model.Year))) {
		for _, to := range slow {
			for _, raw := range []int64{0, 93 * model.Year, 146 * model.Year, math.MaxInt64} {
				r := newRig(t, from)
				r.clock.now.Store(raw)
				for range 9 {
					_, err := r.limiter.Reserve(t.Context(), "k", 1, math.MaxInt64)
					require.NoError(t, err)
				}
				require.NoError(t, r.limiter.SetLimit(to))
				for range 2 {
					require.False(t, r.limiter.Allow("k", 1), "%v to %v at %d", from, to, raw)
					require.Zero(t, r.limiter.Sweep(), "%v to %v at %d", from, to, raw)
				}
				d, err := r.limiter.Peek(context.Background(), "k", 1)
				require.NoError(t, err)
				require.GreaterOrEqual(t, d.RetryAfter, time.Duration(9*model.Year), "%v to %v at %d", from, to, raw)
				require.GreaterOrEqual(t, d.ResetAfter, d.RetryAfter, "%v to %v at %d", from, to, raw)
			}
		}
	}
}

// A reservation charged after a change of limit gives all its units back when cancelled.
func TestACancelUnderTheLimitOfItsChargeIsWhole(t *testing.T) {
	for _, make := range makers {
		l, _ := newLimiter(t, make(50))
		require.True(t, l.Allow("k", 1))
		require.NoError(t, l.SetLimit(make(10)))
		require.True(t, l.Allow("k", 1))
		r, err := l.Reserve(t.Context(), "k", 3, 0)
		require.NoError(t, err)
		if r.Delay > 0 || !r.Allowed {
			r, err = l.Reserve(t.Context(), "k", 3, 24*time.Hour) // for a leaky bucket, this reservation queues
			require.NoError(t, err)
		}
		require.Equal(t, 5, remaining(t, l, "k"), make(10))
		require.NoError(t, r.Cancel())
		require.Equal(t, 8, remaining(t, l, "k"), make(10))
	}
}

// A fixed window counts whole units, so a part of a unit counts as one.
func TestAFractionOfAUnitCarriesOverAsOne(t *testing.T) {
	l, clock := newLimiter(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 3))
	require.True(t, l.Allow("k", 3))
	clock.set(500 * ms)
	require.NoError(t, l.SetLimit(ratelimit.FixedWindow(ratelimit.PerHour(10))))
	require.Equal(t, 7, remaining(t, l, "k"))
}

// The previous window's present weight counts as spent.
func TestTheWeightOfTheWindowBeforeCarriesOver(t *testing.T) {
	for _, make := range makers {
		l, clock := newLimiter(t, ratelimit.SlidingCounter(ratelimit.PerHour(10)))
		require.True(t, l.Allow("k", 8))
		clock.set(90 * time.Minute)
		require.True(t, l.Allow("k", 1))
		require.NoError(t, l.SetLimit(make(20)))
		require.Equal(t, 15, remaining(t, l, "k"), make(20)) // 4 of the 8, plus 1
	}
}

func TestAGrantTakesFromThisWindowFirst(t *testing.T) {
	l, clock := newLimiter(t, ratelimit.SlidingCounter(ratelimit.PerHour(10)))
	require.True(t, l.Allow("k", 10))
	clock.set(90 * time.Minute)
	require.True(t, l.Allow("k", 3)) // 5 of the 10 still count beside these 3
	require.NoError(t, l.Adjust(context.Background(), "k", -5))
	require.Equal(t, 7, remaining(t, l, "k"))
	clock.set(105 * time.Minute)
	require.Equal(t, 8, remaining(t, l, "k"), "6 in the window before, of which a quarter counts")
}

// Spending that left the old window before the change does not return in a longer one.
func TestALongerWindowDoesNotBringBackUnitsThatHaveLeft(t *testing.T) {
	l, clock := newLimiter(t, ratelimit.SlidingLog(ratelimit.PerSecond(10)))
	require.True(t, l.Allow("k", 4))
	clock.set(500 * ms)
	require.True(t, l.Allow("k", 3))
	clock.set(time.Second)
	require.NoError(t, l.SetLimit(ratelimit.SlidingLog(ratelimit.PerHour(10))))
	require.Equal(t, 7, remaining(t, l, "k"))
	require.True(t, l.Allow("k", 7))
	require.Zero(t, remaining(t, l, "k"))
}

func TestAGrantTakesFromALogsDebtFirst(t *testing.T) {
	l, _ := newLimiter(t, ratelimit.SlidingLog(ratelimit.PerSecond(10)))
	require.True(t, l.Allow("k", 10))
	require.NoError(t, l.Adjust(context.Background(), "k", 5))
	require.NoError(t, l.Adjust(context.Background(), "k", -7))
	require.Equal(t, 2, remaining(t, l, "k"))
}

// The parts of a log's debt whose windows have ended are regained. Only the rest carries over.
func TestOnlyTheRestOfALogsDebtCarriesOver(t *testing.T) {
	l, clock := newLimiter(t, ratelimit.SlidingLog(ratelimit.PerSecond(10)))
	require.NoError(t, l.Adjust(context.Background(), "k", 35)) // 10 at 0, 1 and 2 s, and 5 at 3 s
	clock.set(2500 * ms)
	require.NoError(t, l.SetLimit(ratelimit.FixedWindow(ratelimit.PerHour(100))))
	require.Equal(t, 85, remaining(t, l, "k"))
}

// A debt's part due when the limit changes was spent under the old limit.
func TestADebtThatIsDueIsSpentUnderTheOldLimit(t *testing.T) {
	l, clock := newLimiter(t, ratelimit.SlidingLog(ratelimit.PerSecond(10)))
	require.NoError(t, l.Adjust(context.Background(), "k", 25)) // 10 at 0 and 1 s, and 5 at 2 s
	clock.set(500 * ms)
	require.False(t, l.Allow("k", 1))
	clock.set(time.Second)
	require.NoError(t, l.SetLimit(ratelimit.SlidingLog(ratelimit.PerSecond(5))))
	for range 2 {
		d, err := l.Take(t.Context(), "k", 1)
		require.NoError(t, err)
		require.Equal(t, 2*time.Second, d.RetryAfter)
	}
}

// A grant reduces the spending and no booking, so a booking's cancellation gives everything back.
func TestAGrantLeavesABookingWhole(t *testing.T) {
	l, clock := newLimiter(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 10))
	require.True(t, l.Allow("k", 10))
	r, err := l.Reserve(t.Context(), "k", 3, time.Minute)
	require.NoError(t, err)
	require.NoError(t, l.Adjust(context.Background(), "k", -5))
	require.Zero(t, remaining(t, l, "k"), "nobody overtakes the booking")
	clock.set(time.Second)
	require.NoError(t, r.Cancel())
	require.Equal(t, 6, remaining(t, l, "k")) // 10 were spent, 5 granted, and 1 is regained: 6 of 10

	_, err = l.Reserve(t.Context(), "k", 7, time.Minute)
	require.NoError(t, err)
	require.NoError(t, l.Adjust(context.Background(), "k", -6))
	clock.set(2 * time.Second)
	require.Equal(t, 5, remaining(t, l, "k"), "4 were spent, so the booking has lost 2")
}

// Renaming the limit changes nothing, not even for earlier reservations.
func TestACancelAfterALimitWasRenamedIsWhole(t *testing.T) {
	for _, make := range makers {
		l, _ := newLimiter(t, make(10))
		r, err := l.Reserve(t.Context(), "k", 3, 0)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		require.NoError(t, l.SetLimit(make(10).Named("renamed")))
		_, err = l.Take(t.Context(), "k", 8)
		require.NoError(t, err)
		require.NoError(t, r.Cancel())
		require.Equal(t, 10, remaining(t, l, "k"), make(10))
	}
}

func TestWindowsKeepTheirBeginningsWhenTheAlgorithmChanges(t *testing.T) {
	const half = 30 * time.Minute
	fixed, counter := makers[2], makers[4]
	for _, test := range []struct {
		from, to func(int) ratelimit.Limit
		reset    time.Duration
	}{{fixed, counter, 3 * half}, {counter, fixed, half}} {
		l, clock := newLimiter(t, test.from(10))
		require.True(t, l.Allow("k", 5))
		clock.set(half)
		require.NoError(t, l.SetLimit(test.to(10)))
		d, err := l.Take(t.Context(), "k", 1)
		require.NoError(t, err)
		require.Equal(t, 4, d.Remaining)
		require.Equal(t, test.reset, d.ResetAfter)
	}
}

func TestADowngradedCustomerWaitsUntilTheEndOfTheMonth(t *testing.T) {
	clock := new(wallClock)
	clock.setWall(time.Date(2026, 11, 10, 12, 0, 0, 0, time.UTC))
	month := ratelimit.Month("UTC", 1)
	l := newWith(t, ratelimit.Calendar(1_000_000, month), ratelimit.Options[string]{Clock: clock})
	require.True(t, l.Allow("ann", 500_000))
	end := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC).Sub(clock.Wall().Round(0))

	require.NoError(t, l.SetLimit(ratelimit.Calendar(10_000, month)))
	d, err := l.Take(t.Context(), "ann", 1)
	require.NoError(t, err)
	assert.Equal(t, []any{false, 0, end, end}, []any{d.Allowed, d.Remaining, d.RetryAfter, d.ResetAfter})

	require.NoError(t, l.SetLimit(ratelimit.Calendar(1_000_000, month))) // an upgrade applies at once, and refills nothing
	assert.Equal(t, 500_000, remaining(t, l, "ann"))

	require.NoError(t, l.SetLimit(ratelimit.Calendar(10_000, month)))
	assert.False(t, l.Allow("ann", 1))
	clock.advance(end)
	assert.True(t, l.Allow("ann", 10_000))
	require.NoError(t, l.SetLimit(ratelimit.Calendar(1_000_000, month)))
	assert.Equal(t, 990_000, remaining(t, l, "ann"), "last month is over")
}

func TestALoweredLimitIsOpenAgainAfterItsOwnRefill(t *testing.T) {
	for _, test := range []struct {
		from, to ratelimit.Limit
		spent    int
	}{
		{ratelimit.SlidingCounter(ratelimit.PerMinute(1000)), ratelimit.FixedWindow(ratelimit.PerHour(10)), 1000},
		{ratelimit.TokenBucket(ratelimit.PerSecond(100), 200), ratelimit.TokenBucket(ratelimit.PerSecond(1), 2), 200},
		{ratelimit.LeakyBucket(ratelimit.PerSecond(100), 200), ratelimit.LeakyBucket(ratelimit.PerSecond(1), 2), 200},
		{ratelimit.SlidingLog(ratelimit.PerHour(1000)), ratelimit.SlidingLog(ratelimit.PerMinute(10)), 1000},
	} {
		l, clock := newLimiter(t, test.from)
		require.True(t, l.Allow("k", test.spent))
		require.NoError(t, l.SetLimit(test.to))
		d, err := l.Take(t.Context(), "k", 1)
		require.NoError(t, err)
		assert.False(t, d.Allowed && d.Delay == 0, "%v", test.to)
		assert.LessOrEqual(t, d.ResetAfter, test.to.RefillTime(), "%v to %v", test.from, test.to)
		clock.advance(d.ResetAfter)
		assert.Equal(t, test.to.Capacity(), remaining(t, l, "k"), "%v", test.to)
	}
}

func TestATableKeepsAKeyForAsLongAsALoweredLimitHasSetAside(t *testing.T) {
	from, to := ratelimit.FixedWindow(ratelimit.PerHour(100)), ratelimit.FixedWindow(ratelimit.PerMinute(10))
	l, clock := newLimiter(t, from)
	require.True(t, l.Allow("k", 100))
	require.NoError(t, l.SetLimit(to))
	assert.False(t, l.Allow("k", 1))
	clock.advance(30 * time.Minute)
	assert.Equal(t, 10, remaining(t, l, "k"), "fresh under the limit in force")
	assert.Zero(t, l.Sweep())
	restored := newWith(t, to, ratelimit.Options[string]{Clock: clock})
	require.NoError(t, restored.Restore(l.Saved(), 0))
	assert.Equal(t, 1, restored.Stats().Keys)
	for _, l := range []*ratelimit.Keyed[string]{l, restored} {
		require.NoError(t, l.SetLimit(from))
		assert.Equal(t, 10, remaining(t, l, "k"), "90 are set aside for another half hour, and 10 counted")
	}
	clock.advance(30*time.Minute + time.Nanosecond)
	require.NoError(t, l.SetLimit(to))
	clock.advance(time.Hour)
	assert.Equal(t, 1, l.Sweep())
}

// A refund may take all units set aside by a lowered limit. Then the instant of their expiry is dropped, too.
func TestUnitsSetAsideAfterARefundOfEarlierOnesLapseInTheirOwnTime(t *testing.T) {
	l, clock := newLimiter(t, ratelimit.FixedWindow(ratelimit.Rate{Units: 9, Per: 10 * time.Hour}))
	r, err := l.Reserve(t.Context(), "k", 9, 0)
	require.NoError(t, err)
	require.NoError(t, l.SetLimit(ratelimit.FixedWindow(ratelimit.PerHour(7))))
	require.False(t, l.Allow("k", 1), "2 units are set aside for 10 hours")
	require.NoError(t, r.Cancel())
	require.True(t, l.Allow("k", 7))
	require.NoError(t, l.SetLimit(ratelimit.FixedWindow(ratelimit.PerHour(6))))
	require.False(t, l.Allow("k", 1), "a unit is set aside for an hour")
	clock.advance(2 * time.Hour)
	require.NoError(t, l.SetLimit(ratelimit.FixedWindow(ratelimit.PerHour(7))))
	require.True(t, l.Allow("k", 7), "it has lapsed")
}

// A limit flips between two algorithms or lengths of windows, alone and in a stack. It serves as much as the
// lower limit alone, even if half the calls settle at a lower cost. The first change may lose one capacity.
func TestALimitThatFlipsServesWhatTheLowerOneWould(t *testing.T) {
	testsize.Arithmetic(t)
	steps := testsize.Of(600, 3600)
	limits := func(units int) []ratelimit.Limit {
		r, short := ratelimit.Per(units, 10*time.Second), ratelimit.Per(units*7/10, 7*time.Second)
		return []ratelimit.Limit{ratelimit.TokenBucket(r, units), ratelimit.LeakyBucket(r, units), ratelimit.FixedWindow(r), ratelimit.FixedWindow(short),
			ratelimit.SlidingLog(r), ratelimit.SlidingCounter(r), ratelimit.SlidingCounter(short)}
	}
	for name, take := range map[string]func(l *ratelimit.Keyed[string], tries int) int{
		"Allow": func(l *ratelimit.Keyed[string], tries int) (n int) {
			for range tries {
				if l.Allow("k", 1) {
					n++
				}
			}
			return n
		},
		"All": func(l *ratelimit.Keyed[string], tries int) (n int) {
			stack := ratelimit.Must(ratelimit.All(ratelimit.By(l, itself)))
			for range tries {
				if stack.Allow("k", 1) {
					n++
				}
			}
			return n
		},
		"Settle": func(l *ratelimit.Keyed[string], tries int) (n int) {
			for i := range tries {
				r, err := l.Reserve(t.Context(), "k", 1+i%2, 0)
				require.NoError(t, err)
				if r.Allowed {
					require.NoError(t, r.Settle(1))
					n++
				}
			}
			return n
		},
	} {
		served := func(each int, tries int, two ...ratelimit.Limit) (n int) {
			l, clock := newLimiter(t, two[0])
			for i := range steps {
				if i%each == 0 {
					require.NoError(t, l.SetLimit(two[i/each%len(two)]))
				}
				n += take(l, tries)
				clock.advance(500 * time.Millisecond)
			}
			return n
		}
		for _, tries := range testsize.Of([]int{12}, []int{1, 12}) {
			for _, low := range limits(10) {
				alone := served(steps, tries, low)
				if name == "Settle" && low.Algorithm == ratelimit.AlgorithmLeakyBucket {
					continue // a place in a queue gives back less after a change
				}
				for _, high := range limits(14) {
					least := min(alone, served(steps, tries, high))
					for _, each := range testsize.Of([]int{10}, []int{2, 10, 40}) {
						n := served(each, tries, low, high)
						assert.GreaterOrEqual(t, n, least-10, "%s, %d tries at once, %v and %v, each %d steps", name, tries, low, high, each)
					}
				}
			}
		}
	}
}
