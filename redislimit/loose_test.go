package redislimit

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

// 60 calls are booked at 1 a second. At 100 a second they take 1 unit of each 100, and each keeps its instant.
func TestAfterARaiseFarBookingsLeaveTheRestToOthers(t *testing.T) {
	verdicts(t)
	f := newFixture(t)
	for i, limit := range []func(n int) ratelimit.Limit{
		func(n int) ratelimit.Limit { return ratelimit.TokenBucket(ratelimit.PerSecond(n), n) },
		func(n int) ratelimit.Limit { return ratelimit.LeakyBucket(ratelimit.PerSecond(n), 70+n) },
		func(n int) ratelimit.Limit { return ratelimit.FixedWindow(ratelimit.PerSecond(n)) },
		func(n int) ratelimit.Limit { return ratelimit.SlidingLog(ratelimit.PerSecond(n)) },
		func(n int) ratelimit.Limit { return ratelimit.SlidingCounter(ratelimit.PerSecond(n)) },
	} {
		name := fmt.Sprint("far", i)
		low, high := f.limiter(limit(1), name), f.limiter(limit(100), name)
		require.True(t, low.Allow("k", 1))
		var booked []*ratelimit.Reservation
		for range 60 {
			r, err := low.Reserve(t.Context(), "k", 1, 3*time.Minute)
			require.NoError(t, err)
			require.True(t, r.Allowed, "%v", low)
			booked = append(booked, r)
		}
		passed := 0
		for range 50 {
			for {
				d, err := high.Take(t.Context(), "k", 1)
				require.NoError(t, err)
				require.Zero(t, d.Debt)
				if !d.Allowed {
					break
				}
				passed++
			}
			f.clock.Advance(100 * time.Millisecond)
		}
		require.GreaterOrEqual(t, passed, 99*4, "%v", limit(100))
		if limit(1).Algorithm != ratelimit.AlgorithmLeakyBucket { // the queue of a leaky bucket contains the booked calls, too
			require.LessOrEqual(t, passed, 99*6, "%v", limit(100))
		}
		for _, r := range booked[10:] {
			require.NoError(t, r.Cancel())
		}
	}
}

// A new burst alone also makes the bookings of a token bucket loose.
func TestAfterARaiseOfTheBurstOthersGoBeforeBookings(t *testing.T) {
	verdicts(t)
	f := newFixture(t)
	low, high := f.limiter(ratelimit.TokenBucket(ratelimit.PerSecond(10), 10), "burst"), f.limiter(ratelimit.TokenBucket(ratelimit.PerSecond(10), 100), "burst")
	require.True(t, low.Allow("k", 10))
	for range 60 {
		r, err := low.Reserve(t.Context(), "k", 1, time.Minute)
		require.NoError(t, err)
		require.True(t, r.Allowed)
	}
	d, err := high.Take(t.Context(), "k", 90)
	require.NoError(t, err)
	require.True(t, d.Allowed, "%+v", d)
	require.Zero(t, d.Debt)
	d, err = high.Take(t.Context(), "k", 1)
	require.NoError(t, err)
	require.False(t, d.Allowed)
}

// Keys have bookings from before a change. After any takes, bookings,
// settlements and adjustments, their answers equal those in memory.
func TestKeysWithBookingsFromBeforeARaiseAnswerAsInMemory(t *testing.T) {
	verdicts(t)
	client := startServer(t).client()
	for i, limit := range twinLimits() {
		if limit.Algorithm == ratelimit.AlgorithmLeakyBucket {
			continue // in a growing queue, Redis does not keep places apart
		}
		for seed := range histories(3) {
			w := newTwin(t, client, limit, fmt.Sprintf("loose%d-%d", i, seed), uint64(seed))
			for range 4 {
				w.change(limit)
				w.fill(1 + w.rng.IntN(2))
				for range 1 + w.rng.IntN(12) {
					w.reserve(1 + w.rng.IntN(limit.Capacity()))
				}
				w.open = nil // open reservations of a bucket are converted with rounding
				raised := limit
				raised.Rate.Units *= []int{2, 5, 10}[w.rng.IntN(3)]
				raised.Burst *= 1 + w.rng.IntN(3)
				w.change(raised)
				w.take(1)
				for n := range 40 {
					w.step(n)
					w.pester()
				}
				w.note("reset")
				w.memory.Reset(t.Context(), twinKey)
				require.NoError(t, w.remote.Reset(t.Context(), twinKey))
				w.open = nil
			}
		}
	}
}

// After a change to a log, a key has bookings and a debt. A denial names the first instant
// after the debt with room before a booking, as in memory, and not the last booking's instant.
func TestADenialByADebtAmongBookingsRetriesAsInMemory(t *testing.T) {
	client := startServer(t).client()
	early := 0
	for i, from := range []ratelimit.Limit{
		ratelimit.FixedWindow(ratelimit.Per(12, 12*time.Second)),
		ratelimit.SlidingCounter(ratelimit.Per(12, 12*time.Second)),
		ratelimit.TokenBucket(ratelimit.PerSecond(1), 12),
		ratelimit.SlidingLog(ratelimit.Per(12, 12*time.Second)),
	} {
		for seed := range histories(20) {
			w := newTwin(t, client, from, fmt.Sprintf("owing%d-%d", i, seed), uint64(seed))
			w.take(12)
			for range 1 + w.rng.IntN(4) {
				w.reserve(1 + w.rng.IntN(12))
			}
			w.adjustBy(w.rng.IntN(24))
			for range 1 + w.rng.IntN(4) {
				w.reserve(1 + w.rng.IntN(12))
			}
			w.clock.Advance(time.Duration(w.rng.IntN(20)) * time.Second / 4)
			w.change(ratelimit.SlidingLog(ratelimit.Per(4+w.rng.IntN(12), time.Duration(4+w.rng.IntN(30))*time.Second)))
			for range 4 {
				d, err := w.memory.Peek(t.Context(), twinKey, 1)
				require.NoError(t, err)
				if d.Allowed {
					break // the cost would be stored, and Redis stores no room before bookings beside a debt
				}
				w.take(1)
				if d.Debt > 0 && w.clock.Now()+d.RetryAfter < w.newest {
					early++
				}
				w.clock.Advance(min(d.RetryAfter-time.Microsecond, w.per()/5))
			}
		}
	}
	require.Positive(t, early)
}

// pester repeats a call again and again, like a polling caller.
func (w *twin) pester() {
	for range w.rng.IntN(4) {
		w.clock.Advance(time.Duration(w.rng.Int64N(w.per().Microseconds()/100)) * time.Microsecond)
		w.take(w.cost())
		w.take(1)
	}
}

func (w *twin) change(limit ratelimit.Limit) {
	w.limit = limit
	w.note("SetLimit(%v)", limit)
	require.NoError(w.t, w.memory.SetLimit(limit))
	require.NoError(w.t, w.remote.SetLimit(limit))
}
