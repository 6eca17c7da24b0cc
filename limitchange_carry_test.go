package ratelimit_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/model"
)

// A sliding counter's previous window was counted in the window's length of that time. What
// had left it before the limit changed is not in it, however long windows are now.
func TestACancelAfterAChangeToLongerWindowsGivesBackOnlyWhatCounts(t *testing.T) {
	l, clock := newLimiter(t, ratelimit.SlidingCounter(ratelimit.PerSecond(10)))
	early, err := l.Reserve(t.Context(), "k", 4, 0)
	require.NoError(t, err)
	require.True(t, l.Allow("k", 6))
	clock.set(1500 * ms)
	require.True(t, l.Allow("k", 4)) // beside 5, which the window before still weighs
	clock.set(2500 * ms)
	require.True(t, l.Allow("k", 1)) // 4 in the window before, and what was early is over
	require.NoError(t, l.SetLimit(ratelimit.SlidingCounter(ratelimit.Per(10, 10*time.Second))))
	require.True(t, l.Allow("k", 1)) // which puts the key under it
	before := remaining(t, l, "k")
	require.NoError(t, early.Cancel())
	require.Equal(t, before, remaining(t, l, "k"))
}

// After the change, too, a cancel gives back what the current window counts.
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

// A booking that has not come is given back whole, whatever the limit was when it was made.
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
				_, err := l.Take(t.Context(), "k", 5) // the change reaches the key
				require.NoError(t, err)
			}
			require.NoError(t, r.Cancel())
			got, err := with.Peek("k", 1)
			require.NoError(t, err)
			want, err := without.Peek("k", 1)
			require.NoError(t, err)
			require.Equal(t, want, got, "%v to %v", from(10), to(5))
		}
	}
}

// What is owed behind a booking is owed behind it under the new limit as well.
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
				require.NoError(t, l.Adjust("k", debt))
				require.NoError(t, l.SetLimit(to))
				for range 2 { // before the change has reached the key, and after
					d, err := l.Peek("k", 1)
					require.NoError(t, err)
					require.False(t, d.Allowed)
					require.GreaterOrEqual(t, d.RetryAfter, (debt-2)*time.Second)
					require.False(t, l.Allow("k", 1))
				}
			})
		}
	}
}

// Whatever is booked and due, a Peek before the change of limit has reached the key says
// what Take then does.
func TestPeekBeforeAChangeHasReachedTheKeySaysWhatTakeDoes(t *testing.T) {
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
					want, err := l.Peek("k", 1)
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

// Instants and debts together are above 2^63 ns on a clock past 92 years.
func TestASlowLimitDeniesOnAClockFarFromItsOrigin(t *testing.T) {
	for _, limit := range append(model.Saturated(), model.EdgeLimits()...) {
		for _, raw := range []int64{90 * model.Year, 93 * model.Year, 120 * model.Year, 146 * model.Year, math.MaxInt64} {
			r := newRig(t, limit)
			r.clock.now.Store(raw)
			require.True(t, r.limiter.Allow("k", limit.Capacity()), "%v at %d", limit, raw)
			require.NoError(t, r.limiter.Adjust("k", math.MaxInt))
			for range 3 {
				require.False(t, r.limiter.Allow("k", 1), "%v at %d", limit, raw)
			}
		}
	}
}

// The same for what is booked ahead, and then is worth far more under a slower limit.
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
				d, err := r.limiter.Peek("k", 1)
				require.NoError(t, err)
				require.GreaterOrEqual(t, d.RetryAfter, time.Duration(9*model.Year), "%v to %v at %d", from, to, raw)
				require.GreaterOrEqual(t, d.ResetAfter, d.RetryAfter, "%v to %v at %d", from, to, raw)
			}
		}
	}
}

// What is spent after a change of limit is given back as ever.
func TestACancelUnderTheLimitItWasSpentUnderIsWhole(t *testing.T) {
	for _, make := range makers {
		l, _ := newLimiter(t, make(50))
		require.True(t, l.Allow("k", 1))
		require.NoError(t, l.SetLimit(make(10)))
		require.True(t, l.Allow("k", 1))
		r, err := l.Reserve(t.Context(), "k", 3, 0)
		require.NoError(t, err)
		if r.Delay > 0 || !r.Allowed {
			r, err = l.Reserve(t.Context(), "k", 3, 24*time.Hour) // a leaky bucket's queue
			require.NoError(t, err)
		}
		require.Equal(t, 5, remaining(t, l, "k"), make(10))
		require.NoError(t, r.Cancel())
		require.Equal(t, 8, remaining(t, l, "k"), make(10))
	}
}

// A part of a unit counts as one where a limit cannot count less.
func TestAFractionOfAUnitCarriesOverAsOne(t *testing.T) {
	l, clock := newLimiter(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 3))
	require.True(t, l.Allow("k", 3))
	clock.set(500 * ms)
	require.NoError(t, l.SetLimit(ratelimit.FixedWindow(ratelimit.PerHour(10))))
	require.Equal(t, 7, remaining(t, l, "k"))
}

// What the window before still weighs is spent.
func TestTheWeightOfTheWindowBeforeCarriesOver(t *testing.T) {
	for _, make := range makers {
		l, clock := newLimiter(t, ratelimit.SlidingCounter(ratelimit.PerHour(10)))
		require.True(t, l.Allow("k", 8))
		clock.set(90 * time.Minute)
		require.True(t, l.Allow("k", 1))
		require.NoError(t, l.SetLimit(make(20)))
		require.Equal(t, 15, remaining(t, l, "k"), make(20)) // 4 of the 8, and 1
	}
}

func TestAGrantTakesFromThisWindowFirst(t *testing.T) {
	l, clock := newLimiter(t, ratelimit.SlidingCounter(ratelimit.PerHour(10)))
	require.True(t, l.Allow("k", 10))
	clock.set(90 * time.Minute)
	require.True(t, l.Allow("k", 3)) // beside 5 of the 10
	require.NoError(t, l.Adjust("k", -5))
	require.Equal(t, 7, remaining(t, l, "k"))
	clock.set(105 * time.Minute)
	require.Equal(t, 8, remaining(t, l, "k"), "6 in the window before, of which a quarter counts")
}

// What had left the old window by the time of the change does not come back in a longer one.
func TestALongerWindowDoesNotBringBackWhatHasLeft(t *testing.T) {
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
	require.NoError(t, l.Adjust("k", 5))
	require.NoError(t, l.Adjust("k", -7))
	require.Equal(t, 2, remaining(t, l, "k"))
}

// Of a log's debt, the parts whose windows are over are regained.
func TestOnlyWhatIsLeftOfALogsDebtCarriesOver(t *testing.T) {
	l, clock := newLimiter(t, ratelimit.SlidingLog(ratelimit.PerSecond(10)))
	require.NoError(t, l.Adjust("k", 35)) // 10 at 0, 1 and 2 s, 5 at 3 s
	clock.set(2500 * ms)
	require.NoError(t, l.SetLimit(ratelimit.FixedWindow(ratelimit.PerHour(100))))
	require.Equal(t, 85, remaining(t, l, "k"))
}

// A part of the debt that is due when the limit changes was spent under the old one.
func TestADebtThatIsDueIsSpentUnderTheOldLimit(t *testing.T) {
	l, clock := newLimiter(t, ratelimit.SlidingLog(ratelimit.PerSecond(10)))
	require.NoError(t, l.Adjust("k", 25)) // 10 at 0 and 1 s, 5 at 2 s
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

func TestAGrantTakesFromBookingsFirst(t *testing.T) {
	l, clock := newLimiter(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 10))
	require.True(t, l.Allow("k", 10))
	_, err := l.Reserve(t.Context(), "k", 3, time.Minute)
	require.NoError(t, err)
	require.NoError(t, l.Adjust("k", -5))
	require.Equal(t, 2, remaining(t, l, "k"))
	clock.set(time.Second)
	require.Equal(t, 3, remaining(t, l, "k"))
}

// To rename a limit changes nothing, for what was reserved before neither.
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
