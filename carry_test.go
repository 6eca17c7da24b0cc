package ratelimit_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
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
				for _, units := range []int{5, 10, 20} {
					l, clock := newLimiter(t, from(10))
					require.True(t, l.Allow("k", 10))
					for _, n := range []int{1, 2, 10, 3} {
						_, err := l.Reserve(t.Context(), "k", n, 24*time.Hour)
						require.NoError(t, err)
					}
					require.NoError(t, l.SetLimit(to(units)))
					clock.set(at)
					want, err := l.Peek("k", 1)
					require.NoError(t, err)
					got, err := l.Take(t.Context(), "k", 1)
					require.NoError(t, err)
					if want.Allowed {
						require.True(t, got.Allowed)
						continue
					}
					require.Equal(t, want, got, "%v to %v at %v", from(10), to(units), at)
				}
			}
		}
	}
}

// Instants and debts together are above 2^63 ns on a clock past 92 years.
func TestASlowLimitDeniesOnAClockFarFromItsOrigin(t *testing.T) {
	for _, limit := range append(saturated(), edgeLimits()...) {
		for _, raw := range []int64{90 * year, 93 * year, 120 * year, 146 * year, math.MaxInt64} {
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
	slow := five(ratelimit.Per(1, time.Duration(century)))
	for _, from := range five(ratelimit.Per(1, time.Duration(10*year))) {
		for _, to := range slow {
			for _, raw := range []int64{0, 93 * year, 146 * year, math.MaxInt64} {
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
				require.GreaterOrEqual(t, d.RetryAfter, time.Duration(9*year), "%v to %v at %d", from, to, raw)
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
