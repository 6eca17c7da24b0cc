package ratelimit_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/model"
)

// report is a limiter recording the events it reports.
type report struct {
	*ratelimit.Keyed[string]
	events []ratelimit.Event[string]
}

func reporting(t testing.TB, limit ratelimit.Limit, o ratelimit.Options[string]) *report {
	l := new(report)
	o.OnDecision = func(e ratelimit.Event[string]) { l.events = append(l.events, e) }
	l.Keyed = newWith(t, limit, o)
	return l
}

// last returns the newest event, and forgets all.
func (l *report) last(t testing.TB) ratelimit.Event[string] {
	t.Helper()
	require.Len(t, l.events, 1)
	e := l.events[0]
	l.events = nil
	return e
}

func TestAShadowLayerNeverDenies(t *testing.T) {
	clock := new(testClock)
	enforced := onClock(t, clock, ratelimit.TokenBucket(ratelimit.PerSecond(1), 9).Named("enforced"))
	tried := reporting(t, ratelimit.FixedWindow(ratelimit.PerMinute(3)).Named("tried"), ratelimit.Options[string]{Clock: clock})
	stack := stackOf(t, model.AsShadow(ratelimit.By(tried.Keyed, byUser)), ratelimit.By(enforced, byUser))

	d, err := stack.Take(t.Context(), call{user: "ann"}, 2)
	require.NoError(t, err)
	assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: enforced.Describe().Limits[0], Remaining: 7, ResetAfter: 2 * s}, d)
	assert.Equal(t, ratelimit.Event[string]{Key: "ann", Cost: 2, Spent: true, Decision: ratelimit.Decision{
		Allowed: true, Limit: tried.Describe().Limits[0], Remaining: 1, ResetAfter: time.Minute}}, tried.last(t))

	d, err = stack.Take(t.Context(), call{user: "ann"}, 2)
	require.NoError(t, err)
	assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: enforced.Describe().Limits[0], Remaining: 5, ResetAfter: 4 * s}, d)
	assert.Equal(t, ratelimit.Event[string]{Key: "ann", Cost: 2, Decision: ratelimit.Decision{
		Limit: tried.Describe().Limits[0], Remaining: 1, RetryAfter: time.Minute, ResetAfter: time.Minute}}, tried.last(t))
	assert.Equal(t, 1, remaining(t, tried.Keyed, "ann"), "what does not fit is not charged")
	require.True(t, stack.Allow(call{user: "ann"}, 1))
	assert.True(t, tried.last(t).Spent)
	assert.Zero(t, remaining(t, tried.Keyed, "ann"))
}

func TestADeniedRequestChargesNoShadow(t *testing.T) {
	clock := new(testClock)
	enforced := reporting(t, ratelimit.FixedWindow(ratelimit.PerMinute(1)).Named("enforced"), ratelimit.Options[string]{Clock: clock})
	tried := reporting(t, ratelimit.FixedWindow(ratelimit.PerHour(3)).Named("tried"), ratelimit.Options[string]{Clock: clock})
	stack := stackOf(t, ratelimit.By(enforced.Keyed, byUser), model.AsShadow(ratelimit.By(tried.Keyed, byUser)))
	require.True(t, enforced.Allow("ann", 1))
	enforced.events = nil
	assert.False(t, stack.Allow(call{user: "ann"}, 1))
	assert.Zero(t, tried.Stats().Keys, "nor is its key tracked")
	assert.Equal(t, ratelimit.Event[string]{Key: "ann", Cost: 1, Decision: ratelimit.Decision{
		Allowed: true, Limit: tried.Describe().Limits[0], Remaining: 3}}, tried.last(t), "it would have said yes")
	assert.Equal(t, time.Minute, enforced.last(t).Decision.RetryAfter)
}

func TestAShadowAddsNothingToTheDecision(t *testing.T) {
	clock := new(testClock)
	enforced := onClock(t, clock, ratelimit.TokenBucket(ratelimit.PerSecond(10), 5))
	queue := onClock(t, clock, ratelimit.LeakyBucket(ratelimit.PerHour(1), 3))
	stack := stackOf(t, model.AsShadow(ratelimit.By(queue, byUser)), ratelimit.By(enforced, byUser))
	for i, want := range []ratelimit.Decision{
		{Allowed: true, Remaining: 4, ResetAfter: 100 * ms},
		{Allowed: true, Remaining: 3, ResetAfter: 200 * ms},
	} {
		want.Limit = enforced.Describe().Limits[0]
		d, err := stack.Take(t.Context(), call{user: "ann"}, 1)
		require.NoError(t, err)
		assert.Equal(t, want, d)
		assert.Equal(t, 2-i, remaining(t, queue, "ann"))
	}
	d, err := stack.Peek(context.Background(), call{user: "ann"}, 3)
	require.NoError(t, err)
	assert.True(t, d.Allowed)
	assert.Equal(t, 3, d.Remaining)
	r, err := stack.Reserve(t.Context(), call{user: "ann"}, 1, time.Second)
	require.NoError(t, err)
	assert.True(t, r.Allowed, "the queue would delay for an hour")
	assert.Zero(t, r.Delay)
	assert.Equal(t, 1, remaining(t, queue, "ann"))
}

func TestOfTwoLayersOnOneKeyTheEnforcingOneCountsFirst(t *testing.T) {
	clock := new(testClock)
	l := onClock(t, clock, ratelimit.FixedWindow(ratelimit.PerMinute(5)))
	by := ratelimit.By(l, byUser)
	stack := stackOf(t, model.AsShadow(by), by, model.AsShadow(by))
	require.True(t, stack.Allow(call{user: "ann"}, 2))
	assert.Equal(t, 1, remaining(t, l, "ann"), "2 enforced, 2 by the first shadow; the second does not fit")
	require.True(t, stack.Allow(call{user: "ann"}, 1))
	assert.Zero(t, remaining(t, l, "ann"))
	require.False(t, stack.Allow(call{user: "ann"}, 1))
}

func TestAShadowOnTheSameKeyIsDecidedUnderTheSameLimit(t *testing.T) {
	other := []ratelimit.Limit{ratelimit.TokenBucket(ratelimit.PerHour(1), 100), ratelimit.LeakyBucket(ratelimit.PerHour(1), 100),
		ratelimit.FixedWindow(ratelimit.PerHour(100)), ratelimit.SlidingLog(ratelimit.PerHour(100)), ratelimit.SlidingCounter(ratelimit.PerHour(100))}
	for _, limit := range []ratelimit.Limit{ratelimit.TokenBucket(ratelimit.PerSecond(3), 6), ratelimit.LeakyBucket(ratelimit.PerSecond(3), 6),
		ratelimit.FixedWindow(ratelimit.PerSecond(6)), ratelimit.SlidingLog(ratelimit.PerSecond(6)), ratelimit.SlidingCounter(ratelimit.PerSecond(6))} {
		for _, tried := range other {
			clock := new(testClock)
			one, two := onClock(t, clock, limit), onClock(t, clock, limit)
			want := stackOf(t, ratelimit.By(one, byUser), model.AsShadow(ratelimit.By(one, byUser)))
			got := stackOf(t, model.AsShadow(model.WithLimit(ratelimit.By(two, byUser), func(call) ratelimit.Limit { return tried })), ratelimit.By(two, byUser))
			for range 8 {
				expected, err := want.Take(t.Context(), call{user: "ann"}, 1)
				require.NoError(t, err)
				d, err := got.Take(t.Context(), call{user: "ann"}, 1)
				require.NoError(t, err)
				assert.Equal(t, expected, d, "%v beside %v", tried, limit)
				clock.advance(100 * time.Millisecond)
			}
		}
	}
}

// TestAShadowOnANewKeyIsDecidedUnderTheSameLimit uses a shadow whose own
// limit is below the cost. Alone, this shadow would not track the key.
func TestAShadowOnANewKeyIsDecidedUnderTheSameLimit(t *testing.T) {
	l := reporting(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 9).Named("enforced"), ratelimit.Options[string]{Clock: new(testClock)})
	small := model.WithLimit(ratelimit.By(l.Keyed, byUser), func(call) ratelimit.Limit { return ratelimit.SlidingLog(ratelimit.PerSecond(1)) })
	stack := stackOf(t, model.AsShadow(small), ratelimit.By(l.Keyed, byUser))
	for i := range 2 {
		require.True(t, stack.Allow(call{user: "ann"}, 2))
		require.Len(t, l.events, 2)
		for _, e := range l.events {
			require.Equal(t, ratelimit.Event[string]{Key: "ann", Cost: 2, Spent: true, Decision: ratelimit.Decision{
				Allowed: true, Limit: l.Describe().Limits[0], Remaining: 5 - 4*i, ResetAfter: time.Duration(4+4*i) * s}}, e)
		}
		l.events = nil
	}
}

func TestAShadowsErrorsAreReportedAndNotReturned(t *testing.T) {
	broken := errors.New("broken")
	clock := new(testClock)
	limit := ratelimit.FixedWindow(ratelimit.PerMinute(5)).Named("tried")
	enforced := onClock(t, clock, ratelimit.FixedWindow(ratelimit.PerMinute(1000)))
	tried := reporting(t, limit, ratelimit.Options[string]{Clock: clock, MaxKeys: 1, OnFull: ratelimit.RefuseNew})
	by := ratelimit.By(tried.Keyed, byUser)
	for _, test := range []struct {
		name  string
		layer ratelimit.Layer[call]
		user  string
		want  error
		key   string
		limit ratelimit.Limit
	}{
		{"key function", ratelimit.By(tried.Keyed, func(call) (string, error) { return "", broken }), "ann", broken, "", ratelimit.Limit{}},
		{"cost above the capacity", model.WithCost(by, func(call) int { return 6 }), "ann", ratelimit.ErrExceedsLimit, "ann", limit},
		{"negative cost", model.WithCost(by, func(call) int { return -6 }), "ann", ratelimit.ErrNegativeCost, "ann", ratelimit.Limit{}},
		{"invalid limit", model.WithLimit(by, func(call) ratelimit.Limit { return ratelimit.Limit{Burst: 1} }), "ann", ratelimit.ErrInvalidLimit, "ann", ratelimit.Limit{}},
		{"full table", by, "bob", ratelimit.ErrTableFull, "bob", limit},
	} {
		t.Run(test.name, func(t *testing.T) {
			require.True(t, tried.Allow("ann", 1))
			tried.events = nil
			stack := stackOf(t, model.AsShadow(test.layer), ratelimit.By(enforced, byUser))
			d, err := stack.Take(t.Context(), call{user: test.user}, 1)
			require.NoError(t, err)
			assert.True(t, d.Allowed)
			e := tried.last(t)
			assert.ErrorIs(t, e.Err, test.want)
			assert.Equal(t, test.key, e.Key)
			assert.Equal(t, test.limit, e.Decision.Limit)
			assert.False(t, e.Decision.Allowed)
			assert.False(t, e.Spent)
			tried.Reset(context.Background(), "ann")
		})
	}
	assert.Equal(t, 995, remaining(t, enforced, "ann")+remaining(t, enforced, "bob")-1000, "the other layer was charged each time")
}

func TestSettlingTouchesTheShadowsThatWereCharged(t *testing.T) {
	clock := new(testClock)
	limit := ratelimit.TokenBucket(ratelimit.PerHour(1), 9)
	enforced, tried, small := onClock(t, clock, limit), onClock(t, clock, limit), onClock(t, clock, ratelimit.FixedWindow(ratelimit.PerHour(3)))
	stack := stackOf(t, model.AsShadow(ratelimit.By(small, byUser)), ratelimit.By(enforced, byUser), model.AsShadow(ratelimit.By(tried, byUser)))
	r, err := stack.Reserve(t.Context(), call{user: "ann"}, 4, 0)
	require.NoError(t, err)
	require.NoError(t, r.Settle(1))
	assert.Equal(t, []int{3, 8, 8}, []int{remaining(t, small, "ann"), remaining(t, enforced, "ann"), remaining(t, tried, "ann")})
	r, err = stack.Reserve(t.Context(), call{user: "ann"}, 1, 0)
	require.NoError(t, err)
	require.NoError(t, r.Settle(3))
	assert.Equal(t, []int{0, 5, 5}, []int{remaining(t, small, "ann"), remaining(t, enforced, "ann"), remaining(t, tried, "ann")})
}

func TestAStackOfShadowsAllowsEverything(t *testing.T) {
	l := onClock(t, new(testClock), ratelimit.FixedWindow(ratelimit.PerMinute(1)))
	stack := stackOf(t, model.AsShadow(ratelimit.By(l, byUser)))
	for range 2 {
		d, err := stack.Take(t.Context(), call{user: "ann"}, 1)
		require.NoError(t, err)
		assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: ratelimit.Unlimited(), Remaining: math.MaxInt}, d)
	}
	assert.Zero(t, remaining(t, l, "ann"))
	_, err := stack.Take(t.Context(), call{user: "ann"}, -1)
	require.ErrorIs(t, err, ratelimit.ErrNegativeCost)
	assert.Empty(t, stack.Describe().Limits, "it enforces none")
}

func TestALayerHasItsOwnCostAndLimitAndIsAShadow(t *testing.T) {
	l := onClock(t, new(testClock), ratelimit.FixedWindow(ratelimit.PerMinute(100)))
	y := ratelimit.By(l, byUser)
	y.Shadow = true
	y.Cost = func(call) int { return 1 }
	y.Limit = func(call) ratelimit.Limit { return ratelimit.FixedWindow(ratelimit.PerMinute(3)) }
	stack := stackOf(t, y)
	for range 5 {
		require.True(t, stack.Allow(call{user: "ann"}, 50))
	}
	assert.Equal(t, 97, remaining(t, l, "ann"))
}

func TestALayerIsAValueThatNeitherACopyNorALaterChangeAlters(t *testing.T) {
	l := onClock(t, new(testClock), ratelimit.FixedWindow(ratelimit.PerMinute(3)))
	y := ratelimit.By(l, byUser)
	stack := stackOf(t, y)
	shadow := y
	shadow.Shadow = true
	y.Cost = func(call) int { return 2 }
	assert.True(t, stack.Allow(call{user: "ann"}, 3), "the stack has the layer as All received it")
	assert.False(t, stackOf(t, y).Allow(call{user: "ann"}, 1), "the copy is the shadow, not this one")
	assert.True(t, stackOf(t, shadow).Allow(call{user: "ann"}, 1))
}

func TestFieldsOfALayerThatAreZeroChangeNothing(t *testing.T) {
	l := onClock(t, new(testClock), ratelimit.FixedWindow(ratelimit.PerMinute(9)).Named("own"))
	y := ratelimit.By(l, byUser)
	y.Cost, y.Limit, y.Observe, y.Shadow = nil, nil, nil, false
	stack := stackOf(t, y)
	d, err := stack.Take(t.Context(), call{user: "ann"}, 4)
	require.NoError(t, err)
	assert.Equal(t, 5, d.Remaining, "the caller's cost")
	assert.Equal(t, "own", d.Limit.Name)
	assert.False(t, stack.Allow(call{user: "ann"}, 6), "it enforces")
}

func TestAWaitIsNotHeldUpByAShadow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tried := ratelimit.Must(ratelimit.New[string](ratelimit.LeakyBucket(ratelimit.PerHour(1), 9), nil))
		real := ratelimit.Must(ratelimit.New[string](ratelimit.LeakyBucket(ratelimit.PerSecond(1), 9), nil))
		stack := stackOf(t, model.AsShadow(ratelimit.By(tried, byUser)), ratelimit.By(real, byUser))
		start := time.Now()
		require.NoError(t, stack.Wait(t.Context(), call{user: "ann"}, 1))
		require.NoError(t, stack.Wait(t.Context(), call{user: "ann"}, 1))
		assert.Equal(t, time.Second, time.Since(start))
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(ms, cancel)
		require.ErrorIs(t, stack.Wait(ctx, call{user: "ann"}, 1), context.Canceled)
		assert.Equal(t, 7, remaining(t, tried, "ann"), "a wait that failed is undone in the shadow too")
	})
}

// TestAShadowThatCanNeverFitChangesNothing checks the shadow's key, and which keys are tracked.
func TestAShadowThatCanNeverFitChangesNothing(t *testing.T) {
	clock := new(testClock)
	l := newWith(t, ratelimit.TokenBucket(ratelimit.PerSecond(2), 6), ratelimit.Options[string]{Clock: clock, MaxKeys: 1})
	by := ratelimit.By(l, byUser)
	small := model.WithLimit(by, func(call) ratelimit.Limit { return ratelimit.FixedWindow(ratelimit.PerHour(2)) })
	require.True(t, l.Allow("ann", 5))
	clock.advance(200 * time.Millisecond)
	before, err := l.Peek(context.Background(), "ann", 1)
	require.NoError(t, err)
	require.True(t, stackOf(t, model.AsShadow(small)).Allow(call{user: "ann"}, 3))
	require.True(t, stackOf(t, model.AsShadow(small), model.AsShadow(by)).Allow(call{user: "bob"}, 3), "under the first one's limit")
	after, err := l.Peek(context.Background(), "ann", 1)
	require.NoError(t, err)
	assert.Equal(t, before, after)
}

// TestARequestsLimitThatEqualsTheLimitersFollowsSetLimit settles after a SetLimit. If the request's limit equals
// the limiter's, the key is under the limiter's limit. So the settlement puts it under the new limit, and it
// regains at the new rate. Under any other limit of a request it stays until the next decision. A limiter that
// treated all requests' limits alike would leave the first key under the old limit, with less remaining.
func TestARequestsLimitThatEqualsTheLimitersFollowsSetLimit(t *testing.T) {
	hourly := ratelimit.TokenBucket(ratelimit.PerHour(1), 10)
	for _, test := range []struct {
		name  string
		limit ratelimit.Limit
		want  int
	}{
		{"none", ratelimit.Limit{}, 10},
		{"the limiter's", hourly, 10},
		{"another", ratelimit.TokenBucket(ratelimit.PerHour(1), 9), 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			clock := new(testClock)
			l := onClock(t, clock, hourly)
			by := model.WithLimit(ratelimit.By(l, byUser), func(call) ratelimit.Limit { return test.limit })
			stack := stackOf(t, by, model.AsShadow(by))
			require.True(t, stack.Allow(call{user: "ann"}, 2))
			r, err := stack.Reserve(t.Context(), call{user: "ann"}, 0, 0)
			require.NoError(t, err)
			require.NoError(t, l.SetLimit(ratelimit.TokenBucket(ratelimit.PerSecond(1), 10)))
			require.NoError(t, r.Settle(3))
			assert.Equal(t, 3, remaining(t, l, "ann"), "2, 2 by the shadow, and 3")
			clock.advance(10 * s)
			assert.Equal(t, test.want, remaining(t, l, "ann"))
		})
	}
}
