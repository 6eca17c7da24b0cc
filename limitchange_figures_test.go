package ratelimit_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/model"
	"github.com/weir-go/ratelimit/internal/testsize"
)

// What is spent under a generous limit is more than a tight one counts in a
// century; products of the two must not wrap around to nothing.
func TestATightenedWindowStaysShut(t *testing.T) {
	mks := map[string]func(ratelimit.Rate) ratelimit.Limit{"fixed": ratelimit.FixedWindow, "counter": ratelimit.SlidingCounter, "log": ratelimit.SlidingLog}
	for fn, from := range mks {
		for tn, to := range mks {
			t.Run(fn+"-"+tn, func(t *testing.T) {
				for _, spent := range []int{110_000, 150_000, 199_999, 250_000, 300_000, 400_000, 999_999} {
					l, _ := newLimiter(t, from(ratelimit.PerDay(1_000_000)))
					require.True(t, l.Allow("k", spent))
					require.NoError(t, l.SetLimit(to(ratelimit.PerDay(1))))
					d, err := l.Take(t.Context(), "k", 1)
					if err != nil || d.Allowed || d.Remaining != 0 || d.ResetAfter < 24*time.Hour || d.RetryAfter <= 0 {
						t.Errorf("spent %d: %+v %v", spent, d, err)
					}
				}
			})
		}
	}
}

// The same for what is booked ahead.
func TestATightenedLimitStaysShutBehindBookings(t *testing.T) {
	all := []ratelimit.Limit{ratelimit.TokenBucket(ratelimit.PerSecond(1e6), 1e6), ratelimit.LeakyBucket(ratelimit.PerSecond(1e6), 5e6), ratelimit.FixedWindow(ratelimit.PerSecond(1e6)), ratelimit.SlidingLog(ratelimit.PerSecond(1e6)), ratelimit.SlidingCounter(ratelimit.PerSecond(1e6))}
	to := []ratelimit.Limit{ratelimit.TokenBucket(ratelimit.PerDay(1), 1), ratelimit.LeakyBucket(ratelimit.PerDay(1), 1), ratelimit.FixedWindow(ratelimit.PerDay(1)), ratelimit.SlidingLog(ratelimit.PerDay(1)), ratelimit.SlidingCounter(ratelimit.PerDay(1))}
	for _, a := range all {
		for _, b := range to {
			t.Run(fmt.Sprint(a.Algorithm, "-", b.Algorithm), func(t *testing.T) {
				for n := 1; n < 12; n++ {
					l, _ := newLimiter(t, a)
					for range n {
						_, err := l.Reserve(t.Context(), "k", 1e6, time.Hour)
						require.NoError(t, err)
					}
					require.NoError(t, l.SetLimit(b))
					d, err := l.Take(t.Context(), "k", 1)
					if err != nil || d.Allowed || d.Remaining != 0 || d.ResetAfter < 24*time.Hour || d.RetryAfter <= 0 {
						t.Errorf("n %d: %+v %v", n, d, err)
					}
				}
			})
		}
	}
}

// A spending from before a change of limit was regained at rates that are not known any
// more: a cancel must not give back what others have spent since.
func TestACancelAfterAChangeOfLimitMintsNothing(t *testing.T) {
	ctx := t.Context()
	from := []ratelimit.Limit{ratelimit.TokenBucket(ratelimit.PerSecond(1), 10), ratelimit.LeakyBucket(ratelimit.PerSecond(1), 10), ratelimit.FixedWindow(ratelimit.Per(10, 10*time.Second)), ratelimit.SlidingLog(ratelimit.Per(10, 10*time.Second)), ratelimit.SlidingCounter(ratelimit.Per(10, 10*time.Second))}
	to := []ratelimit.Limit{ratelimit.TokenBucket(ratelimit.Per(1, 1000*time.Second), 10), ratelimit.LeakyBucket(ratelimit.Per(1, 1000*time.Second), 10), ratelimit.FixedWindow(ratelimit.Per(10, 10000*time.Second)), ratelimit.SlidingLog(ratelimit.Per(10, 10000*time.Second)), ratelimit.SlidingCounter(ratelimit.Per(10, 10000*time.Second))}
	for _, a := range from {
		for _, b := range to {
			for _, wait := range []time.Duration{1, 5 * time.Second, 9 * time.Second, 12 * time.Second, 17 * time.Second} {
				for _, take := range []int{1, 4, 8} {
					l, clock := newLimiter(t, a)
					r, err := l.Reserve(ctx, "k", 10, 0)
					require.NoError(t, err)
					require.True(t, r.Allowed)
					clock.set(wait)
					require.NoError(t, l.SetLimit(b))
					got := 0
					for range take {
						if l.Allow("k", 1) {
							got++
						}
					}
					r.Cancel()
					d, _ := l.Peek("k", 0)
					if got+d.Remaining > 10 {
						t.Errorf("%v -> %v after %v: %d taken and not cancelled, and %d left of 10", a, b, wait, got, d.Remaining)
					}
				}
			}
		}
	}
}

// changed is a limiter after a random history with a change of limit in it.
type changed struct {
	l     *ratelimit.Keyed[string]
	clock *testClock
	rs    []*ratelimit.Reservation
}

func runHistory(t testing.TB, seed uint64, a, b ratelimit.Limit) *changed {
	r := rand.New(rand.NewPCG(testsize.Seed(seed), 1))
	h := &changed{}
	h.l, h.clock = newLimiter(t, a)
	per := int64(model.Span(a))
	step := func() {
		h.clock.now.Add(r.Int64N(per/2 + 1))
		n := 1 + r.IntN(a.Capacity())
		switch r.IntN(6) {
		case 0, 1:
			h.l.Allow("k", n)
		case 2, 3:
			x, _ := h.l.Reserve(t.Context(), "k", n, time.Duration(r.Int64N(4*per)))
			h.rs = append(h.rs, x)
		case 4:
			if len(h.rs) > 0 {
				h.rs[r.IntN(len(h.rs))].Settle(r.IntN(2 * a.Capacity()))
			}
		case 5:
			_ = h.l.Adjust("k", r.IntN(4*a.Capacity())-2*a.Capacity())
		}
	}
	for range r.IntN(12) {
		step()
	}
	require.NoError(t, h.l.SetLimit(b))
	a = b
	h.l.Allow("k", 1)
	per = int64(model.Span(b))
	for range r.IntN(3) {
		step()
	}
	return h
}

// Whatever came before and after a change of limit, the figures are true to the
// nanosecond.
func TestFiguresAreTrueAfterAChangeOfLimit(t *testing.T) {
	for seed := range model.Rounds(6_000) {
		r := rand.New(rand.NewPCG(testsize.Seed(seed), 2))
		probeChange(t, seed, r, anyLimit(r), anyLimit(r))
	}
}

// anyLimit returns a small limit, with few nanoseconds to a window.
func anyLimit(r *rand.Rand) ratelimit.Limit {
	l := everyAlgorithm[r.IntN(len(everyAlgorithm))]
	if l.Rate.Units = 1 + r.IntN(12); l.Algorithm == ratelimit.AlgorithmCalendar {
		l.Period = model.Periods[r.IntN(len(model.Periods))].Period
		return l
	}
	l.Rate.Per = time.Duration(1 + r.Int64N(100))
	if l.Burst > 0 {
		l.Burst = 1 + r.IntN(12)
	}
	return l
}

func probeChange(t *testing.T, seed uint64, r *rand.Rand, from, to ratelimit.Limit) {
	h := runHistory(t, seed, from, to)
	now := h.clock.Now()
	cost := 1 + r.IntN(to.Capacity())
	what := fmt.Sprintf("seed %d, %v to %v, cost %d", seed, from, to, cost)
	peek, err := h.l.Peek("k", cost)
	require.NoError(t, err)
	d, err := h.l.Take(t.Context(), "k", cost)
	require.NoError(t, err)
	require.Equal(t, []any{peek.Allowed, peek.RetryAfter, peek.Delay}, []any{d.Allowed, d.RetryAfter, d.Delay}, what)

	passes := func(after time.Duration, cost int) bool {
		again := runHistory(t, seed, from, to)
		again.clock.set(now + after)
		return again.l.Allow("k", cost)
	}
	if !d.Allowed {
		require.True(t, passes(d.RetryAfter, cost), what)
		require.False(t, passes(d.RetryAfter-1, cost), what)
	}
	require.True(t, passes(0, peek.Remaining), what)
	require.False(t, passes(0, peek.Remaining+1), what)

	gone := func(after time.Duration) bool {
		again := runHistory(t, seed, from, to)
		again.clock.set(now + after)
		again.l.Sweep()
		return again.l.Len() == 0
	}
	require.True(t, gone(peek.ResetAfter), what)
	if peek.ResetAfter > 0 {
		require.False(t, gone(peek.ResetAfter-1), what)
	}
}

// A tracked key that is put under Unlimited keeps its bucket, which rests; a stack must not
// take that for one to charge.
func TestAStackLetsKeysThatAreUnlimitedNowRest(t *testing.T) {
	l, _ := newLimiter(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 5))
	stack, err := ratelimit.All(ratelimit.By(l, func(s string) (string, error) { return s, nil }))
	require.NoError(t, err)
	require.True(t, stack.Allow("k", 5))
	require.NoError(t, l.SetLimit(ratelimit.Unlimited()))
	require.True(t, stack.Allow("k", 9))
	require.NoError(t, l.SetLimit(ratelimit.TokenBucket(ratelimit.PerSecond(1), 5)))
	assert.False(t, stack.Allow("k", 1))
}

// A Refresh that comes while a stack asks LimitFor is not lost either, even if the
// stack is refused in the end.
func TestARefreshDuringARefusedStackIsNotLost(t *testing.T) {
	units := 5
	var l *ratelimit.Keyed[string]
	during := func() {}
	l = newWith(t, ratelimit.FixedWindow(ratelimit.PerHour(2)), ratelimit.Options[string]{
		Clock: new(testClock), LimitFor: func(string) ratelimit.Limit {
			limit := ratelimit.FixedWindow(ratelimit.PerHour(units))
			during()
			return limit
		},
	})
	self := func(s string) (string, error) { return s, nil }
	other := func(string) (string, error) { return "other", nil }
	stack, err := ratelimit.All(ratelimit.By(l, self), ratelimit.By(l, other), ratelimit.By(l, other))
	require.NoError(t, err)
	require.True(t, l.Allow("k", 1))
	require.True(t, l.Allow("other", 1))
	l.Refresh("k")
	during = func() {
		during = func() {}
		units = 50
		l.Refresh("k")
	}
	_, err = stack.Take(t.Context(), "k", 3) // twice 3 of the other key's 5
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	d, err := l.Peek("k", 1)
	require.NoError(t, err)
	assert.Equal(t, 50, d.Limit.Rate.Units)
}

// Idle keys must not keep every era's plans in memory.
func TestOldErasAreForgotten(t *testing.T) {
	const plans, eras = 500, 50
	l := newWith(t, onceADay, ratelimit.Options[int]{Clock: new(testClock), LimitFor: func(key int) ratelimit.Limit {
		return ratelimit.TokenBucket(ratelimit.PerDay(key%plans+1), key%plans+1)
	}})
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	var first uint64
	for era := range eras {
		for key := range plans {
			l.Allow(key, 1)
		}
		l.Allow(plans*(era+1), 1) // a visitor who does not come again
		if l.Refresh(); era == 1 {
			first = heap()
		}
	}
	assert.Less(t, heap(), first+plans*eras*16, "less than a pointer or two for each plan there ever was")
	runtime.KeepAlive(l)
}

// Everything at once, with limits that change: the bound on keys holds, nothing hangs,
// and in the end nothing is left.
func TestNothingIsLeftOfAChaos(t *testing.T) {
	limits := append([]ratelimit.Limit{ratelimit.Unlimited(), ratelimit.Blocked()}, everyAlgorithm...)
	for _, most := range []int{1, 5, 64} {
		for _, full := range []ratelimit.Overflow{ratelimit.Overflow(0), ratelimit.RefuseNew} {
			c := newChaos(t, most, full)
			var wg sync.WaitGroup
			for seed := range uint64(8) {
				wg.Go(func() {
					rnd := rand.New(rand.NewPCG(testsize.Seed(seed), uint64(most)))
					for range 1500 {
						c.step(t, rnd, limits)
					}
				})
			}
			wg.Wait()
			c.clock.advance(20 * 366 * 24 * time.Hour)
			for _, l := range c.limiters {
				l.Sweep()
				require.Zero(t, l.Len())
			}
		}
	}
}

type chaos struct {
	most     int
	clock    *testClock
	limiters []*ratelimit.Keyed[int]
	stacks   []*ratelimit.Layered[int]
}

func newChaos(t *testing.T, most int, full ratelimit.Overflow) *chaos {
	c := &chaos{most: most, clock: new(testClock)}
	for _, limit := range everyAlgorithm[:2] {
		c.limiters = append(c.limiters, newWith(t, limit, ratelimit.Options[int]{
			Clock: c.clock, MaxKeys: most, OnFull: full, LimitFor: func(key int) ratelimit.Limit {
				return map[int]ratelimit.Limit{3: everyAlgorithm[3], 4: {Algorithm: 77}}[key]
			},
		}))
	}
	by := func(l, n int) ratelimit.Layer[int] {
		return ratelimit.By(c.limiters[l], func(i int) (int, error) { return i * n % 9, nil })
	}
	for _, layers := range [][]ratelimit.Layer[int]{
		{by(0, 1), by(1, 2), by(0, 4)},
		{by(1, 2), by(0, 1), by(0, 1), ratelimit.WithCost(by(1, 5), func(int) int { return 1 })},
	} {
		stack, err := ratelimit.All(layers...)
		require.NoError(t, err)
		c.stacks = append(c.stacks, stack)
	}
	return c
}

func (c *chaos) step(t *testing.T, rnd *rand.Rand, limits []ratelimit.Limit) {
	key, l, stack := rnd.IntN(9), c.limiters[rnd.IntN(2)], c.stacks[rnd.IntN(2)]
	switch rnd.IntN(13) {
	case 0:
		l.Allow(key, 1)
	case 1:
		_, _ = l.Take(t.Context(), key, rnd.IntN(8)-1)
	case 2, 3, 4:
		stack.Allow(key, rnd.IntN(3))
	case 5:
		_, _ = stack.Peek(key, 1)
	case 6:
		if r, _ := stack.Reserve(t.Context(), key, 1, s); rnd.IntN(2) == 0 {
			r.Settle(rnd.IntN(4))
		}
	case 7:
		if r, _ := l.Reserve(t.Context(), key, 1, s); rnd.IntN(2) == 0 {
			r.Settle(rnd.IntN(4))
		}
	case 8:
		_ = l.SetLimit(limits[rnd.IntN(len(limits))])
	case 9:
		l.Refresh(key)
	case 10:
		l.Reset(key)
		l.Sweep()
	case 11:
		c.clock.advance(time.Duration(rnd.Int64N(1e8) - 1e7))
	case 12:
		_ = l.Adjust(key, rnd.IntN(10)-5)
	}
	if n := l.Len(); n > c.most {
		t.Errorf("%d keys of %d", n, c.most)
	}
}
