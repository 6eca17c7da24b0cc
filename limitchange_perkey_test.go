package ratelimit_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/testsize"
)

// planned is a request with the limit of its user's plan.
type planned struct {
	user string
	plan ratelimit.Limit
}

func ofUser(p planned) (string, error) { return p.user, nil }
func planOf(p planned) ratelimit.Limit { return p.plan }
func perHour(n int) ratelimit.Limit    { return ratelimit.FixedWindow(ratelimit.PerHour(n)) }
func byPlan(l *ratelimit.Keyed[string]) ratelimit.Layer[planned] {
	return ratelimit.WithLimit(ratelimit.By(l, ofUser), planOf)
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
	assert.Equal(t, 1, l.Len())
	assert.Equal(t, 19, remaining(t, l, "ann"), "without WithLimit the limiter's own limit holds")
	assert.True(t, l.Allow("ann", 19))
	d, err := stack.Peek(planned{"ann", perHour(51).Named("mine")}, 1)
	require.NoError(t, err)
	assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: perHour(51).Named("mine"), Remaining: 1, ResetAfter: time.Hour}, d)
	assert.Equal(t, []ratelimit.Limit{{}}, stack.Limits())
}

func TestALimitOfTheRequestCountsMoreThanLimitFor(t *testing.T) {
	asked := 0
	l := newWith(t, perHour(50), ratelimit.Options[string]{Clock: new(testClock), LimitFor: func(string) ratelimit.Limit {
		asked++
		return perHour(7)
	}})
	stack := limitedTo(t, l)
	d, err := stack.Take(t.Context(), planned{"ann", perHour(10)}, 1)
	require.NoError(t, err)
	assert.Equal(t, 9, d.Remaining)
	assert.Zero(t, asked)
	d, err = stack.Take(t.Context(), planned{user: "ann"}, 1)
	require.NoError(t, err)
	assert.Equal(t, 5, d.Remaining)
	assert.Equal(t, 1, asked)
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
	require.ErrorContains(t, err, "layer 1: WithLimit: ")
	require.ErrorContains(t, err, "Rate.Units is -1")
	assert.False(t, d.Allowed)
	assert.Zero(t, l.Len())
	assert.Zero(t, other.Len())
}

func TestLimitsOfARequestThatDoNotCountLeaveWhatWasSpent(t *testing.T) {
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
	d, err := stack.Peek(planned{"ann", perHour(20)}, 1)
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
		return // sync.Pool drops things at random under the race detector
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
	d, err := stack.Peek(planned{"ann", perHour(1600)}, 1)
	require.NoError(t, err)
	assert.GreaterOrEqual(t, d.Remaining, 1600-1002, "at most the largest of the limits is spent")
	assert.LessOrEqual(t, d.Remaining, 1600-1000, "and no less than the smallest")
}

// TestALimitThatCountsNothingStandsForItself: where several layers meet at one key, Unlimited
// lifts no other layer's limit, and Blocked blocks, whether the key is tracked or not.
func TestALimitThatCountsNothingStandsForItself(t *testing.T) {
	l := onClock(t, new(testClock), ratelimit.TokenBucket(ratelimit.PerSecond(1), 3))
	by := ratelimit.By(l, byUser)
	lifted := ratelimit.WithLimit(by, func(call) ratelimit.Limit { return ratelimit.Unlimited() })
	blocked := ratelimit.WithLimit(by, func(call) ratelimit.Limit { return ratelimit.Blocked() })
	for _, order := range [][]ratelimit.Layer[call]{{lifted, by}, {by, lifted}} {
		l.Reset("ann")
		stack := stackOf(t, order...)
		_, err := stack.Take(t.Context(), call{user: "ann"}, 4)
		require.ErrorIs(t, err, ratelimit.ErrExceedsLimit, "the key is not tracked")
		assert.True(t, stack.Allow(call{user: "ann"}, 2))
		assert.False(t, stack.Allow(call{user: "ann"}, 2))
		_, err = stack.Take(t.Context(), call{user: "ann"}, 4)
		require.ErrorIs(t, err, ratelimit.ErrExceedsLimit, "the key is tracked")
	}
	for _, order := range [][]ratelimit.Layer[call]{{lifted, blocked}, {blocked, lifted}, {by, blocked}, {blocked, by}} {
		l.Reset("ann")
		stack := stackOf(t, order...)
		_, err := stack.Take(t.Context(), call{user: "ann"}, 1)
		require.ErrorIs(t, err, ratelimit.ErrBlocked)
		assert.Equal(t, 3, remaining(t, l, "ann"))
	}
}

// TestAKeyThatOnlyACostOfZeroMetIsTracked: the layers are decided under the first one's limit,
// so that is what says whether the second can be charged.
func TestAKeyThatOnlyACostOfZeroMetIsTracked(t *testing.T) {
	l := onClock(t, new(testClock), ratelimit.FixedWindow(ratelimit.PerHour(7)))
	by := ratelimit.By(l, byUser)
	small := ratelimit.WithLimit(by, func(call) ratelimit.Limit { return ratelimit.TokenBucket(ratelimit.PerHour(2), 2) })
	free := ratelimit.WithCost(by, func(call) int { return 0 })
	stack := stackOf(t, free, small, ratelimit.Shadow(free), ratelimit.Shadow(small))
	for i := range 3 {
		d, err := stack.Take(t.Context(), call{user: "ann"}, 3)
		require.NoError(t, err)
		assert.Equal(t, i == 0, d.Allowed, "3 are charged, and 3 by the shadow")
		assert.Equal(t, 1, d.Remaining)
	}
	assert.Equal(t, 1, l.Len())
}

// TestALimitThatEqualsTheDefaultIsNotTheLimitOfTheKey: what a request brings along is not taken
// for what LimitFor has said.
func TestALimitThatEqualsTheDefaultIsNotTheLimitOfTheKey(t *testing.T) {
	standard := ratelimit.FixedWindow(ratelimit.PerHour(7))
	own := ratelimit.Blocked()
	l := newWith(t, standard, ratelimit.Options[string]{Clock: new(testClock), LimitFor: func(string) ratelimit.Limit { return own }})
	stack := stackOf(t, ratelimit.WithLimit(ratelimit.By(l, byUser), func(call) ratelimit.Limit { return standard }))
	require.True(t, stack.Allow(call{user: "ann"}, 1))
	assert.False(t, l.Allow("ann", 1), "the key by itself is blocked")
	own = ratelimit.FixedWindow(ratelimit.PerHour(1))
	l.Allow("bob", 1)
	peeked, err := stack.Peek(call{user: "bob"}, 1)
	require.NoError(t, err)
	assert.True(t, peeked.Allowed)
	assert.True(t, stack.Allow(call{user: "bob"}, 1))
}

// Only a decision puts a key under a request's limit, or ends that: a correction comes whenever it comes.
func TestACorrectionLeavesTheKeyUnderTheLimitOfItsLastDecision(t *testing.T) {
	ctx := context.Background()
	old, pro := perHour(10), ratelimit.TokenBucket(ratelimit.PerSecond(1000), 1000)
	for name, correct := range map[string]func(l *ratelimit.Keyed[string], late *ratelimit.Reservation) error{
		"a reservation of 0": func(_ *ratelimit.Keyed[string], late *ratelimit.Reservation) error { return late.Settle(5) },
		"a charge":           func(l *ratelimit.Keyed[string], _ *ratelimit.Reservation) error { return l.Adjust("ann", 5) },
		"a grant":            func(l *ratelimit.Keyed[string], _ *ratelimit.Reservation) error { return l.Adjust("ann", -1) },
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

// A Refresh that comes while a decision asks for the limit is not lost, whatever that decision costs.
func TestARefreshWhileADecisionAsksIsNotLost(t *testing.T) {
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
