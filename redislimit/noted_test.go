package redislimit

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

// changedLimits returns pairs of limits. A key spends under a pair's first limit, and then changes to the second.
func changedLimits() (pairs [][2]ratelimit.Limit) {
	for _, from := range fiveLimits() {
		for _, to := range fiveLimits() {
			to.Rate.Per *= 3
			pairs = append(pairs, [2]ratelimit.Limit{from, to})
			to.Rate.Units, to.Burst = 6, min(6, to.Burst)
			pairs = append(pairs, [2]ratelimit.Limit{from, to})
		}
	}
	return pairs
}

// A denial under a changed limit carries the state over once. Later
// denials use its note, and so need neither the whole state nor a write.
func TestADenialAfterAChangeOfLimitCarriesTheStateOverOnce(t *testing.T) {
	verdicts(t)
	f := newFixture(t)
	for i, pair := range changedLimits() {
		what := fmt.Sprintf("%v to %v", pair[0], pair[1])
		l := f.limiter(pair[0], fmt.Sprint("once", i))
		require.True(t, l.Allow("k", 10))
		f.clock.Advance(time.Second)
		require.NoError(t, l.SetLimit(pair[1]))
		retry := f.deny(l, 1)
		f.deny(l, 1)
		f.resetStats()
		for n := range 50 {
			f.clock.Advance(time.Millisecond)
			retry -= time.Millisecond
			if n%2 == 0 && pair[1].Algorithm != ratelimit.AlgorithmSlidingLog {
				require.Greater(t, f.deny(l, 3), retry-time.Microsecond, what)
			} else {
				require.Equal(t, retry, f.deny(l, 1), what)
			}
		}
		stats := f.stats()
		require.Zero(t, stats["get"]+stats["set"]+stats["append"]+stats["setrange"], "%s: %v", what, stats)
		f.clock.Advance(retry)
		require.True(t, l.Allow("k", 1), what)
	}
}

// deny makes a call, checks that it is denied, and returns its RetryAfter.
func (f *fixture) deny(l *Limiter, cost int) time.Duration {
	f.t.Helper()
	d, err := l.Take(f.t.Context(), "k", cost)
	require.NoError(f.t, err)
	require.False(f.t, d.Allowed, "%v", d)
	return d.RetryAfter
}

// After an allowed call under a lowered limit, the state has units set aside, and its denials are noted, too.
func TestADenialBesideUnitsSetAsideReadsTheStateOnce(t *testing.T) {
	verdicts(t)
	f := newFixture(t)
	for _, limit := range fiveLimits() {
		l := f.limiter(limit, "rest")
		require.True(t, l.Allow("k", 10))
		f.clock.Advance(time.Second)
		limit.Rate.Units, limit.Burst = 4, min(4, limit.Burst)
		require.NoError(t, l.SetLimit(limit))
		require.NoError(t, l.Adjust(t.Context(), "k", 1)) // this stores the units set aside
		f.deny(l, 1)
		f.resetStats()
		for range 20 {
			f.clock.Advance(time.Millisecond)
			f.deny(l, 1)
		}
		require.LessOrEqual(t, f.stats()["get"], 1, "%v", limit)
		require.NoError(t, l.Reset(t.Context(), "k"))
	}
}

// A window in debt writes no note. Its denials still read the state once.
func TestADenialOfAWindowInDebtReadsTheStateInTheUsualCase(t *testing.T) {
	verdicts(t)
	f := newFixture(t)
	for _, limit := range []ratelimit.Limit{ratelimit.FixedWindow(ratelimit.PerMinute(10)), ratelimit.SlidingCounter(ratelimit.PerMinute(10))} {
		l := f.limiter(limit, "debt")
		require.NoError(t, l.Adjust(t.Context(), "k", 25))
		f.resetStats()
		require.GreaterOrEqual(t, f.deny(l, 1), time.Minute)
		d, err := l.Peek(t.Context(), "k", 0)
		require.NoError(t, err)
		require.True(t, d.Allowed)
		require.Equal(t, 15, d.Debt)
		require.Zero(t, f.stats()["get"], "%v", limit)
		require.NoError(t, l.Reset(t.Context(), "k"))
	}
}

// Two versions of a service have different limits. Their denials write once, not in turn.
func TestDenialsByTwoLimitsDoNotWriteInTurn(t *testing.T) {
	verdicts(t)
	f := newFixture(t)
	for i, pair := range changedLimits() {
		what := fmt.Sprintf("%v and %v", pair[0], pair[1])
		from, to := f.limiter(pair[0], fmt.Sprint("turns", i)), f.limiter(pair[1], fmt.Sprint("turns", i))
		require.True(t, from.Allow("k", 10))
		f.deny(from, 1)
		f.deny(to, 1)
		f.resetStats()
		for range 100 {
			f.clock.Advance(time.Millisecond)
			f.deny(from, 1)
			f.deny(to, 1)
		}
		stats := f.stats()
		require.LessOrEqual(t, stats["set"]+stats["append"], 1, "%s: %v", what, stats)
		require.Zero(t, stats["setrange"], what)
		require.LessOrEqual(t, stats["get"], 1, what)
	}
}

// A state has one note. If denials use three limits, and two of these
// differ from the stored one, the note is replaced at most once a second.
func TestDenialsByThreeLimitsReplaceANoteOnceASecond(t *testing.T) {
	verdicts(t)
	f := newFixture(t)
	limits := []*Limiter{}
	for _, n := range []int{10, 11, 12} {
		limits = append(limits, f.limiter(ratelimit.FixedWindow(ratelimit.PerMinute(n)), "three"))
	}
	require.True(t, limits[0].Allow("k", 10))
	require.NoError(t, limits[0].Adjust(t.Context(), "k", 10))
	f.resetStats()
	for range 400 {
		f.clock.Advance(10 * time.Millisecond)
		for _, l := range limits {
			f.deny(l, 1)
		}
	}
	stats := f.stats()
	assert.LessOrEqual(t, stats["set"]+stats["append"]+stats["setrange"], 6, "%v", stats)
	assert.LessOrEqual(t, stats["get"], 410)
}

// Two processes put one limit in force, one of them earlier. The earlier
// one must not use the later one's note: by that note less is regained.
func TestANoteAnswersNoProcessThatHadTheLimitEarlier(t *testing.T) {
	verdicts(t)
	f := newFixture(t)
	slow, fast := ratelimit.TokenBucket(ratelimit.PerHour(1), 10), ratelimit.TokenBucket(ratelimit.PerSecond(1), 10)
	old, first, last := f.limiter(slow, "first"), f.limiter(fast, "first"), f.limiter(fast, "first")
	require.True(t, old.Allow("k", 10))
	f.deny(first, 10)
	f.clock.Advance(5 * time.Second)
	f.deny(last, 10)
	f.deny(last, 10) // this call notes the denial
	require.Equal(t, 5*time.Second, f.deny(first, 10))
	f.clock.Advance(time.Second)
	require.Equal(t, 4*time.Second, f.deny(last, 10), "the limit has been in force for so long")
	f.resetStats()
	for _, l := range []*Limiter{first, last, first, last} {
		require.Equal(t, 4*time.Second, f.deny(l, 10))
	}
	require.Zero(t, f.stats()["get"])
	f.clock.Advance(4 * time.Second)
	require.True(t, first.Allow("k", 10))
}

// When a spending is appended to a log, the note is dropped.
func TestALogKeepsNoNoteAmongItsSpendings(t *testing.T) {
	verdicts(t)
	f := newFixture(t)
	from, to := f.limiter(ratelimit.SlidingLog(ratelimit.PerMinute(20)), "log"), f.limiter(ratelimit.SlidingLog(ratelimit.PerMinute(5)), "log")
	for range 6 {
		f.clock.Advance(time.Second)
		require.True(t, from.Allow("k", 1))
	}
	before := f.client.StrLen(t.Context(), from.space.key("k")).Val()
	f.deny(to, 1)
	f.deny(to, 1)
	require.Equal(t, before+noteSize, f.client.StrLen(t.Context(), from.space.key("k")).Val())
	f.resetStats()
	f.clock.Advance(time.Second)
	require.True(t, from.Allow("k", 1))
	require.Zero(t, f.stats()["get"], "the usual case")
	require.Equal(t, before+recordSize, f.client.StrLen(t.Context(), from.space.key("k")).Val())
	f.deny(to, 1)
	require.Equal(t, 13, f.left(from, "k"))
}

// Layers read a usual state even if a note follows it.
func TestAStackReadsAStateWithANoteAsUsual(t *testing.T) {
	verdicts(t)
	f := newFixture(t)
	for _, limit := range fiveLimits() {
		other := limit
		other.Rate.Per *= 3
		from, to := f.limiter(limit, limit.Name), f.limiter(other, limit.Name)
		stack, err := ratelimit.All(ratelimit.By(from, identity), ratelimit.By(f.limiter(limit, "beside "+limit.Name), identity))
		require.NoError(t, err)
		require.True(t, stack.Allow("k", 6))
		f.deny(to, 7)
		f.deny(to, 7)
		require.Positive(t, f.stats()["append"])
		f.resetStats()
		for range 4 {
			require.True(t, stack.Allow("k", 1))
		}
		require.False(t, stack.Allow("k", 1))
		require.Zero(t, f.stats()["get"], "%v", limit)
	}
}
