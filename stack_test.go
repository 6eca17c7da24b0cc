package ratelimit_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/chain"
	"github.com/weir-go/ratelimit/internal/dev/model"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// A reservation of cost 0 used to record the costs of layers with their own
// cost, and its Cancel gave these back. So 100 passed under a limit of 3 a day.
func TestACancelledReservationOfCostZeroMintsNothing(t *testing.T) {
	l := onClock(t, new(testClock), ratelimit.FixedWindow(ratelimit.PerDay(3)))
	requested := 0
	stack := stackOf(t, model.WithCost(ratelimit.By(l, byUser), func(call) int { requested++; return 1 }))
	admitted := 0
	for range 100 {
		if stack.Allow(call{user: "ann"}, 5) {
			admitted++
		}
		r, err := stack.Reserve(t.Context(), call{user: "ann"}, 0, 0)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		require.NoError(t, r.Cancel())
	}
	assert.Equal(t, 3, admitted)
	assert.Equal(t, 100, requested, "with a cost of 0 nobody is asked for one")
}

func TestAReservationOfCostZeroChargesTheLayersOfTheCallersCost(t *testing.T) {
	clock := new(testClock)
	limit := ratelimit.TokenBucket(ratelimit.PerDay(1), 1000)
	tokens, requests, tried := onClock(t, clock, limit), onClock(t, clock, limit), onClock(t, clock, limit)
	stack := stackOf(t,
		model.WithCost(ratelimit.By(requests, byUser), func(call) int { return 1 }),
		ratelimit.By(tokens, byUser),
		model.WithLimit(ratelimit.By(tokens, byRoute), func(call) ratelimit.Limit { return ratelimit.TokenBucket(ratelimit.PerDay(1), 600) }),
		model.AsShadow(ratelimit.By(tried, byUser)))
	c := call{user: "ann", route: "/"}
	r, err := stack.Reserve(t.Context(), c, 0, 0)
	require.NoError(t, err)
	require.True(t, r.Allowed)
	assert.Zero(t, tokens.Stats().Keys+requests.Stats().Keys+tried.Stats().Keys, "nothing is tracked before it is settled")
	require.NoError(t, r.Settle(500))
	require.NoError(t, r.Settle(9), "only the first counts")
	assert.Equal(t, 500, remaining(t, tokens, "ann"))
	d, err := stack.Peek(context.Background(), c, 1)
	require.NoError(t, err)
	assert.Equal(t, 100, d.Remaining, "under the request's own limit")
	assert.Zero(t, requests.Stats().Keys)
	assert.Zero(t, tried.Stats().Keys)
	require.NoError(t, tokens.SetLimit(ratelimit.Unlimited()))
	require.NoError(t, r.Cancel())
}

func TestASettlementWithoutRoomInTheTableIsAnError(t *testing.T) {
	l := newWith(t, ratelimit.FixedWindow(ratelimit.PerDay(3)),
		ratelimit.Options[string]{Clock: new(testClock), MaxKeys: 1, OnFull: ratelimit.RefuseNew})
	stack := stackOf(t, ratelimit.By(l, byUser), ratelimit.By(l, byRoute))
	r, err := stack.Reserve(t.Context(), call{user: "ann", route: "/"}, 0, 0)
	require.NoError(t, err)
	require.ErrorIs(t, r.Settle(2), ratelimit.ErrTableFull)
	assert.Equal(t, 1, remaining(t, l, "ann"), "the first found room")
}

// Each layer's limiter observes its own layer's decision. A limiter with 999 left used to report denials under another limit.
func TestEachLimiterObservesItsOwnDecision(t *testing.T) {
	clock := new(testClock)
	much := reporting(t, ratelimit.FixedWindow(ratelimit.PerMinute(1000)).Named("much"), ratelimit.Options[string]{Clock: clock})
	little := reporting(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 2).Named("little"), ratelimit.Options[string]{Clock: clock})
	stack := stackOf(t, ratelimit.By(much.Keyed, byUser), ratelimit.By(little.Keyed, byRoute))
	c := call{user: "ann", route: "/"}

	require.True(t, stack.Allow(c, 1))
	assert.Equal(t, ratelimit.Event[string]{Key: "ann", Cost: 1, Spent: true, Decision: ratelimit.Decision{
		Allowed: true, Limit: much.Describe().Limits[0], Remaining: 999, ResetAfter: time.Minute}}, much.last(t))
	assert.Equal(t, ratelimit.Event[string]{Key: "/", Cost: 1, Spent: true, Decision: ratelimit.Decision{
		Allowed: true, Limit: little.Describe().Limits[0], Remaining: 1, ResetAfter: s}}, little.last(t))

	require.False(t, stack.Allow(c, 2))
	assert.Equal(t, ratelimit.Event[string]{Key: "ann", Cost: 2, Decision: ratelimit.Decision{
		Allowed: true, Limit: much.Describe().Limits[0], Remaining: 999, ResetAfter: time.Minute}}, much.last(t), "it allows, and is not charged")
	assert.Equal(t, ratelimit.Event[string]{Key: "/", Cost: 2, Decision: ratelimit.Decision{
		Limit: little.Describe().Limits[0], Remaining: 1, RetryAfter: s, ResetAfter: s}}, little.last(t))

	_, err := stack.Take(t.Context(), c, 3)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	assert.Equal(t, ratelimit.Event[string]{Key: "ann", Cost: 3, Err: err, Decision: ratelimit.Decision{
		Allowed: true, Limit: much.Describe().Limits[0], Remaining: 999, ResetAfter: time.Minute}}, much.last(t))
	assert.Equal(t, ratelimit.Event[string]{Key: "/", Cost: 3, Err: err, Decision: ratelimit.Decision{
		Limit: little.Describe().Limits[0], Remaining: 1, ResetAfter: s}}, little.last(t))
}

func TestAnErrorOfOneLayerIsReportedWithTheDecisionsOfTheOthers(t *testing.T) {
	clock := new(testClock)
	first := reporting(t, ratelimit.FixedWindow(ratelimit.PerMinute(5)).Named("first"), ratelimit.Options[string]{Clock: clock})
	full := reporting(t, ratelimit.FixedWindow(ratelimit.PerMinute(5)).Named("full"),
		ratelimit.Options[string]{Clock: clock, MaxKeys: 1, OnFull: ratelimit.RefuseNew})
	require.True(t, full.Allow("other", 1))
	full.events = nil
	for name, second := range map[string]ratelimit.Layer[call]{
		"full table":   ratelimit.By(full.Keyed, byUser),
		"key function": ratelimit.By(full.Keyed, func(call) (string, error) { return "", assert.AnError }),
	} {
		t.Run(name, func(t *testing.T) {
			stack := stackOf(t, ratelimit.By(first.Keyed, byUser), second)
			_, err := stack.Take(t.Context(), call{user: "ann"}, 2)
			require.Error(t, err)
			assert.Equal(t, ratelimit.Event[string]{Key: "ann", Cost: 2, Err: err, Decision: ratelimit.Decision{
				Allowed: true, Limit: first.Describe().Limits[0], Remaining: 5}}, first.last(t))
			assert.Zero(t, first.Stats().Keys)
			for _, e := range full.events {
				assert.Equal(t, ratelimit.Event[string]{Key: "ann", Cost: 2, Err: err,
					Decision: ratelimit.Decision{Limit: full.Describe().Limits[0]}}, e)
			}
			full.events = nil
		})
	}
}

// If two layers are equally tight, their addresses in memory must not determine the reported one.
func TestOfLayersThatBindAlikeTheLongerResetIsReturnedThenTheFirst(t *testing.T) {
	long := ratelimit.FixedWindow(ratelimit.PerHour(2)).Named("long")
	short := ratelimit.FixedWindow(ratelimit.PerMinute(2)).Named("short")
	twin := ratelimit.FixedWindow(ratelimit.PerHour(2)).Named("twin")
	for _, test := range []struct {
		limits []ratelimit.Limit
		want   string
	}{
		{[]ratelimit.Limit{short, long}, "long"},
		{[]ratelimit.Limit{long, short}, "long"},
		{[]ratelimit.Limit{long, twin, short}, "long"},
		{[]ratelimit.Limit{short, twin, long}, "twin"},
	} {
		for range 20 { // the accounts have other addresses each time
			clock := new(testClock)
			var layers []ratelimit.Layer[call]
			for _, limit := range test.limits {
				layers = append(layers, ratelimit.By(onClock(t, clock, limit), byUser))
			}
			stack := stackOf(t, layers...)
			d, err := stack.Take(t.Context(), call{user: "ann"}, 2)
			require.NoError(t, err)
			require.Equal(t, test.want, d.Limit.Name)
			require.Zero(t, d.Remaining)
		}
	}
	// If two denials end at the same time, the layer fresh later is reported.
	for range 20 {
		clock := new(testClock)
		small := onClock(t, clock, ratelimit.TokenBucket(ratelimit.PerSecond(1), 1).Named("small"))
		large := onClock(t, clock, ratelimit.TokenBucket(ratelimit.PerSecond(1), 5).Named("large"))
		require.True(t, small.Allow("ann", 1))
		require.True(t, large.Allow("ann", 5))
		for _, stack := range []*ratelimit.Layered[call]{
			stackOf(t, ratelimit.By(small, byUser), ratelimit.By(large, byUser)),
			stackOf(t, ratelimit.By(large, byUser), ratelimit.By(small, byUser)),
		} {
			d, err := stack.Take(t.Context(), call{user: "ann"}, 1)
			require.NoError(t, err)
			require.Equal(t, ratelimit.Decision{Limit: large.Describe().Limits[0], RetryAfter: s, ResetAfter: 5 * s, NextAfter: s}, d)
		}
	}
}

func TestTheLongerRetryBindsWhicheverIsFreshLater(t *testing.T) {
	clock := new(testClock)
	soon := onClock(t, clock, ratelimit.TokenBucket(ratelimit.PerSecond(1), 10).Named("soon"))
	late := onClock(t, clock, ratelimit.FixedWindow(ratelimit.Per(1, 5*s)).Named("late"))
	require.True(t, soon.Allow("ann", 10))
	require.True(t, late.Allow("ann", 1))
	d, err := stackOf(t, ratelimit.By(soon, byUser), ratelimit.By(late, byUser)).Take(t.Context(), call{user: "ann"}, 1)
	require.NoError(t, err)
	assert.Equal(t, ratelimit.Decision{Limit: late.Describe().Limits[0], RetryAfter: 5 * s, ResetAfter: 10 * s, NextAfter: 5 * s}, d)
}

func TestTheZeroLayeredNamesTheFault(t *testing.T) {
	var zero ratelimit.Layered[call]
	const want = "ratelimit: this Layered is nil or zero: make one with All or AllOf"
	for name, f := range map[string]func(){
		"Allow":    func() { zero.Allow(call{}, 1) },
		"Take":     func() { _, _ = zero.Take(t.Context(), call{}, 1) },
		"Peek":     func() { _, _ = zero.Peek(context.Background(), call{}, 1) },
		"Reserve":  func() { _, _ = zero.Reserve(t.Context(), call{}, 1, 0) },
		"Wait":     func() { _ = zero.Wait(t.Context(), call{}, 1) },
		"Describe": func() { zero.Describe() },
		"nil":      func() { (*ratelimit.Layered[call])(nil).Allow(call{}, 1) },
	} {
		assert.PanicsWithError(t, want, f, name)
	}
}

// A denied key is throttled until it is fresh or allowed. Another layer's denial does not end that.
func TestAStacksDenialLeavesAKeyThrottled(t *testing.T) {
	clock := new(testClock)
	l := newWith(t, ratelimit.TokenBucket(ratelimit.PerHour(1), 2), ratelimit.Options[string]{Clock: clock, MaxKeys: 2})
	closed := onClock(t, clock, ratelimit.FixedWindow(ratelimit.PerHour(1)))
	require.True(t, closed.Allow("/", 1))
	stack := stackOf(t, ratelimit.By(l, byUser), ratelimit.By(closed, byRoute))
	require.True(t, l.Allow("throttled", 1))
	require.False(t, l.Allow("throttled", 2))
	require.False(t, stack.Allow(call{user: "throttled", route: "/"}, 1))
	for range 2 {
		clock.advance(ms)
		require.True(t, l.Allow("in use", 1))
	}
	clock.advance(ms)
	require.True(t, l.Allow("new", 1))
	assert.Equal(t, 1, remaining(t, l, "throttled"))
	assert.Equal(t, 2, remaining(t, l, "in use"), "this one had to go")
}

// A key used only by stacks is throttled like any other, so it keeps its place, too.
func TestAKeyThatOnlyAStackHasDeniedIsThrottled(t *testing.T) {
	clock := new(testClock)
	l := newWith(t, ratelimit.TokenBucket(ratelimit.PerHour(1), 2), ratelimit.Options[string]{Clock: clock, MaxKeys: 2})
	stack := stackOf(t, ratelimit.By(l, byUser))
	require.True(t, stack.Allow(call{user: "throttled"}, 1))
	require.False(t, stack.Allow(call{user: "throttled"}, 2))
	for range 2 {
		clock.advance(ms)
		require.True(t, l.Allow("in use", 1))
	}
	clock.advance(ms)
	require.True(t, l.Allow("new", 1))
	assert.Equal(t, 1, remaining(t, l, "throttled"))
	assert.Equal(t, 2, remaining(t, l, "in use"), "this one had to go")
}

func TestALayerOfCostZeroBesideOthersTouchesNothing(t *testing.T) {
	for _, limit := range everyAlgorithm {
		t.Run(limit.Algorithm.String(), func(t *testing.T) {
			clock := new(testClock)
			free := reporting(t, limit, ratelimit.Options[string]{Clock: clock})
			paid := onClock(t, clock, limit)
			stack := stackOf(t, model.WithCost(ratelimit.By(free.Keyed, byUser), func(call) int { return 0 }), ratelimit.By(paid, byUser))
			require.True(t, stack.Allow(call{user: "ann"}, 1))
			assert.False(t, free.last(t).Spent)
			assert.Zero(t, free.Stats().Keys, "it creates no key")
			require.True(t, free.Allow("ann", 1))
			clock.advance(1000 * time.Hour)
			free.events = nil
			require.True(t, stack.Allow(call{user: "ann"}, 1))
			assert.False(t, free.last(t).Spent)
			d, err := free.Peek(context.Background(), "ann", 0)
			require.NoError(t, err)
			assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: limit, Remaining: limit.Capacity()}, d)
		})
	}
}

func TestALayerOfCostZeroIsNotReportedAsSpentWithAnotherOnItsKey(t *testing.T) {
	l := reporting(t, ratelimit.FixedWindow(ratelimit.PerHour(9)), ratelimit.Options[string]{Clock: new(testClock)})
	by := ratelimit.By(l.Keyed, byUser)
	stack := stackOf(t, model.WithCost(by, func(call) int { return 0 }), by)
	require.True(t, stack.Allow(call{user: "ann"}, 2))
	require.Len(t, l.events, 2)
	assert.Equal(t, []bool{false, true}, []bool{l.events[0].Spent, l.events[1].Spent})
}

// A request that can never pass fails whatever its keys have spent, so it throttles none.
func TestARequestThatCanNeverPassThrottlesNoKey(t *testing.T) {
	clock := new(testClock)
	l := newWith(t, ratelimit.TokenBucket(ratelimit.PerHour(1), 2), ratelimit.Options[string]{Clock: clock, MaxKeys: 2})
	small := onClock(t, clock, ratelimit.FixedWindow(ratelimit.PerHour(1)))
	stack := stackOf(t, ratelimit.By(l, byUser), ratelimit.By(small, byRoute))
	require.True(t, l.Allow("old", 1))
	_, err := stack.Take(t.Context(), call{user: "old"}, 2) // one layer denies the cost, and the other can never allow it
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	for range 2 {
		clock.advance(ms)
		require.True(t, l.Allow("in use", 1))
	}
	clock.advance(ms)
	require.True(t, l.Allow("new", 1))
	assert.Equal(t, 2, remaining(t, l, "old"), "it had to go: it was used before the other")
	assert.Zero(t, remaining(t, l, "in use"))
}

func TestACostOfZeroIsNeverDelayed(t *testing.T) {
	clock := new(testClock)
	stack := stackOf(t, ratelimit.By(onClock(t, clock, ratelimit.LeakyBucket(ratelimit.PerSecond(1), 2)), byUser))
	require.True(t, stack.Allow(call{user: "ann"}, 2))
	d, err := stack.Take(t.Context(), call{user: "ann"}, 0)
	require.NoError(t, err)
	assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: stack.Describe().Limits[0], ResetAfter: 2 * s, NextAfter: s}, d)
	r, err := stack.Reserve(t.Context(), call{user: "ann"}, 0, 0)
	require.NoError(t, err)
	assert.Equal(t, d, r.Decision)
	require.NoError(t, stack.Wait(t.Context(), call{user: "ann"}, 0))
}

func TestCostsTooLargeToAddUpAreRefused(t *testing.T) {
	clock := new(testClock)
	most := ratelimit.TokenBucket(ratelimit.Per(1<<30, time.Nanosecond), math.MaxInt)
	l := onClock(t, clock, most)
	by := ratelimit.By(l, byUser)
	_, err := stackOf(t, by, by, by).Take(t.Context(), call{user: "ann"}, math.MaxInt)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	own := model.WithCost(by, func(call) int { return math.MaxInt })
	_, err = stackOf(t, own, own).Take(t.Context(), call{user: "ann"}, 1)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	sum := min(2*uint64(math.MaxInt), math.MaxInt64) // an int has 32 bits on some machines
	assert.ErrorContains(t, err, fmt.Sprintf("cost %d is", sum), "a sum that is too large is told as the largest figure there is")
	assert.Zero(t, l.Stats().Keys)
}

func TestASettlementTooLargeToCountIsADebt(t *testing.T) {
	l := onClock(t, new(testClock), ratelimit.FixedWindow(ratelimit.PerHour(9)))
	by := ratelimit.By(l, byUser)
	// Twice MaxInt overflows to −2 in 64 bits, and would be a grant.
	r, err := stackOf(t, by, by).Reserve(t.Context(), call{user: "ann"}, 1, 0)
	require.NoError(t, err)
	require.Equal(t, 7, remaining(t, l, "ann"))
	require.NoError(t, r.Settle(math.MaxInt))
	assert.Zero(t, remaining(t, l, "ann"))
}

func TestADenialEvictsNoKeyForTheKeysOfTheRequest(t *testing.T) {
	clock := new(testClock)
	l := newWith(t, ratelimit.FixedWindow(ratelimit.PerHour(9)), ratelimit.Options[string]{Clock: clock, MaxKeys: 1})
	closed := onClock(t, clock, ratelimit.FixedWindow(ratelimit.PerHour(1)))
	require.True(t, closed.Allow("/", 1))
	require.True(t, l.Allow("old", 4))
	stack := stackOf(t, ratelimit.By(l, byUser), ratelimit.By(closed, byRoute))
	require.False(t, stack.Allow(call{user: "new", route: "/"}, 1))
	assert.Equal(t, 5, remaining(t, l, "old"))
	assert.Equal(t, ratelimit.Stats{Keys: 1}, l.Stats())
}

func TestTheKeysOfOneRequestDoNotEvictEachOther(t *testing.T) {
	for _, full := range []ratelimit.Overflow{ratelimit.Overflow(0), ratelimit.RefuseNew} {
		l := newWith(t, ratelimit.FixedWindow(ratelimit.PerMinute(9)),
			ratelimit.Options[string]{Clock: new(testClock), MaxKeys: 1, OnFull: full})
		stack := stackOf(t, ratelimit.By(l, byUser), ratelimit.By(l, byRoute))
		_, err := stack.Take(t.Context(), call{user: "ann", route: "/"}, 1)
		require.ErrorIs(t, err, ratelimit.ErrTableFull)
		stats := l.Stats()
		assert.Zero(t, stats.Expired+stats.Evicted, "no key came in between, only to go again")
	}
}

func TestACancelInAStackAfterAChangeOfLimitCountsAsIfTheCostHadNotBeenCharged(t *testing.T) {
	clock := new(testClock)
	l := onClock(t, clock, ratelimit.TokenBucket(ratelimit.PerHour(1), 10))
	stack := stackOf(t, ratelimit.By(l, byUser))
	r, err := stack.Reserve(t.Context(), call{user: "ann"}, 4, 0)
	require.NoError(t, err)
	require.NoError(t, l.SetLimit(ratelimit.TokenBucket(ratelimit.PerSecond(1), 10)))
	require.True(t, l.Allow("ann", 1))
	clock.advance(4 * s)
	require.Equal(t, 9, remaining(t, l, "ann"), "5 spent, 4 regained")
	require.NoError(t, r.Cancel())
	assert.Equal(t, 10, remaining(t, l, "ann"), "the 1 that was spent is regained")
	require.True(t, l.Allow("ann", 10))
	assert.Zero(t, remaining(t, l, "ann"))
}

func TestACancelInAStackAfterAnEarlierChangeOfLimitGivesBack(t *testing.T) {
	l := onClock(t, new(testClock), ratelimit.TokenBucket(ratelimit.PerHour(1), 10))
	stack := stackOf(t, ratelimit.By(l, byUser))
	require.True(t, l.Allow("ann", 1))
	require.NoError(t, l.SetLimit(ratelimit.TokenBucket(ratelimit.PerHour(2), 10)))
	r, err := stack.Reserve(t.Context(), call{user: "ann"}, 4, 0)
	require.NoError(t, err)
	require.Equal(t, 5, remaining(t, l, "ann"))
	require.NoError(t, r.Cancel())
	assert.Equal(t, 9, remaining(t, l, "ann"))
}

func TestACostThatCanNeverPassIsReportedUnderItsLayersLimit(t *testing.T) {
	clock := new(testClock)
	empty := onClock(t, clock, ratelimit.FixedWindow(ratelimit.PerHour(9)).Named("empty"))
	small := onClock(t, clock, ratelimit.FixedWindow(ratelimit.PerHour(3)).Named("small"))
	require.True(t, empty.Allow("ann", 9))
	stack := stackOf(t, ratelimit.By(empty, byUser), ratelimit.By(small, byUser))
	d, err := stack.Take(t.Context(), call{user: "ann"}, 4)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	assert.Equal(t, ratelimit.Decision{Limit: small.Describe().Limits[0], ResetAfter: time.Hour, NextAfter: time.Hour}, d, "there is no time to retry after")
}

func TestAStacksPeekSeesRefundedUnits(t *testing.T) {
	l := onClock(t, new(testClock), ratelimit.TokenBucket(ratelimit.PerSecond(1), 2))
	stack := stackOf(t, ratelimit.By(l, byUser))
	require.True(t, l.Allow("ann", 2))
	var booked []*ratelimit.Reservation
	for range 3 {
		r, err := l.Reserve(t.Context(), "ann", 1, time.Minute)
		require.NoError(t, err)
		booked = append(booked, r)
	}
	for i := len(booked) - 1; i >= 0; i-- {
		require.NoError(t, booked[i].Cancel())
		d, err := stack.Peek(context.Background(), call{user: "ann"}, 1)
		require.NoError(t, err)
		require.Equal(t, time.Duration(i+1)*s, d.RetryAfter)
	}
}

// Under Unlimited and Blocked no key is tracked. A stack still returns and reports their limits.
func TestAStackOverUntrackedKeysReturnsTheirLimit(t *testing.T) {
	clock := new(testClock)
	free := reporting(t, ratelimit.Unlimited().Named("free"), ratelimit.Options[string]{Clock: clock})
	stack := stackOf(t, ratelimit.By(free.Keyed, byUser))
	d, err := stack.Take(t.Context(), call{user: "ann"}, 7)
	require.NoError(t, err)
	assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: free.Describe().Limits[0], Remaining: math.MaxInt}, d)
	e := free.last(t)
	assert.Equal(t, d, e.Decision)
	assert.False(t, e.Spent)
	blocked := reporting(t, ratelimit.Blocked().Named("blocked"), ratelimit.Options[string]{Clock: clock})
	stack = stackOf(t, ratelimit.By(free.Keyed, byUser), ratelimit.By(blocked.Keyed, byUser))
	d, err = stack.Take(t.Context(), call{user: "ann"}, 7)
	require.ErrorIs(t, err, ratelimit.ErrBlocked)
	assert.Equal(t, ratelimit.Decision{Limit: blocked.Describe().Limits[0]}, d)
	assert.Equal(t, ratelimit.Decision{Limit: blocked.Describe().Limits[0]}, blocked.last(t).Decision)
	assert.True(t, free.last(t).Decision.Allowed)
}

// Stacks contain the same limits in different orders, or one limit twice, while
// keys are evicted and limits change. Nothing hangs, and each key's bound holds.
func TestStacksUnderPressureKeepTheirBound(t *testing.T) {
	const units = 50
	clock := new(testClock)
	limit := ratelimit.FixedWindow(ratelimit.PerHour(units))
	shared := onClock(t, clock, limit)
	var small []*ratelimit.Keyed[string]
	for _, full := range []ratelimit.Overflow{ratelimit.Overflow(0), ratelimit.RefuseNew} {
		small = append(small, newWith(t, ratelimit.FixedWindow(ratelimit.PerHour(1000)),
			ratelimit.Options[string]{Clock: clock, MaxKeys: 4, OnFull: full, LimitFor: func(string) ratelimit.Limit { return ratelimit.Limit{} }}))
	}
	one, a, b := ratelimit.By(shared, byUser), ratelimit.By(small[0], byRoute), ratelimit.By(small[1], byRoute)
	stacks := []*ratelimit.Layered[call]{
		stackOf(t, one, a, b), stackOf(t, b, a, one), stackOf(t, a, one, model.AsShadow(b)), stackOf(t, one, one, model.AsShadow(a)),
		stackOf(t, model.WithLimit(one, func(c call) ratelimit.Limit { return ratelimit.FixedWindow(ratelimit.PerHour(units)) }), b),
	}
	admitted := make([]int, 16)
	storm(len(admitted), func(g int) {
		for i := range 150 {
			n := (g + i) % len(stacks)
			if stacks[n].Allow(call{user: "ann", route: fmt.Sprint(i % 7)}, 1) {
				admitted[g]++
				if n == 3 {
					admitted[g]++
				}
			}
			switch i % 30 {
			case 7:
				small[0].Refresh()
			case 14:
				_ = small[1].SetLimit(ratelimit.FixedWindow(ratelimit.PerHour(1000 + i%2)))
			case 21:
				small[0].Reset(context.Background(), fmt.Sprint(i%7))
				small[1].Sweep()
			}
		}
	})
	sum := 0
	for _, n := range admitted {
		sum += n
	}
	assert.Equal(t, units-remaining(t, shared, "ann"), sum)
	for _, l := range small {
		assert.LessOrEqual(t, l.Stats().Keys, 4)
	}
}

func TestAFailedWaitIsNotReportedAsSpent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := reporting(t, ratelimit.LeakyBucket(ratelimit.PerHour(1), 9), ratelimit.Options[string]{})
		stack := stackOf(t, ratelimit.By(l.Keyed, byUser))
		require.NoError(t, stack.Wait(t.Context(), call{user: "ann"}, 1))
		assert.True(t, l.last(t).Spent)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, cancel)
		err := stack.Wait(ctx, call{user: "ann"}, 1)
		require.Error(t, err)
		e := l.last(t)
		assert.False(t, e.Spent)
		assert.Equal(t, err, e.Err)
	})
}

// A calendar is combined with other limits. A denying stack does not
// charge the calendar, and a denying chain gives its charge back.
func TestCalendarsInStacksAndChains(t *testing.T) {
	clock := new(ratelimittest.Clock)
	clock.SetWall(time.Date(2026, 11, 30, 23, 0, 0, 0, time.UTC))
	opts := &ratelimit.Options[string]{Clock: clock}
	key := func(s string) (string, error) { return s, nil }
	for name, build := range map[string]func(quota, rate *ratelimit.Keyed[string]) (ratelimit.Reserver[string], error){
		"stack": func(quota, rate *ratelimit.Keyed[string]) (ratelimit.Reserver[string], error) {
			return ratelimit.All(ratelimit.By(quota, key), ratelimit.By(rate, key))
		},
		"chain": func(quota, rate *ratelimit.Keyed[string]) (ratelimit.Reserver[string], error) {
			return chain.New[string](quota, rate)
		},
	} {
		quota := ratelimit.Must(ratelimit.New(ratelimit.Calendar(10, ratelimit.Month("UTC", 1)), opts))
		rate := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerMinute(4)), opts))
		l, err := build(quota, rate)
		require.NoError(t, err, name)
		start, admitted := clock.Wall(), 0
		for range 30 {
			for range 6 {
				if l.Allow("k", 1) {
					admitted++
				}
			}
			clock.Advance(time.Minute)
		}
		require.Equal(t, 10, admitted, name)
		d, err := l.Take(t.Context(), "k", 1)
		require.NoError(t, err, name)
		to := time.Date(start.Year(), start.Month()+1, 1, 0, 0, 0, 0, time.UTC)
		require.Equal(t, to.Sub(clock.Wall()), d.RetryAfter, name)
		r, err := l.Reserve(t.Context(), "other", 4, 0)
		require.NoError(t, err, name)
		require.True(t, r.Allowed, name)
		require.NoError(t, r.Settle(1))
		d, err = quota.Peek(context.Background(), "other", 1)
		require.NoError(t, err, name)
		require.Equal(t, 9, d.Remaining, name)
		clock.Advance(to.Sub(clock.Wall()))
		require.True(t, l.Allow("k", 4), name)
	}
}

func TestADenialByAnotherLayerDoesNotMakeAKeyThrottled(t *testing.T) {
	clock := new(testClock)
	users := newWith(t, ratelimit.TokenBucket(ratelimit.PerHour(10), 10), ratelimit.Options[string]{Clock: clock, MaxKeys: 3})
	gate := onClock(t, clock, ratelimit.FixedWindow(ratelimit.PerDay(6)))
	stack := stackOf(t, ratelimit.By(users, byUser), ratelimit.By(gate, byRoute))
	for _, user := range []string{"ann", "bob", "eve"} {
		require.True(t, stack.Allow(call{user: user, route: "/"}, 2))
	}
	for _, user := range []string{"ann", "eve"} {
		require.False(t, users.Allow(user, 9), "denied by their own limit")
	}
	clock.advance(s)
	require.False(t, stack.Allow(call{user: "bob", route: "/"}, 1), "denied by the gate")
	require.True(t, users.Allow("new", 1))
	assert.Equal(t, ratelimit.Stats{Keys: 3, Evicted: 1}, users.Stats(), "none of them was throttled")
	assert.Equal(t, 10, remaining(t, users, "bob"), "who had room, and so was the one to go")
}

// interfering is a clock that calls the function then, if set, at its next reading.
type interfering struct {
	testClock
	then func()
}

func (c *interfering) Now() time.Duration {
	if then := c.then; then != nil {
		c.then = nil
		then()
	}
	return c.testClock.Now()
}

// While the stack inserts the missing keys, another call spends the budget found by the stack. So
// the stack denies, and leaves nothing behind: no inserted key, and no pin on a key tracked before.
func TestADenialAfterKeysWereInsertedTakesThemOutAgain(t *testing.T) {
	clock := new(interfering)
	limit := ratelimit.FixedWindow(ratelimit.PerDay(3))
	there := newWith(t, limit, ratelimit.Options[string]{Clock: clock, MaxKeys: 1})
	missing := newWith(t, limit, ratelimit.Options[string]{Clock: clock, MaxKeys: 1})
	stack := stackOf(t, ratelimit.By(there, byUser), ratelimit.By(missing, byRoute))
	require.True(t, there.Allow("ann", 1))

	decisions := 0
	clock.then = func() { // the reading for the stack's first check
		clock.then = func() { // the reading for the insertion
			decisions++
			require.True(t, there.Allow("ann", 2))
		}
	}
	d, err := stack.Take(t.Context(), call{user: "ann", route: "/"}, 1)
	require.NoError(t, err)
	require.Equal(t, 1, decisions)
	require.Equal(t, ratelimit.Decision{Limit: limit, RetryAfter: 24 * time.Hour, ResetAfter: 24 * time.Hour, NextAfter: 24 * time.Hour}, d)
	require.Zero(t, missing.Stats().Keys, "a denial tracks no key")
	require.Equal(t, 3, remaining(t, missing, "/"))

	// No key is pinned, so other keys can take the only place.
	require.True(t, missing.Allow("/other", 1))
	require.True(t, there.Allow("bob", 1))
	require.Equal(t, ratelimit.Stats{Keys: 1, Evicted: 1, EvictedThrottled: 1}, there.Stats())
	require.True(t, stack.Allow(call{user: "ann", route: "/"}, 1))
}

// taking is a request that receives all layers' answers itself: see answerTaker.
type taking struct {
	key     string
	which   []int
	denials bool // whether it takes only denials
	taken   []string
}

func (t *taking) WantsAnswers(allowed bool) bool { return !allowed || !t.denials }

func (t *taking) TakeAnswer(layer int, d *ratelimit.Decision, spent bool, err error) {
	t.taken = append(t.taken, fmt.Sprint(layer, *d, spent, err))
}

// TestARequestTakesTheAnswersThatObserversGet compares two equal stacks. In one,
// the requests take the answers, and in the other, the layers are observed.
func TestARequestTakesTheAnswersThatObserversGet(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 1))
	var seen []string
	clock := new(testClock)
	stackOf := func(observed bool) *ratelimit.Layered[*taking] {
		var layers []ratelimit.Layer[*taking]
		for i, limit := range []ratelimit.Limit{
			ratelimit.TokenBucket(ratelimit.PerSecond(2), 6), ratelimit.FixedWindow(ratelimit.PerSecond(5)), ratelimit.SlidingLog(ratelimit.PerSecond(4)),
		} {
			l := ratelimit.Must(ratelimit.New(limit, &ratelimit.Options[string]{Clock: clock}))
			y := ratelimit.By(l, func(r *taking) (string, error) { return r.key, nil })
			if i == 2 {
				y = model.AsShadow(y)
			}
			if observed {
				y = model.ObservedBy(y, func(e ratelimit.Event[*taking]) { seen = append(seen, fmt.Sprint(i, e.Decision, e.Spent, e.Err)) })
			}
			layers = append(layers, y)
		}
		l, err := ratelimit.AllOf(func(r *taking, which []int) []int { return append(which, r.which...) }, layers...)
		require.NoError(t, err)
		return l
	}
	takes, observed := stackOf(false), stackOf(true)
	allowed, denied := 0, 0
	for range 2000 {
		clock.advance(time.Duration(r.IntN(int(300 * time.Millisecond))))
		q := &taking{key: fmt.Sprint(r.IntN(3)), which: [][]int{{0, 1, 2}, {0}, {2, 1}, {1, 2}, {}}[r.IntN(5)], denials: r.IntN(2) == 0}
		cost := r.IntN(8)
		seen = nil
		var ok, want bool
		if r.IntN(2) == 0 {
			ok, want = takes.Allow(q, cost), observed.Allow(&taking{key: q.key, which: q.which}, cost)
		} else {
			d, err := takes.Take(t.Context(), q, cost)
			e, wantErr := observed.Take(t.Context(), &taking{key: q.key, which: q.which}, cost)
			require.Equal(t, e, d)
			require.Equal(t, fmt.Sprint(wantErr), fmt.Sprint(err))
			ok, want = d.Allowed && err == nil, e.Allowed && wantErr == nil
		}
		require.Equal(t, want, ok)
		if ok {
			allowed++
		} else {
			denied++
		}
		if ok && q.denials {
			require.Empty(t, q.taken)
			continue
		}
		if !ok && cost > 5 && len(q.taken) == len(seen) { // Allow reports an error without its text
			continue
		}
		require.Equal(t, seen, q.taken)
	}
	require.Greater(t, allowed, 200)
	require.Greater(t, denied, 200)
}

// An account shared by all requests is locked late and unlocked early, and
// for some denials not at all. The results are the same as for any other key.
func TestAnAccountThatAllRequestsShareCountsAsThatOfAnyKey(t *testing.T) {
	testsize.Arithmetic(t)
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(58, seed))
		clock := new(testClock)
		limits := everyAlgorithm[:]
		global, users := limits[r.IntN(len(limits))], limits[r.IntN(len(limits))]
		var received [2][]string
		var all ratelimit.Options[struct{}]
		var one, each [2]ratelimit.Options[string]
		each[0].Clock, each[1].Clock, one[1].Clock, all.Clock = clock, clock, clock, clock
		if seed%3 == 0 { // sometimes an observer receives the answers
			each[0].OnDecision = func(e ratelimit.Event[string]) { received[0] = append(received[0], fmt.Sprint(e)) }
			each[1].OnDecision = func(e ratelimit.Event[string]) { received[1] = append(received[1], fmt.Sprint(e)) }
		}
		if seed%5 == 0 { // sometimes the limit comes from LimitFor
			all.LimitFor = func(struct{}) ratelimit.Limit { return global }
			one[1].LimitFor = func(string) ratelimit.Limit { return global }
		}
		shared, ordinary := newWith(t, global, all), newWith(t, global, one[1])
		byUsers := [2]*ratelimit.Keyed[string]{newWith(t, users, each[0]), newWith(t, users, each[1])}
		constant := ratelimit.By(ordinary, func(call) (string, error) { return "", nil })
		stacks := [2]*ratelimit.Layered[call]{
			stackOf(t, ratelimit.Global[call](shared), ratelimit.By(byUsers[0], byUser)),
			stackOf(t, constant, ratelimit.By(byUsers[1], byUser)),
		}
		if seed%2 == 0 {
			stacks[0] = stackOf(t, ratelimit.By(byUsers[0], byUser), ratelimit.By(byUsers[0], byRoute), ratelimit.Global[call](shared))
			stacks[1] = stackOf(t, ratelimit.By(byUsers[1], byUser), ratelimit.By(byUsers[1], byRoute), constant)
		}
		var open [2][]*ratelimit.Reservation
		for step := range 300 {
			clock.advance(time.Duration(r.Int64N(int64(300 * time.Millisecond))))
			c := call{user: fmt.Sprint(r.IntN(3)), route: fmt.Sprint("r", r.IntN(2))}
			cost, what, delay, pick := r.IntN(4), r.IntN(20), time.Duration(r.IntN(2))*time.Second, r.IntN(1000)
			var got [2]string
			for i, l := range stacks {
				switch {
				case what < 6:
					got[i] = fmt.Sprint(l.Allow(c, cost))
				case what < 11:
					d, err := l.Take(t.Context(), c, cost)
					got[i] = fmt.Sprintf("%+v %v", d, err)
				case what < 14:
					res, err := l.Reserve(t.Context(), c, cost, delay)
					got[i] = fmt.Sprintf("%+v %v", res.Decision, err)
					open[i] = append(open[i], res)
				case what < 16 && len(open[i]) > 0:
					got[i] = fmt.Sprint(open[i][pick%len(open[i])].Settle(cost))
				case what == 16:
					got[i] = fmt.Sprint(l.Adjust(context.Background(), c, cost-2))
				case what == 17 && pick < 100 && i == 0:
					shared.Reset(context.Background(), struct{}{})
				case what == 17 && pick < 100:
					ordinary.Reset(context.Background(), "")
				case what == 18 && pick < 100 && i == 0:
					shared.Refresh()
				case what == 18 && pick < 100:
					ordinary.Refresh()
				default:
					d, err := l.Peek(context.Background(), c, cost)
					got[i] = fmt.Sprintf("%+v %v", d, err)
				}
			}
			require.Equal(t, got[1], got[0], "seed %d, step %d: %v and %v", seed, step, global, users)
			a, err := shared.Peek(context.Background(), struct{}{}, 1)
			require.NoError(t, err)
			b, err := ordinary.Peek(context.Background(), "", 1)
			require.NoError(t, err)
			require.Equal(t, b, a, "seed %d, step %d", seed, step)
			require.Equal(t, received[1], received[0], "seed %d, step %d", seed, step)
		}
	}
}

// Stacks contain one or two limiters for all requests, beside
// others. Some of these limiters are reset. The counts stay exact.
func TestAnAccountThatAllRequestsShareIsExactOnSeveralProcessors(t *testing.T) {
	const units, each = 3000, 1500
	clock := new(testClock)
	limit, huge := ratelimit.FixedWindow(ratelimit.PerHour(units)), ratelimit.FixedWindow(ratelimit.PerHour(1<<30))
	all := ratelimit.Must(ratelimit.New(limit, &ratelimit.Options[struct{}]{Clock: clock}))
	other := ratelimit.Must(ratelimit.New(huge, &ratelimit.Options[struct{}]{Clock: clock}))
	users, few := onClock(t, clock, huge), onClock(t, clock, ratelimit.FixedWindow(ratelimit.PerHour(100)))
	user := ratelimit.By(users, byUser)
	stacks := []*ratelimit.Layered[call]{
		stackOf(t, ratelimit.Global[call](all), user),
		stackOf(t, user, ratelimit.By(few, byRoute), ratelimit.Global[call](all)),
		stackOf(t, ratelimit.Global[call](other), ratelimit.Global[call](all), user),
		stackOf(t, user, ratelimit.Global[call](other)),
	}
	var admitted [4]atomic.Int64
	var alone atomic.Int64
	storm(8, func(g int) {
		for i := range each {
			n := (g + i) % len(stacks)
			c := call{user: "u", route: fmt.Sprint(g % 2)}
			if i%3 == 0 {
				if d, err := stacks[n].Take(t.Context(), c, 1); err == nil && d.Allowed {
					admitted[n].Add(1)
				}
			} else if stacks[n].Allow(c, 1) {
				admitted[n].Add(1)
			}
			switch i % 50 {
			case 10:
				other.Reset(context.Background(), struct{}{}) // drops the account while a decision waits for it
			case 20:
				if all.Allow(struct{}{}, 1) {
					alone.Add(1)
				}
			case 30:
				_, err := stacks[n].Peek(context.Background(), c, 1)
				assert.NoError(t, err)
			}
		}
	})
	sum := admitted[0].Load() + admitted[1].Load() + admitted[2].Load()
	require.EqualValues(t, units, sum+alone.Load())
	require.Equal(t, int(1<<30-sum-admitted[3].Load()), remaining(t, users, "u"))
	left := remaining(t, few, "0") + remaining(t, few, "1")
	require.EqualValues(t, 200-left, admitted[1].Load())
}
