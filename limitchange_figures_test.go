package ratelimit_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/model"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// Spending under a generous limit may exceed a tight limit's units in a century. Products of the two must not overflow.
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

// Bookings ahead must not overflow, either.
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

// Spending from before a change of limit was regained at rates no longer
// known. A cancellation must not give back others' later spending.
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
					d, _ := l.Peek(context.Background(), "k", 0)
					if got+d.Remaining > 10 {
						t.Errorf("%v -> %v after %v: %d taken and not cancelled, and %d left of 10", a, b, wait, got, d.Remaining)
					}
				}
			}
		}
	}
}

// changed is a limiter after a random history with a change of limit.
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
			_ = h.l.Adjust(context.Background(), "k", r.IntN(4*a.Capacity())-2*a.Capacity())
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

// After any calls before and after a change of limit, the figures are exact to the nanosecond.
func TestFiguresAreTrueAfterAChangeOfLimit(t *testing.T) {
	for seed := range model.Rounds(6_000) {
		r := rand.New(rand.NewPCG(testsize.Seed(seed), 2))
		probeChange(t, seed, r, anyLimit(r), anyLimit(r))
	}
}

// anyLimit returns a small limit whose windows last few nanoseconds.
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
	peek, err := h.l.Peek(context.Background(), "k", cost)
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
		return again.l.Stats().Keys == 0
	}
	logs := from.Algorithm == ratelimit.AlgorithmSlidingLog && to.Algorithm == from.Algorithm
	// otherwise the table may keep the units set aside for longer
	if to.Capacity() >= from.Capacity() && !(logs && to.Rate.Per < from.Rate.Per) {
		require.True(t, gone(peek.ResetAfter), what)
	}
	if peek.ResetAfter > 0 {
		require.False(t, gone(peek.ResetAfter-1), what)
	}
}

// A tracked key put under Unlimited keeps its bucket, unused. A stack must not charge this bucket.
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

// A Refresh during a stack's call to LimitFor is not lost, even if the stack is refused in the end.
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
	_, err = stack.Take(t.Context(), "k", 3) // the other key is charged 3 twice, and has 5
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	d, err := l.Peek(context.Background(), "k", 1)
	require.NoError(t, err)
	assert.Equal(t, 50, d.Limit.Rate.Units)
}

// Idle keys must not keep the plans of all generations in memory.
func TestOldErasAreForgotten(t *testing.T) {
	const plans, eras = 500, 50
	l := newWith(t, onceADay, ratelimit.Options[int]{Clock: new(testClock), LimitFor: func(key int) ratelimit.Limit {
		return ratelimit.TokenBucket(ratelimit.PerDay(key%plans+1), key%plans+1)
	}})
	var first int64
	for era := range eras {
		for key := range plans {
			l.Allow(key, 1)
		}
		l.Allow(plans*(era+1), 1) // a visitor who does not return
		if l.Refresh(); era == 1 {
			first = testsize.Heap()
		}
	}
	assert.Less(t, testsize.Heap(), first+plans*eras*16, "less than a pointer or two for each plan there ever was")
	runtime.KeepAlive(l)
}

// Calls of all kinds run at once, while limits change. The bound
// on keys holds, nothing hangs, and nothing remains at the end.
func TestNothingIsLeftOfAChaos(t *testing.T) {
	limits := append([]ratelimit.Limit{ratelimit.Unlimited(), ratelimit.Blocked()}, everyAlgorithm...)
	steps := 1500
	if testsize.Race {
		steps = 400
	}
	for _, most := range []int{1, 5, 64} {
		for _, full := range []ratelimit.Overflow{ratelimit.Overflow(0), ratelimit.RefuseNew} {
			c := newChaos(t, most, full)
			var wg sync.WaitGroup
			for seed := range uint64(8) {
				wg.Go(func() {
					rnd := rand.New(rand.NewPCG(testsize.Seed(seed), uint64(most)))
					for range steps {
						c.step(t, rnd, limits)
					}
				})
			}
			wg.Wait()
			c.clock.advance(20 * 366 * 24 * time.Hour)
			for _, l := range c.limiters {
				l.Sweep()
				require.Zero(t, l.Stats().Keys)
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
		{by(1, 2), by(0, 1), by(0, 1), model.WithCost(by(1, 5), func(int) int { return 1 })},
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
		_, _ = stack.Peek(context.Background(), key, 1)
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
		l.Reset(context.Background(), key)
		l.Sweep()
	case 11:
		c.clock.advance(time.Duration(rnd.Int64N(1e8) - 1e7))
	case 12:
		_ = l.Adjust(context.Background(), key, rnd.IntN(10)-5)
	}
	if n := l.Stats().Keys; n > c.most {
		t.Errorf("%d keys of %d", n, c.most)
	}
}

// planned is a request with the limit of its user's plan.
type planned struct {
	user string
	plan ratelimit.Limit
}

func ofUser(p planned) (string, error) { return p.user, nil }
func planOf(p planned) ratelimit.Limit { return p.plan }
func perHour(n int) ratelimit.Limit    { return ratelimit.FixedWindow(ratelimit.PerHour(n)) }
func byPlan(l *ratelimit.Keyed[string]) ratelimit.Layer[planned] {
	return model.WithLimit(ratelimit.By(l, ofUser), planOf)
}

func limitedTo(t testing.TB, l *ratelimit.Keyed[string]) *ratelimit.Layered[planned] {
	t.Helper()
	stack, err := ratelimit.All(byPlan(l))
	require.NoError(t, err)
	return stack
}

func TestAKeyHasOneBudgetWhateverItsPlan(t *testing.T) {
	l := onClock(t, new(testClock), perHour(50).Named("own"))
	stack := limitedTo(t, l)
	for _, step := range []struct {
		plan    ratelimit.Limit
		cost    int
		allowed bool
		want    int
	}{
		{perHour(10), 8, true, 2},
		{perHour(100), 9, true, 83},
		{perHour(10), 1, false, 0},
		{ratelimit.Limit{}, 3, true, 30},
		{ratelimit.TokenBucket(ratelimit.PerHour(1), 30), 11, false, 10},
		{ratelimit.TokenBucket(ratelimit.PerHour(1), 30), 10, true, 0},
		{perHour(31), 1, true, 0},
	} {
		d, err := stack.Take(t.Context(), planned{"ann", step.plan}, step.cost)
		require.NoError(t, err)
		assert.Equal(t, step.allowed, d.Allowed)
		assert.Equal(t, step.want, d.Remaining)
		want := step.plan
		if want == (ratelimit.Limit{}) {
			want = perHour(50)
		}
		assert.Equal(t, want.Named("own"), d.Limit, "a limit without a name takes that of the limiter's")
	}
	assert.Equal(t, 1, l.Stats().Keys)
	assert.Equal(t, 19, remaining(t, l, "ann"), "without Layer.Limit the limiter's own limit holds")
	assert.True(t, l.Allow("ann", 19))
	d, err := stack.Peek(context.Background(), planned{"ann", perHour(51).Named("mine")}, 1)
	require.NoError(t, err)
	assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: perHour(51).Named("mine"), Remaining: 1, ResetAfter: time.Hour}, d)
	assert.Equal(t, []ratelimit.Limit{{}}, stack.Describe().Limits)
}

func TestALimitOfTheRequestCountsMoreThanLimitFor(t *testing.T) {
	requested := 0
	l := newWith(t, perHour(50), ratelimit.Options[string]{Clock: new(testClock), LimitFor: func(string) ratelimit.Limit {
		requested++
		return perHour(7)
	}})
	stack := limitedTo(t, l)
	d, err := stack.Take(t.Context(), planned{"ann", perHour(10)}, 1)
	require.NoError(t, err)
	assert.Equal(t, 9, d.Remaining)
	assert.Zero(t, requested)
	d, err = stack.Take(t.Context(), planned{user: "ann"}, 1)
	require.NoError(t, err)
	assert.Equal(t, 5, d.Remaining)
	assert.Equal(t, 1, requested)
	assert.Equal(t, 5, remaining(t, l, "ann"))
	l.Refresh("ann")
	d, err = stack.Take(t.Context(), planned{"ann", perHour(10)}, 1)
	require.NoError(t, err)
	assert.Equal(t, 7, d.Remaining)
}

func TestAnInvalidLimitOfARequestDeniesIt(t *testing.T) {
	clock := new(testClock)
	l, other := onClock(t, clock, perHour(5)), onClock(t, clock, perHour(5))
	stack, err := ratelimit.All(ratelimit.By(other, ofUser), byPlan(l))
	require.NoError(t, err)
	d, err := stack.Take(t.Context(), planned{"ann", perHour(-1)}, 1)
	require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
	require.ErrorContains(t, err, "layer 1: Layer.Limit: ")
	require.ErrorContains(t, err, "Rate.Units is -1")
	assert.False(t, d.Allowed)
	assert.Zero(t, l.Stats().Keys)
	assert.Zero(t, other.Stats().Keys)
}

func TestLimitsOfARequestThatDoNotCountLeaveTheSpending(t *testing.T) {
	l := onClock(t, new(testClock), perHour(5))
	stack := limitedTo(t, l)
	require.True(t, stack.Allow(planned{"ann", perHour(5)}, 4))
	assert.True(t, stack.Allow(planned{"ann", ratelimit.Unlimited()}, 1000))
	_, err := stack.Take(t.Context(), planned{"ann", ratelimit.Blocked()}, 1)
	require.ErrorIs(t, err, ratelimit.ErrBlocked)
	assert.True(t, stack.Allow(planned{"ann", ratelimit.Blocked()}, 0))
	assert.False(t, stack.Allow(planned{"ann", perHour(5)}, 2))
	assert.True(t, stack.Allow(planned{"ann", perHour(5)}, 1))
}

func TestSetLimitReachesRequestsWithoutALimitOnly(t *testing.T) {
	l := onClock(t, new(testClock), perHour(5))
	stack := limitedTo(t, l)
	require.True(t, stack.Allow(planned{"ann", perHour(20)}, 2))
	require.NoError(t, l.SetLimit(perHour(9)))
	d, err := stack.Peek(context.Background(), planned{"ann", perHour(20)}, 1)
	require.NoError(t, err)
	assert.Equal(t, 18, d.Remaining)
	d, err = stack.Take(t.Context(), planned{user: "ann"}, 1)
	require.NoError(t, err)
	assert.Equal(t, 6, d.Remaining)
	d, err = stack.Take(t.Context(), planned{"ann", perHour(9)}, 1)
	require.NoError(t, err)
	assert.Equal(t, 5, d.Remaining)
}

func TestLayersThatMeetGoByTheFirstOnesLimit(t *testing.T) {
	l := onClock(t, new(testClock), perHour(5))
	stack, err := ratelimit.All(byPlan(l), ratelimit.By(l, ofUser))
	require.NoError(t, err)
	d, err := stack.Take(t.Context(), planned{"ann", perHour(20)}, 4)
	require.NoError(t, err)
	assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: perHour(20), Remaining: 6, ResetAfter: time.Hour}, d)
}

func TestDecisionsUnderTenThousandPlansDoNotAllocate(t *testing.T) {
	l := newWith(t, perHour(5), ratelimit.Options[string]{Clock: new(testClock), MaxKeys: 1 << 16})
	stack := limitedTo(t, l)
	requests := make([]planned, 10_000)
	for i := range requests {
		requests[i] = planned{fmt.Sprint("user ", i), perHour(1_000_000 + i)}
		require.True(t, stack.Allow(requests[i], 1))
	}
	if testsize.Race {
		return // under the race detector sync.Pool drops items at random
	}
	i := 0
	assert.Zero(t, testing.AllocsPerRun(20_000, func() {
		stack.Allow(requests[i%len(requests)], 1)
		_, _ = stack.Take(context.Background(), planned{"ann", requests[i%len(requests)].plan}, 0)
		i++
	}))
}

func TestConcurrentPlansShareOneBudget(t *testing.T) {
	l := onClock(t, new(testClock), perHour(1000))
	stack := limitedTo(t, l)
	storm(40, func(i int) {
		for range 20 {
			stack.Allow(planned{"ann", perHour(1000 + i%3)}, 1)
			l.Allow("ann", 1)
		}
	})
	d, err := stack.Peek(context.Background(), planned{"ann", perHour(1600)}, 1)
	require.NoError(t, err)
	assert.GreaterOrEqual(t, d.Remaining, 1600-1002, "at most the largest of the limits is spent")
	assert.LessOrEqual(t, d.Remaining, 1600-1000, "and no less than the smallest")
}

// TestALimitThatCountsNothingStandsForItself has several layers charging one key.
// Unlimited lifts no other layer's limit, and Blocked blocks even an untracked key.
func TestALimitThatCountsNothingStandsForItself(t *testing.T) {
	l := onClock(t, new(testClock), ratelimit.TokenBucket(ratelimit.PerSecond(1), 3))
	by := ratelimit.By(l, byUser)
	lifted := model.WithLimit(by, func(call) ratelimit.Limit { return ratelimit.Unlimited() })
	blocked := model.WithLimit(by, func(call) ratelimit.Limit { return ratelimit.Blocked() })
	for _, order := range [][]ratelimit.Layer[call]{{lifted, by}, {by, lifted}} {
		l.Reset(context.Background(), "ann")
		stack := stackOf(t, order...)
		_, err := stack.Take(t.Context(), call{user: "ann"}, 4)
		require.ErrorIs(t, err, ratelimit.ErrExceedsLimit, "the key is not tracked")
		assert.True(t, stack.Allow(call{user: "ann"}, 2))
		assert.False(t, stack.Allow(call{user: "ann"}, 2))
		_, err = stack.Take(t.Context(), call{user: "ann"}, 4)
		require.ErrorIs(t, err, ratelimit.ErrExceedsLimit, "the key is tracked")
	}
	for _, order := range [][]ratelimit.Layer[call]{{lifted, blocked}, {blocked, lifted}, {by, blocked}, {blocked, by}} {
		l.Reset(context.Background(), "ann")
		stack := stackOf(t, order...)
		_, err := stack.Take(t.Context(), call{user: "ann"}, 1)
		require.ErrorIs(t, err, ratelimit.ErrBlocked)
		assert.Equal(t, 3, remaining(t, l, "ann"))
	}
}

// TestAKeyThatOnlyACostOfZeroMetIsTracked has two layers on one key. The first
// one's limit decides both, and so determines whether the second can be charged.
func TestAKeyThatOnlyACostOfZeroMetIsTracked(t *testing.T) {
	l := onClock(t, new(testClock), ratelimit.FixedWindow(ratelimit.PerHour(7)))
	by := ratelimit.By(l, byUser)
	small := model.WithLimit(by, func(call) ratelimit.Limit { return ratelimit.TokenBucket(ratelimit.PerHour(2), 2) })
	free := model.WithCost(by, func(call) int { return 0 })
	stack := stackOf(t, free, small, model.AsShadow(free), model.AsShadow(small))
	for i := range 3 {
		d, err := stack.Take(t.Context(), call{user: "ann"}, 3)
		require.NoError(t, err)
		assert.Equal(t, i == 0, d.Allowed, "3 are charged, and 3 by the shadow")
		assert.Equal(t, 1, d.Remaining)
	}
	assert.Equal(t, 1, l.Stats().Keys)
}

// TestALimitThatEqualsTheDefaultIsNotTheLimitOfTheKey checks that a request's limit does not count as a result of LimitFor.
func TestALimitThatEqualsTheDefaultIsNotTheLimitOfTheKey(t *testing.T) {
	standard := ratelimit.FixedWindow(ratelimit.PerHour(7))
	own := ratelimit.Blocked()
	l := newWith(t, standard, ratelimit.Options[string]{Clock: new(testClock), LimitFor: func(string) ratelimit.Limit { return own }})
	stack := stackOf(t, model.WithLimit(ratelimit.By(l, byUser), func(call) ratelimit.Limit { return standard }))
	require.True(t, stack.Allow(call{user: "ann"}, 1))
	assert.False(t, l.Allow("ann", 1), "the key by itself is blocked")
	own = ratelimit.FixedWindow(ratelimit.PerHour(1))
	l.Allow("bob", 1)
	peeked, err := stack.Peek(context.Background(), call{user: "bob"}, 1)
	require.NoError(t, err)
	assert.True(t, peeked.Allowed)
	assert.True(t, stack.Allow(call{user: "bob"}, 1))
}

// Only a decision puts a key under a request's limit, or back under the limiter's. A correction never does.
func TestACorrectionLeavesTheKeyUnderTheLimitOfItsLastDecision(t *testing.T) {
	ctx := context.Background()
	old, pro := perHour(10), ratelimit.TokenBucket(ratelimit.PerSecond(1000), 1000)
	for name, correct := range map[string]func(l *ratelimit.Keyed[string], late *ratelimit.Reservation) error{
		"a reservation of 0": func(_ *ratelimit.Keyed[string], late *ratelimit.Reservation) error { return late.Settle(5) },
		"a charge": func(l *ratelimit.Keyed[string], _ *ratelimit.Reservation) error {
			return l.Adjust(context.Background(), "ann", 5)
		},
		"a grant": func(l *ratelimit.Keyed[string], _ *ratelimit.Reservation) error {
			return l.Adjust(context.Background(), "ann", -1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			clock := new(testClock)
			l := onClock(t, clock, perHour(10))
			stack := limitedTo(t, l)
			late, err := stack.Reserve(ctx, planned{"ann", old}, 0, 0)
			require.NoError(t, err)
			require.True(t, stack.Allow(planned{"ann", pro}, 1000))
			require.NoError(t, correct(l, late))
			clock.advance(time.Minute)
			d, err := stack.Take(ctx, planned{"ann", pro}, 500)
			require.NoError(t, err)
			assert.True(t, d.Allowed)
			assert.Equal(t, 500, d.Remaining, "the minute was regained under the limit of the decision before")
		})
	}
}

// A Refresh during a decision's call to LimitFor is not lost, whatever the decision's cost.
func TestARefreshDuringADecisionsLimitForIsNotLost(t *testing.T) {
	for _, cost := range []int{0, 1, 100} {
		plan := perHour(10)
		var during func()
		l, err := ratelimit.New(plan, &ratelimit.Options[string]{Clock: new(testClock), LimitFor: func(string) ratelimit.Limit {
			is := plan
			if f := during; f != nil {
				during = nil
				f()
			}
			return is
		}})
		require.NoError(t, err)
		require.True(t, l.Allow("ann", 5))
		l.Refresh("ann")
		during = func() {
			plan = perHour(50)
			l.Refresh("ann")
		}
		_, _ = l.Take(context.Background(), "ann", cost)
		d, err := l.Take(context.Background(), "ann", 1)
		require.NoError(t, err)
		assert.Equal(t, 50, d.Limit.Capacity(), cost)
	}
}
