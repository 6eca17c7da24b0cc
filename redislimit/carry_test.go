package redislimit

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

// After a change of limit, a sliding counter's previous window still has the former length.
// Spending that left this window before the change does not count, even if windows are longer now.
func TestACancelAfterAChangeToLongerWindowsGivesBackOnlyUnitsThatCount(t *testing.T) {
	f := newFixture(t)
	l := f.limiter(ratelimit.SlidingCounter(ratelimit.PerSecond(10)), "longer")
	early, err := l.Reserve(t.Context(), "k", 4, 0)
	require.NoError(t, err)
	require.True(t, l.Allow("k", 6))
	f.clock.Set(1500 * time.Millisecond)
	require.True(t, l.Allow("k", 4)) // the previous window still weighs 5
	f.clock.Set(2500 * time.Millisecond)
	require.True(t, l.Allow("k", 1)) // 4 are in the previous window, and the early spending no longer counts
	require.NoError(t, l.SetLimit(ratelimit.SlidingCounter(ratelimit.Per(10, 10*time.Second))))
	require.True(t, l.Allow("k", 1)) // this puts the key under the new limit
	before := f.left(l, "k")
	require.NoError(t, early.Cancel())
	assert.Equal(t, before, f.left(l, "k"))
}

// A cancellation gives back a spending of the current window, even if windows are longer now.
func TestACancelAfterAChangeOfWindowsGivesBackTheCurrentWindow(t *testing.T) {
	f := newFixture(t)
	for _, limit := range fiveLimits()[2:] {
		l := f.limiter(limit, "current"+limit.Name)
		r, err := l.Reserve(t.Context(), "k", 4, 0)
		require.NoError(t, err)
		f.clock.Advance(59 * time.Second)
		limit.Rate.Per *= 2
		require.NoError(t, l.SetLimit(limit))
		require.True(t, l.Allow("k", 2))
		require.NoError(t, r.Cancel())
		assert.Equal(t, 8, f.left(l, "k"), "%v", limit)
	}
}

// changing returns limits whose prices and shares are not whole microseconds.
func changing() []ratelimit.Limit {
	return []ratelimit.Limit{
		ratelimit.TokenBucket(ratelimit.Per(7, 3*time.Second), 40),
		ratelimit.TokenBucket(ratelimit.Per(11, 17*time.Minute), 13),
		ratelimit.LeakyBucket(ratelimit.Per(13, time.Minute), 9),
		ratelimit.FixedWindow(ratelimit.Per(7, 11*time.Second)),
		ratelimit.SlidingLog(ratelimit.Per(9, 19*time.Second)),
		ratelimit.SlidingCounter(ratelimit.Per(17, 7*time.Second)),
		ratelimit.SlidingCounter(ratelimit.Per(23, 13*time.Minute)),
	}
}

// denials repeats a denied call until the first RetryAfter has passed. Each denial must return the rest of that time.
func (f *fixture) denials(l *Limiter, cost int, what string) {
	f.t.Helper()
	first, err := l.Take(f.t.Context(), "k", cost)
	require.NoError(f.t, err)
	require.False(f.t, first.Allowed, what)
	retry := first.RetryAfter
	for _, step := range []time.Duration{1, retry / 7, retry / 3, retry / 2, retry - time.Microsecond} {
		if next := step.Truncate(time.Microsecond); next < retry {
			f.clock.Advance(next)
			retry -= next
		}
		d, err := l.Take(f.t.Context(), "k", cost)
		require.NoError(f.t, err)
		require.False(f.t, d.Allowed, "%s: told %v, allowed %v before", what, first.RetryAfter, retry)
		require.Equal(f.t, retry, d.RetryAfter, "%s: told %v", what, first.RetryAfter)
	}
	f.clock.Advance(retry)
	d, err := l.Take(f.t.Context(), "k", cost)
	require.NoError(f.t, err)
	require.True(f.t, d.Allowed, "%s: told %v, and then %v", what, first.RetryAfter, d.RetryAfter)
}

// Denials leave the state under the old limit. So each denial carries the state over, or uses an earlier denial's note.
func TestRetryAfterIsTrueAfterAChangeOfLimit(t *testing.T) {
	verdicts(t)
	f := newFixture(t)
	for i, from := range changing() {
		for j, to := range changing() {
			what := fmt.Sprintf("%v to %v", from, to)
			l := f.limiter(from, fmt.Sprintf("retry%d-%d", i, j))
			require.True(t, l.Allow("k", from.Capacity()))
			require.NoError(t, l.Adjust(t.Context(), "k", 5+2*to.Capacity()))
			f.clock.Advance(1234567 * time.Microsecond)
			require.NoError(t, l.SetLimit(to))
			f.denials(l, 1+to.Capacity()/3, what)
		}
	}
}

// Bookings from before the change of limit come due while denied callers wait for them.
func TestRetryAfterIsTrueBehindBookingsAfterAChangeOfLimit(t *testing.T) {
	verdicts(t)
	f := newFixture(t)
	for i, from := range changing() {
		for j, to := range changing() {
			l := f.limiter(from, fmt.Sprintf("booked%d-%d", i, j))
			cost := from.Capacity()/2 + 1
			for range 4 {
				_, err := l.Reserve(t.Context(), "k", cost, time.Hour)
				require.NoError(t, err)
			}
			require.NoError(t, l.SetLimit(to))
			f.denials(l, to.Capacity(), fmt.Sprintf("%v to %v", from, to))
		}
	}
}

// A booking keeps its instant. Of the earlier spending, at most the
// lowered capacity counts. The booking can be cancelled as before.
func TestALoweredLimitBarsNoKeyForTheSpendingBeforeItsBookings(t *testing.T) {
	f := newFixture(t)
	for _, limit := range fiveLimits() {
		if limit.Algorithm == ratelimit.AlgorithmLeakyBucket {
			continue // a queue has no other bookings
		}
		for _, cancelled := range []bool{false, true} {
			lower := limit
			lower.Rate.Units, lower.Burst = 3, min(3, limit.Burst)
			memory, err := ratelimit.New(limit, &ratelimit.Options[string]{Clock: f.clock})
			require.NoError(t, err)
			l := f.limiter(limit, fmt.Sprint("lowered", limit.Name, cancelled))
			require.True(t, memory.Allow("k", 10) && l.Allow("k", 10))
			q, err := memory.Reserve(t.Context(), "k", 4, time.Hour)
			require.NoError(t, err)
			r, err := l.Reserve(t.Context(), "k", 4, time.Hour)
			require.NoError(t, err)
			require.Positive(t, r.Delay)
			require.Equal(t, q.Delay, r.Delay)
			require.NoError(t, memory.SetLimit(lower))
			require.NoError(t, l.SetLimit(lower))
			require.False(t, memory.Allow("k", 1) || l.Allow("k", 1))
			if cancelled {
				require.NoError(t, q.Cancel())
				require.NoError(t, r.Cancel())
			}
			for range 40 {
				want, err := memory.Peek(context.Background(), "k", 1)
				require.NoError(t, err)
				got, err := l.Peek(t.Context(), "k", 1)
				require.NoError(t, err)
				require.Equal(t, inMicroseconds(want), got, "%v, cancelled: %v", limit, cancelled)
				f.clock.Advance(7 * time.Second)
			}
			got, err := l.Peek(t.Context(), "k", 1)
			require.NoError(t, err)
			require.Zero(t, got.ResetAfter, "%v", limit)
		}
	}
}

func TestAGrantOfMoreThanCountsTakesFromTheUnitsSetAside(t *testing.T) {
	f := newFixture(t)
	for _, limit := range fiveLimits() {
		lower := limit
		lower.Rate.Units, lower.Burst = 2, min(2, limit.Burst)
		l := f.limiter(limit, "granted"+limit.Name)
		require.True(t, l.Allow("k", 10))
		require.NoError(t, l.SetLimit(lower))
		require.NoError(t, l.Adjust(t.Context(), "k", -6))
		require.NoError(t, l.SetLimit(limit))
		assert.Equal(t, 6, f.left(l, "k"), "%v", limit)
	}
}

func TestRetryAfterIsTrueAfterLimitForHasChanged(t *testing.T) {
	verdicts(t)
	f := newFixture(t)
	for i, from := range changing() {
		for j, to := range changing() {
			limit := from
			l, err := New(f.client, from, &Options{Name: fmt.Sprintf("for%d-%d", i, j), Timeout: 10 * time.Second,
				LimitFor: func(string) ratelimit.Limit { return limit }})
			require.NoError(t, err)
			onClock(l, f.clock)
			require.True(t, l.Allow("k", from.Capacity()))
			require.NoError(t, l.Adjust(t.Context(), "k", 5+2*to.Capacity()))
			f.clock.Advance(1234567 * time.Microsecond)
			limit = to
			f.denials(l, 1, fmt.Sprintf("%v to %v", from, to))
		}
	}
}

// TestRetryAfterOfAStackIsTrueAfterAChangeOfLimit makes the same check for a stack, which runs another script.
func TestRetryAfterOfAStackIsTrueAfterAChangeOfLimit(t *testing.T) {
	verdicts(t)
	f := newFixture(t)
	wide := f.limiter(ratelimit.TokenBucket(ratelimit.PerSecond(1000), 1000), "wide")
	l := f.limiter(ratelimit.TokenBucket(ratelimit.Per(7, 3*time.Second), 40), "narrow")
	stack, err := ratelimit.All(ratelimit.By(l, identity), ratelimit.By(wide, identity))
	require.NoError(t, err)
	require.True(t, stack.Allow("k", 40))
	require.NoError(t, l.SetLimit(ratelimit.TokenBucket(ratelimit.Per(11, 17*time.Minute), 13)))
	first, err := stack.Take(t.Context(), "k", 3)
	require.NoError(t, err)
	require.False(t, first.Allowed)
	f.clock.Advance(first.RetryAfter - time.Microsecond)
	d, err := stack.Take(t.Context(), "k", 3)
	require.NoError(t, err)
	require.False(t, d.Allowed)
	require.Equal(t, time.Microsecond, d.RetryAfter)
	f.clock.Advance(time.Microsecond)
	require.True(t, stack.Allow("k", 3))
}

// A settlement writes the key, and must not change the RetryAfter of an earlier denial.
func TestASettlementAfterAChangeOfLimitKeepsADenialsRetryAfter(t *testing.T) {
	f := newFixture(t)
	for i, from := range changing() {
		for j, to := range changing() {
			l := f.limiter(from, fmt.Sprintf("settled%d-%d", i, j))
			r, err := l.Reserve(t.Context(), "k", 1, 0)
			require.NoError(t, err)
			require.NoError(t, l.Adjust(t.Context(), "k", from.Capacity()+to.Capacity()))
			require.NoError(t, l.SetLimit(to))
			first, err := l.Take(t.Context(), "k", 1)
			require.NoError(t, err)
			require.False(t, first.Allowed)
			f.clock.Advance((first.RetryAfter / 2).Truncate(time.Microsecond))
			want, err := l.Peek(t.Context(), "k", 1)
			require.NoError(t, err)
			require.NoError(t, r.Settle(1))
			got, err := l.Peek(t.Context(), "k", 1)
			require.NoError(t, err)
			require.Equal(t, want, got, "%v to %v", from, to)
		}
	}
}

// The first denial under another limit writes nothing, and the time to
// live stays. The second one notes its answer after the state, once.
func TestADenialAfterAChangeOfLimitLeavesTheState(t *testing.T) {
	f := newFixture(t)
	for _, limit := range fiveLimits() {
		l := f.limiter(limit, "nothing"+limit.Name)
		require.True(t, l.Allow("k", 10))
		before := f.dump()
		limit.Rate.Per *= 3
		require.NoError(t, l.SetLimit(limit))
		f.clock.Advance(time.Second)
		require.False(t, l.Allow("k", 10))
		assert.Equal(t, before, f.dump(), "%v", limit)
		key := l.space.key("k")
		state, life := f.client.Get(t.Context(), key).Val(), f.client.PTTL(t.Context(), key).Val()
		for range 3 {
			require.False(t, l.Allow("k", 10))
		}
		noted := f.client.Get(t.Context(), key).Val()
		assert.Len(t, noted, len(state)+noteSize)
		assert.Equal(t, state, noted[:len(state)])
		assert.LessOrEqual(t, f.client.PTTL(t.Context(), key).Val(), life)
		require.NoError(t, l.Reset(t.Context(), "k"))
	}
}
