package ratelimit_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/model"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// Keys are evicted all the time, and the wall clock is set forward and back over boundaries. The limiter
// remembers a key's spending by its calendar window. Each decision equals that of a model forgetting no key.
func TestARememberedCalendarAnswersAsTheModelWhateverTheWallClockDoes(t *testing.T) {
	n := model.Rounds(500)
	if *walls > 0 {
		n = *walls
	}
	for seed := range n {
		if !t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { playRemembered(t, seed) }) {
			return
		}
	}
}

// rememberedKey is a key of the model. After the wall clock was set back over a boundary, a
// key outside the table may begin in any window from its own to the latest one shown. Until
// a later window begins, such a key is loose: it may have the budgets of all these windows.
type rememberedKey struct {
	datedKey
	loose bool
	until time.Time // the last of these windows
	left  int
}

// at brings the key to a wall time. latest is the latest window ever shown.
func (k *rememberedKey) at(wall, latest time.Time) {
	k.roll(wall)
	if k.loose = k.loose && !k.window.After(k.until); !k.loose {
		k.until, k.left = k.window, k.limit.Rate.Units-k.used
	}
	for ; k.until.Before(latest); k.until = model.PeriodOf(k.limit.Period).Next(k.until) {
		k.loose = true
		k.left += k.limit.Rate.Units
	}
}

func playRemembered(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(testsize.Seed(seed), 79))
	limit := ratelimit.Calendar(1+r.IntN(255), model.Periods[r.IntN(len(model.Periods))].Period)
	clock := new(wallClock)
	clock.set(time.Duration(r.Int64N(2*model.Year) - model.Year))
	clock.setWall(time.Date(1990+r.IntN(80), time.Month(1+r.IntN(12)), 1+r.IntN(31), r.IntN(24), r.IntN(60), r.IntN(60), r.IntN(1e9), time.UTC))
	l := newWith(t, limit, ratelimit.Options[int]{Clock: clock, MaxKeys: 1 + r.IntN(3), Remember: 1 << 12})
	keys, span, units := map[int]*rememberedKey{}, int64(model.Span(limit)), limit.Rate.Units
	latest := &datedKey{limit: limit} // the latest window ever shown
	for step := range 60 {
		switch r.IntN(5) {
		case 0:
			clock.advance(time.Duration(r.Int64N(span)))
		case 1: // the limiter notices this change
			clock.setWall(clock.Wall().Add(time.Duration(r.Int64N(6*span) - 3*span)))
			clock.advance(time.Minute + time.Nanosecond)
		}
		wall, key := clock.Wall(), r.IntN(5)
		latest.roll(wall)
		k := keys[key]
		if k == nil {
			k = &rememberedKey{datedKey: datedKey{limit: limit}}
			keys[key] = k
		}
		k.at(wall, latest.window)
		cost := 1 + r.IntN(units)
		what := fmt.Sprintf("step %d: %v, %v, key %d: %+v", step, limit, wall, key, *k)
		d, err := l.Take(t.Context(), key, cost)
		require.NoError(t, err, what)
		require.LessOrEqual(t, d.ResetAfter, model.PeriodOf(limit.Period).Next(latest.window).Sub(wall), what)
		if k.loose {
			if d.Allowed {
				k.left -= cost
			}
			require.GreaterOrEqual(t, k.left, 0, what)
			continue
		}
		require.Equal(t, k.used+cost <= units, d.Allowed, what)
		if d.Allowed {
			k.used += cost
		}
		require.Equal(t, units-k.used, d.Remaining, what)
	}
	require.Zero(t, l.Stats().Overflowed)
}

// slowLimits and fastLimits return limits of each algorithm, each for 5 at once.
// A slow limit still counts its spending long after a fast limit's window.
func slowLimits() []ratelimit.Limit {
	per := ratelimit.Per(5, 90*24*time.Hour)
	return []ratelimit.Limit{
		ratelimit.TokenBucket(per, 5), ratelimit.LeakyBucket(per, 5), ratelimit.FixedWindow(per), ratelimit.SlidingLog(per),
		ratelimit.SlidingCounter(per), ratelimit.Calendar(5, ratelimit.Month("UTC", 1)),
	}
}

func fastLimits() []ratelimit.Limit {
	per := ratelimit.PerMinute(5)
	return []ratelimit.Limit{
		ratelimit.TokenBucket(per, 5), ratelimit.LeakyBucket(per, 5), ratelimit.FixedWindow(per), ratelimit.SlidingLog(per),
		ratelimit.SlidingCounter(per), ratelimit.Calendar(5, ratelimit.Day("UTC")),
	}
}

// After a change to a faster limit, a key evicted each time waits
// once for its earlier spending, and not again at each return.
func TestAFasterLimitMakesARememberedKeyFreshOnce(t *testing.T) {
	for _, slow := range slowLimits() {
		for _, fast := range fastLimits() {
			for _, stacked := range []bool{false, true} {
				t.Run(fmt.Sprint(slow, fast, stacked), func(t *testing.T) {
					clock := new(wallClock)
					clock.setWall(date(t, "UTC", "2026-05-02 01:23"))
					l := newWith(t, slow, ratelimit.Options[string]{Clock: clock, MaxKeys: 1, Remember: 1000})
					stack, err := ratelimit.All(ratelimit.By(l, func(key string) (string, error) { return key, nil }))
					require.NoError(t, err)
					evict := func() {
						require.NoError(t, l.Adjust(context.Background(), "b", 1))
						require.NoError(t, l.Adjust(context.Background(), "b", -1))
					}
					require.True(t, l.Allow("a", 5))
					evict()
					require.NoError(t, l.SetLimit(fast))
					took := func() ratelimit.Decision {
						if !stacked {
							return takeOf(t, l, "a", 1)
						}
						d, err := stack.Take(t.Context(), "a", 1)
						require.NoError(t, err)
						return d
					}
					began, first := clock.Now(), took()
					require.False(t, first.Allowed)
					require.LessOrEqual(t, first.ResetAfter, fast.RefillTime())
					for !took().Allowed {
						evict()
						clock.advance(time.Duration(1 + int64(first.ResetAfter)/7))
						require.Less(t, clock.Now()-began, 2*first.ResetAfter)
					}
					require.LessOrEqual(t, clock.Now()-began, first.ResetAfter+first.ResetAfter/7+2*time.Millisecond)
				})
			}
		}
	}
}

// Keys may have limits of their own. Then a slot with more spending than
// a key's limit allows is not shortened, because it may be another key's.
func TestARecordThatMayBeTrueIsNotShortened(t *testing.T) {
	slow, fast := slowLimits()[0], fastLimits()[0]
	clock := new(wallClock)
	of := map[string]ratelimit.Limit{"a": slow}
	l := newWith(t, fast, ratelimit.Options[string]{Clock: clock, MaxKeys: 1, Remember: 1000,
		LimitFor: func(key string) ratelimit.Limit { return of[key] }})
	spend := func() {
		require.True(t, l.Allow("a", 5))
		require.True(t, l.Allow("b", 1))
	}
	spend()
	of["a"] = fast
	l.Refresh()
	require.LessOrEqual(t, takeOf(t, l, "a", 1).RetryAfter, time.Minute)
	require.True(t, l.Allow("b", 1))
	of["a"] = slow
	l.Refresh()
	require.Greater(t, peekOf(t, l, "a").ResetAfter, 80*24*time.Hour)
}

// The limit changes among calendars, buckets and windows while wall clocks are set and keys evicted. While a key is
// under calendars, each window's units are granted once. No key waits beyond the end of the latest window ever shown.
func TestRememberedKeysUnderLimitsThatChange(t *testing.T) {
	n := model.Rounds(500)
	if *walls > 0 {
		n = *walls
	}
	for seed := range n {
		playChanges(t, seed)
	}
}

func playChanges(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(testsize.Seed(seed), 80))
	limits := append(slowLimits(), fastLimits()...)
	for _, p := range model.Periods {
		limits = append(limits, ratelimit.Calendar(5, p.Period))
	}
	limit, period := limits[len(limits)-1], model.Periods[len(model.Periods)-1]
	clock := new(wallClock)
	clock.setWall(time.Date(2026, 3, 1+r.IntN(60), r.IntN(24), 0, 0, 0, time.UTC))
	l := newWith(t, limit, ratelimit.Options[int]{Clock: clock, MaxKeys: 1 + r.IntN(3), Remember: 1 << 12})
	type key struct {
		dated  bool // its last decision was under this calendar
		window time.Time
		used   int // the minimum spending
		shut   int // windows without room since it came under this calendar
	}
	var keys [5]key
	latest := clock.Wall()
	for step := range 100 {
		switch r.IntN(8) {
		case 0:
			clock.advance(time.Duration(r.Int64N(int64(model.Span(limit)))))
		case 1:
			clock.setWall(clock.Wall().Add(time.Duration(r.Int64N(4*int64(model.Span(limit))) - 2*int64(model.Span(limit)))))
			clock.advance(time.Minute + time.Nanosecond)
		case 2:
			limit = limits[r.IntN(len(limits))]
			require.NoError(t, l.SetLimit(limit))
			keys = [len(keys)]key{}
			if limit.Algorithm == ratelimit.AlgorithmCalendar {
				period = model.PeriodOf(limit.Period)
			}
		}
		i := r.IntN(len(keys))
		k, wall, cost := &keys[i], clock.Wall(), 1+r.IntN(5)
		if wall.After(latest) {
			latest = wall
		}
		d, err := l.Take(t.Context(), i, cost)
		require.NoError(t, err)
		what := fmt.Sprintf("seed %d, step %d: %v, %v, key %d: %+v: %+v", seed, step, limit, wall, i, *k, d)
		if limit.Algorithm != ratelimit.AlgorithmCalendar {
			require.LessOrEqual(t, d.ResetAfter, limit.RefillTime(), what)
			continue
		}
		window, last := period.Begins(wall.In(period.Location)), period.Begins(latest.In(period.Location))
		require.LessOrEqual(t, d.ResetAfter, period.Next(last).Sub(wall), what)
		if !k.dated || k.window.Before(window) {
			// All earlier spending has ended, except in one window that an old limit may have left behind.
			shut := k.shut
			if window.Equal(last) && !d.Allowed {
				shut++
			}
			require.LessOrEqual(t, shut, 2, what)
			*k = key{dated: true, window: window, shut: shut}
		}
		if !window.Equal(last) {
			*k = key{} // the clock was set back, so the key may be in a later window
		} else if d.Allowed {
			k.used += cost
			require.LessOrEqual(t, k.used, 5, what)
			require.LessOrEqual(t, d.Remaining, 5-k.used, what)
		}
	}
	require.Zero(t, l.Stats().Overflowed)
}
