package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/model"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// call is a request in the tests of layers. It has a key for each layer, and tokens.
type call struct {
	user, route string
	tokens      int
}

func byUser(c call) (string, error)  { return c.user, nil }
func byRoute(c call) (string, error) { return c.route, nil }
func forAll(call) (struct{}, error)  { return struct{}{}, nil }

func stackOf(t testing.TB, layers ...ratelimit.Layer[call]) *ratelimit.Layered[call] {
	t.Helper()
	l, err := ratelimit.All(layers...)
	require.NoError(t, err)
	return l
}

// onClock returns a limiter with string keys on a clock.
func onClock(t testing.TB, clock ratelimit.Clock, limit ratelimit.Limit) *ratelimit.Keyed[string] {
	t.Helper()
	return newWith(t, limit, ratelimit.Options[string]{Clock: clock})
}

func TestAllLayersAreChargedOrNone(t *testing.T) {
	clock := new(testClock)
	user := onClock(t, clock, ratelimit.TokenBucket(ratelimit.PerSecond(10), 5).Named("user"))
	route := onClock(t, clock, ratelimit.FixedWindow(ratelimit.PerMinute(8)).Named("route"))
	stack := stackOf(t, ratelimit.By(user, byUser), ratelimit.By(route, byRoute))

	d, err := stack.Take(t.Context(), call{user: "ann", route: "/"}, 4)
	require.NoError(t, err)
	assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: stack.Describe().Limits[0], Remaining: 1, ResetAfter: time.Minute}, d)

	d, err = stack.Take(t.Context(), call{user: "ann", route: "/"}, 2)
	require.NoError(t, err)
	assert.Equal(t, ratelimit.Decision{Limit: stack.Describe().Limits[0], Remaining: 1, RetryAfter: 100 * ms, ResetAfter: time.Minute}, d)
	assert.Equal(t, 1, remaining(t, user, "ann"))
	assert.Equal(t, 4, remaining(t, route, "/"), "the route, which would have allowed it, was not charged")

	d, err = stack.Take(t.Context(), call{user: "bob", route: "/"}, 5)
	require.NoError(t, err)
	assert.Equal(t, "route", d.Limit.Name)
	assert.Equal(t, time.Minute, d.RetryAfter)
	assert.Equal(t, 1, user.Stats().Keys, "a denial inserts no keys")
}

func TestTheLayerWithTheLongestRetryDenies(t *testing.T) {
	clock := new(testClock)
	fast := onClock(t, clock, ratelimit.TokenBucket(ratelimit.PerSecond(1), 1).Named("fast"))
	slow := onClock(t, clock, ratelimit.TokenBucket(ratelimit.PerHour(1), 1).Named("slow"))
	for _, stack := range []*ratelimit.Layered[call]{
		stackOf(t, ratelimit.By(fast, byUser), ratelimit.By(slow, byUser)),
		stackOf(t, ratelimit.By(slow, byUser), ratelimit.By(fast, byUser)),
	} {
		fast.Reset(context.Background(), "ann")
		slow.Reset(context.Background(), "ann")
		require.True(t, stack.Allow(call{user: "ann"}, 1))
		d, err := stack.Take(t.Context(), call{user: "ann"}, 1)
		require.NoError(t, err)
		assert.Equal(t, "slow", d.Limit.Name)
		assert.Equal(t, time.Hour, d.RetryAfter)
	}
}

func TestChargesToOneBucketAddUp(t *testing.T) {
	clock := new(testClock)
	l := onClock(t, clock, ratelimit.TokenBucket(ratelimit.PerSecond(1), 5))
	stack := stackOf(t, ratelimit.By(l, byUser), ratelimit.By(l, byUser))
	for _, known := range []bool{false, true} {
		l.Reset(context.Background(), "ann")
		if known {
			require.True(t, l.Allow("ann", 1))
			clock.advance(time.Hour)
		}
		d, err := stack.Peek(context.Background(), call{user: "ann"}, 2)
		require.NoError(t, err)
		assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: stack.Describe().Limits[0], Remaining: 2}, d)
		_, err = stack.Take(t.Context(), call{user: "ann"}, 3)
		require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
		require.True(t, stack.Allow(call{user: "ann"}, 2))
		assert.Equal(t, 1, remaining(t, l, "ann"))
		assert.False(t, stack.Allow(call{user: "ann"}, 1))
		assert.Equal(t, 1, remaining(t, l, "ann"))
	}
	assert.Equal(t, 1, l.Stats().Keys)
}

// Between two layers' lookups of their common key, another call inserts or drops it.
func TestAKeyThatComesOrGoesBetweenTwoLayersIsOne(t *testing.T) {
	for name, between := range map[string]func(l *ratelimit.Keyed[string]) error{
		"comes": func(l *ratelimit.Keyed[string]) error { return l.Adjust(context.Background(), "ann", 3) },
		"goes": func(l *ratelimit.Keyed[string]) error {
			l.Reset(context.Background(), "ann")
			return l.Adjust(context.Background(), "ann", 3)
		},
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := newLimiter(t, ratelimit.FixedWindow(ratelimit.PerDay(4)))
			requested := false
			stack := stackOf(t, ratelimit.By(l, byUser), ratelimit.By(l, func(c call) (string, error) {
				if !requested {
					requested = true
					require.NoError(t, between(l))
				}
				return c.user, nil
			}))
			for what, try := range map[string]func() (ratelimit.Decision, error){
				"Peek": func() (ratelimit.Decision, error) { return stack.Peek(context.Background(), call{user: "ann"}, 1) },
				"Take": func() (ratelimit.Decision, error) { return stack.Take(t.Context(), call{user: "ann"}, 1) },
			} {
				l.Reset(context.Background(), "ann")
				if name == "goes" {
					require.True(t, l.Allow("ann", 1))
				}
				requested = false
				d, err := try()
				require.NoError(t, err, what)
				assert.False(t, d.Allowed, "%s: 1 is left, and 2 are asked for", what)
				assert.Equal(t, 1, remaining(t, l, "ann"), what)
			}
		})
	}
}

func TestALayerMayChargeACostOfItsOwn(t *testing.T) {
	clock := new(testClock)
	requests := onClock(t, clock, ratelimit.FixedWindow(ratelimit.PerMinute(3)).Named("requests"))
	tokens := onClock(t, clock, ratelimit.TokenBucket(ratelimit.PerMinute(1000), 1000).Named("tokens"))
	stack := stackOf(t,
		model.WithCost(ratelimit.By(requests, byUser), func(call) int { return 1 }),
		ratelimit.By(tokens, byUser))

	d, err := stack.Take(t.Context(), call{user: "ann"}, 600)
	require.NoError(t, err)
	assert.Equal(t, "tokens", d.Limit.Name)
	assert.Equal(t, 400, d.Remaining)
	assert.Equal(t, 2, remaining(t, requests, "ann"))

	r, err := stack.Reserve(t.Context(), call{user: "ann"}, 300, 0)
	require.NoError(t, err)
	r.Settle(100)
	assert.Equal(t, 1, remaining(t, requests, "ann"), "it was a request all the same")
	assert.Equal(t, 300, remaining(t, tokens, "ann"))

	r, err = stack.Reserve(t.Context(), call{user: "ann"}, 300, 0)
	require.NoError(t, err)
	r.Cancel()
	assert.Equal(t, 1, remaining(t, requests, "ann"), "it never was")
	assert.Equal(t, 300, remaining(t, tokens, "ann"))

	require.True(t, stack.Allow(call{user: "ann"}, 0), "a cost of 0 is always allowed")
	require.True(t, stack.Allow(call{user: "ann"}, 1))
	d, err = stack.Take(t.Context(), call{user: "ann"}, 1)
	require.NoError(t, err)
	assert.Equal(t, "requests", d.Limit.Name)
	assert.Zero(t, d.Remaining)
	assert.Equal(t, 299, remaining(t, tokens, "ann"))
	assert.True(t, stack.Allow(call{user: "ann"}, 0))
}

func TestALayersOwnCostIsChecked(t *testing.T) {
	clock := new(testClock)
	l := onClock(t, clock, ratelimit.FixedWindow(ratelimit.PerMinute(3)).Named("requests"))
	cost := 0
	stack := stackOf(t, model.WithCost(ratelimit.By(l, byUser), func(call) int { return cost }))
	require.True(t, stack.Allow(call{user: "ann"}, 9))
	assert.Zero(t, l.Stats().Keys, "a cost of 0 creates no key")
	cost = 4
	_, err := stack.Take(t.Context(), call{user: "ann"}, 1)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	require.ErrorContains(t, err, `"requests"`)
	cost = -1
	_, err = stack.Take(t.Context(), call{user: "ann"}, 1)
	require.ErrorIs(t, err, ratelimit.ErrNegativeCost)
}

func TestSkippedLayersDoNotApply(t *testing.T) {
	clock := new(testClock)
	l := onClock(t, clock, ratelimit.FixedWindow(ratelimit.PerMinute(1)))
	skip := func(c call) (string, error) {
		if c.user == "" {
			return "", fmt.Errorf("internal: %w", ratelimit.SkipLayer)
		}
		return c.user, nil
	}
	stack := stackOf(t, ratelimit.By(l, skip))
	for range 3 {
		d, err := stack.Take(t.Context(), call{}, 99)
		require.NoError(t, err)
		assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: ratelimit.Unlimited(), Remaining: math.MaxInt}, d)
	}
	assert.Zero(t, l.Stats().Keys)
	require.True(t, stack.Allow(call{user: "ann"}, 1))
	require.False(t, stack.Allow(call{user: "ann"}, 1))
}

func TestAKeyErrorDeniesAndChargesNothing(t *testing.T) {
	clock := new(testClock)
	l := onClock(t, clock, ratelimit.FixedWindow(ratelimit.PerMinute(9)))
	broken := errors.New("no such header")
	stack := stackOf(t, ratelimit.By(l, byUser), ratelimit.By(l, func(call) (string, error) { return "", broken }))
	d, err := stack.Take(t.Context(), call{user: "ann"}, 1)
	require.ErrorIs(t, err, broken)
	require.EqualError(t, err, "layer 1: key: no such header")
	assert.False(t, d.Allowed)
	_, err = stack.Peek(context.Background(), call{user: "ann"}, 1)
	require.ErrorIs(t, err, broken)
	_, err = stack.Reserve(t.Context(), call{user: "ann"}, 1, 0)
	require.ErrorIs(t, err, broken)
	require.ErrorIs(t, stack.Wait(t.Context(), call{user: "ann"}, 1), broken)
	assert.Zero(t, l.Stats().Keys)
}

func TestAllRefusesLayersThatCannotBeAStack(t *testing.T) {
	clock := new(testClock)
	l := onClock(t, clock, ratelimit.FixedWindow(ratelimit.PerMinute(9)))
	other := onClock(t, new(testClock), ratelimit.FixedWindow(ratelimit.PerMinute(9)))
	for _, test := range []struct {
		layers []ratelimit.Layer[call]
		want   string
	}{
		{nil, "ratelimit: All needs at least one layer"},
		{[]ratelimit.Layer[call]{ratelimit.By(l, byUser), {}}, "ratelimit: layer 1: this Layer is nil or zero: make one with By or Global"},
		{[]ratelimit.Layer[call]{ratelimit.By(l, byUser), ratelimit.By(other, byUser)}, "ratelimit: layer 1 has another clock than layer 0"},
		{[]ratelimit.Layer[call]{ratelimit.By[call, string](nil, byUser)}, "ratelimit: layer 0: By: l is nil"},
		{[]ratelimit.Layer[call]{ratelimit.By[call](l, nil)}, "ratelimit: layer 0: By: key is nil"},
	} {
		_, err := ratelimit.All(test.layers...)
		assert.EqualError(t, err, test.want)
	}
}

// oddClock is a clock whose type can be compared, but not all its values.
type oddClock struct{ x any }

func (oddClock) Now() time.Duration { return 0 }

// funcClock is a clock whose type cannot be compared.
type funcClock func() time.Duration

func (f funcClock) Now() time.Duration { return f() }

// A clock that cannot be compared counts as the same clock only within one limiter.
func TestClocksThatCannotBeCompared(t *testing.T) {
	limit := ratelimit.FixedWindow(ratelimit.PerMinute(9))
	for _, clock := range []ratelimit.Clock{
		funcClock(func() time.Duration { return 0 }), oddClock{[]int{1}}, oddClock{func() {}},
	} {
		l, other := onClock(t, clock, limit), onClock(t, clock, limit)
		for _, layers := range [][]ratelimit.Layer[call]{
			{ratelimit.By(l, byUser), ratelimit.By(l, byRoute)},
			{ratelimit.By(l, byUser), model.AsShadow(ratelimit.By(l, byUser))},
		} {
			stack, err := ratelimit.All(layers...)
			require.NoError(t, err)
			require.True(t, stack.Allow(call{user: "ann"}, 1))
			_, err = ratelimit.AllOf(func(call, []int) []int { return nil }, layers...)
			require.NoError(t, err)
		}
		_, err := ratelimit.All(ratelimit.By(l, byUser), ratelimit.By(other, byUser))
		require.EqualError(t, err, "ratelimit: layer 1 has another clock than layer 0")
	}
}

func TestClocksThatDiffer(t *testing.T) {
	limit := ratelimit.FixedWindow(ratelimit.PerMinute(9))
	one := funcClock(func() time.Duration { return 1 })
	for _, clocks := range [][2]ratelimit.Clock{
		{one, new(testClock)}, {oddClock{1}, oddClock{2}}, {oddClock{1}, new(testClock)}, {oddClock{math.NaN()}, oddClock{math.NaN()}}, {one, oddClock{1}},
	} {
		a, b := onClock(t, clocks[0], limit), onClock(t, clocks[1], limit)
		for _, layers := range [][]ratelimit.Layer[call]{
			{ratelimit.By(a, byUser), ratelimit.By(b, byUser)}, {ratelimit.By(b, byUser), ratelimit.By(a, byUser)},
		} {
			_, err := ratelimit.All(layers...)
			require.EqualError(t, err, "ratelimit: layer 1 has another clock than layer 0")
		}
	}
	a, b := onClock(t, oddClock{1}, limit), onClock(t, oddClock{1}, limit)
	_, err := ratelimit.All(ratelimit.By(a, byUser), ratelimit.By(b, byUser))
	require.NoError(t, err)
}

// A denial must not evict the request's own keys.
func TestATableTooSmallForAStackForgetsNothingForIt(t *testing.T) {
	l := newWith(t, ratelimit.FixedWindow(ratelimit.PerMinute(5)), ratelimit.Options[string]{Clock: new(testClock), MaxKeys: 1})
	stack := stackOf(t, ratelimit.By(l, byUser), ratelimit.By(l, byRoute))
	require.True(t, l.Allow("ann", 4))
	_, err := stack.Take(t.Context(), call{user: "ann", route: "/"}, 1)
	require.ErrorIs(t, err, ratelimit.ErrTableFull)
	assert.Equal(t, 1, remaining(t, l, "ann"))
	require.True(t, l.Allow("bob", 1), "no pin is left")
}

func TestAStacksWaitIsReportedHoweverItEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var errs []error
		l := newWith(t, ratelimit.FixedWindow(ratelimit.PerMinute(1)), ratelimit.Options[string]{
			OnDecision: func(e ratelimit.Event[string]) { errs = append(errs, e.Err) },
		})
		stack := stackOf(t, ratelimit.By(l, byUser))
		require.NoError(t, stack.Wait(t.Context(), call{user: "ann"}, 1))
		require.NoError(t, stack.Wait(t.Context(), call{user: "ann"}, 1))
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(s, cancel)
		require.ErrorIs(t, stack.Wait(ctx, call{user: "ann"}, 1), context.Canceled)
		assert.Equal(t, []error{nil, nil, context.Canceled}, errs)
	})
}

func TestAStackThatNeedsMoreKeysThanFitIsRefused(t *testing.T) {
	for _, full := range []ratelimit.Overflow{ratelimit.Overflow(0), ratelimit.RefuseNew} {
		l := newWith(t, ratelimit.FixedWindow(ratelimit.PerMinute(9)),
			ratelimit.Options[string]{Clock: new(testClock), MaxKeys: 1, OnFull: full})
		stack := stackOf(t, ratelimit.By(l, byUser), ratelimit.By(l, byRoute))
		d, err := stack.Take(t.Context(), call{user: "ann", route: "/"}, 1)
		require.ErrorIs(t, err, ratelimit.ErrTableFull)
		assert.Equal(t, ratelimit.Decision{Limit: stack.Describe().Limits[1]}, d)
		assert.Zero(t, l.Stats().Keys, "what was inserted for it is gone again")
		require.True(t, stack.Allow(call{user: "/", route: "/"}, 1), "one key does fit")
	}
}

func TestAStackReportsToEachLimiter(t *testing.T) {
	clock := new(testClock)
	var seen []string
	limiter := func(name string, limit ratelimit.Limit) *ratelimit.Keyed[string] {
		return newWith(t, limit.Named(name), ratelimit.Options[string]{Clock: clock, OnDecision: func(e ratelimit.Event[string]) {
			seen = append(seen, fmt.Sprint(name, " ", e.Key, " ", e.Cost, " ", e.Decision.Allowed, " by ", e.Decision.Limit.Name))
		}})
	}
	user := limiter("user", ratelimit.FixedWindow(ratelimit.PerMinute(3)))
	route := limiter("route", ratelimit.FixedWindow(ratelimit.PerMinute(2)))
	stack := stackOf(t, ratelimit.By(user, byUser), ratelimit.By(route, byRoute))
	stack.Allow(call{user: "ann", route: "/"}, 2)
	stack.Allow(call{user: "ann", route: "/"}, 1)
	_, _ = stack.Peek(context.Background(), call{user: "ann", route: "/"}, 1)
	assert.Equal(t, []string{
		"user ann 2 true by user", "route / 2 true by route",
		"user ann 1 true by user", "route / 1 false by route",
	}, seen)
}

func TestReserveSettlesAllLayers(t *testing.T) {
	for _, limit := range everyAlgorithm {
		t.Run(limit.Algorithm.String(), func(t *testing.T) {
			clock := new(testClock)
			a, b := onClock(t, clock, limit), onClock(t, clock, limit)
			stack := stackOf(t, ratelimit.By(a, byUser), ratelimit.By(b, byRoute))
			r, err := stack.Reserve(t.Context(), call{user: "u", route: "r"}, 4, time.Hour)
			require.NoError(t, err)
			require.True(t, r.Allowed)
			r.Settle(1)
			r.Settle(0)
			assert.Equal(t, 4, remaining(t, a, "u"))
			assert.Equal(t, 4, remaining(t, b, "r"))
			r, err = stack.Reserve(t.Context(), call{user: "u", route: "r"}, 1, time.Hour)
			require.NoError(t, err)
			r.Settle(9)
			assert.Zero(t, remaining(t, a, "u"))
			r, err = stack.Reserve(t.Context(), call{user: "u", route: "r"}, 1, time.Hour)
			require.NoError(t, err)
			assert.False(t, r.Allowed, "now or not at all")
			r.Cancel()
		})
	}
}

func TestAStackHoldsWorkAsLongAsItsQueues(t *testing.T) {
	clock := new(testClock)
	queue := onClock(t, clock, ratelimit.LeakyBucket(ratelimit.PerSecond(10), 5))
	account := onClock(t, clock, ratelimit.TokenBucket(ratelimit.PerSecond(10), 5))
	stack := stackOf(t, ratelimit.By(account, byUser), ratelimit.By(queue, byUser))
	for i := range 5 {
		d, err := stack.Take(t.Context(), call{user: "ann"}, 1)
		require.NoError(t, err)
		assert.Equal(t, time.Duration(i)*100*ms, d.Delay)
	}
	clock.advance(200 * ms)
	r, err := stack.Reserve(t.Context(), call{user: "ann"}, 1, 250*ms)
	require.NoError(t, err)
	assert.False(t, r.Allowed, "a delay above maxDelay is denied")
	assert.Equal(t, 50*ms, r.RetryAfter)
	r, err = stack.Reserve(t.Context(), call{user: "ann"}, 1, 300*ms)
	require.NoError(t, err)
	assert.Equal(t, 300*ms, r.Delay)
	r.Cancel()
	assert.Equal(t, 2, remaining(t, queue, "ann"))
}

func TestAStackWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		user := ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerSecond(10), 1), nil))
		all := ratelimit.Must(ratelimit.New[struct{}](ratelimit.LeakyBucket(ratelimit.PerSecond(5), 3), nil))
		stack := stackOf(t, ratelimit.By(user, byUser), ratelimit.By(all, forAll))
		start := time.Now()
		require.NoError(t, stack.Wait(t.Context(), call{user: "ann"}, 1))
		assert.Zero(t, time.Since(start))
		require.NoError(t, stack.Wait(t.Context(), call{user: "ann"}, 1))
		assert.Equal(t, 200*ms, time.Since(start), "denied for 100 ms by the user's limit, then 100 ms in the queue")

		ctx, cancel := context.WithTimeout(t.Context(), 50*ms)
		defer cancel()
		require.ErrorIs(t, stack.Wait(ctx, call{user: "ann"}, 1), context.DeadlineExceeded)
		assert.Equal(t, 200*ms, time.Since(start), "at once")

		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(10*ms, cancel)
		require.ErrorIs(t, stack.Wait(ctx, call{user: "bob"}, 1), context.Canceled)
		assert.Equal(t, 1, remaining(t, user, "bob"), "what was charged before the queue's delay was over is given back")
		require.ErrorIs(t, stack.Wait(ctx, call{user: "bob"}, 1), context.Canceled)
		var none context.Context
		require.NoError(t, stack.Wait(none, call{user: "bob"}, 1))
	})
}

func TestDecisionsOfEightLayersDoNotAllocate(t *testing.T) {
	clock := new(testClock)
	var layers []ratelimit.Layer[call]
	for i := range 8 {
		limit := everyAlgorithm[i%len(everyAlgorithm)]
		layer := ratelimit.By(onClock(t, clock, limit), []func(call) (string, error){byUser, byRoute}[i%2])
		if i == 3 {
			layer = model.WithCost(layer, func(call) int { return 1 })
		}
		layers = append(layers, layer)
	}
	stack := stackOf(t, layers...)
	decide := func() {
		clock.advance(30 * ms)
		stack.Allow(call{user: "ann", route: "/"}, 1)
		_, _ = stack.Take(context.Background(), call{user: "ann", route: "/"}, 2)
		_, _ = stack.Peek(context.Background(), call{user: "ann", route: "/"}, 1)
	}
	decide()
	if testsize.Race {
		return // under the race detector sync.Pool drops items at random
	}
	assert.Zero(t, testing.AllocsPerRun(1000, decide))
}

// Without other calls, a stack's decisions follow from its limiters'.
func TestAStackFollowsFromItsLayers(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { followLayers(t, rand.New(rand.NewPCG(testsize.Seed(seed), 3))) })
	}
}

func followLayers(t *testing.T, rnd *rand.Rand) {
	clock := new(testClock)
	limiters := make([]*ratelimit.Keyed[string], 3)
	for i := range limiters {
		limit := everyAlgorithm[rnd.IntN(len(everyAlgorithm))]
		limit.Rate.Units += rnd.IntN(5)
		limiters[i] = onClock(t, clock, limit)
	}
	// Several layers may have the same limiter, and so the same key.
	of := make([]int, 1+rnd.IntN(5))
	layers := make([]ratelimit.Layer[call], len(of))
	for i := range of {
		of[i] = rnd.IntN(len(limiters))
		layers[i] = ratelimit.By(limiters[of[i]], byUser)
	}
	stack := stackOf(t, layers...)
	for range 300 {
		clock.advance(time.Duration(rnd.IntN(150)) * ms)
		c, cost := call{user: string(rune('a' + rnd.IntN(3)))}, 1+rnd.IntN(3)
		want, times := ratelimit.Decision{Allowed: true, Remaining: math.MaxInt}, map[int]int{}
		for _, i := range of {
			times[i]++
		}
		exceeds := false
		for i, n := range times {
			d, err := limiters[i].Peek(context.Background(), c.user, n*cost)
			exceeds = exceeds || errors.Is(err, ratelimit.ErrExceedsLimit)
			want.Allowed = want.Allowed && d.Allowed
			want.RetryAfter = max(want.RetryAfter, d.RetryAfter)
			want.Delay = max(want.Delay, d.Delay)
			want.Remaining = min(want.Remaining, d.Remaining/n)
			want.ResetAfter = max(want.ResetAfter, d.ResetAfter)
			if d.Remaining/n == 0 {
				next, err := limiters[i].Peek(context.Background(), c.user, n)
				exceeds = exceeds || err != nil
				want.NextAfter = max(want.NextAfter, next.RetryAfter)
			}
		}
		got, err := stack.Peek(context.Background(), c, cost)
		if exceeds {
			require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
			continue
		}
		require.NoError(t, err)
		if !want.Allowed {
			want.Delay = 0
		}
		want.Limit = got.Limit
		require.Equal(t, want, got)
		before := map[int]int{}
		for i := range times {
			before[i] = remaining(t, limiters[i], c.user)
		}
		require.Equal(t, want.Allowed, stack.Allow(c, cost))
		for i, n := range times {
			spent := 0
			if want.Allowed {
				spent = n * cost
			}
			require.Equal(t, before[i]-spent, remaining(t, limiters[i], c.user))
		}
	}
}

// An earlier release deadlocked when stacks shared limiters in different
// orders, (a,b) and (b,a), or when a stack contained a limiter twice.
func TestStacksThatShareLimitersDoNotDeadlock(t *testing.T) {
	const each = 2000
	clock := new(testClock)
	huge := ratelimit.TokenBucket(ratelimit.PerDay(1<<20), 1<<30)
	a, b := onClock(t, clock, huge), onClock(t, clock, huge)
	small := newWith(t, huge, ratelimit.Options[string]{Clock: clock, MaxKeys: 64})
	stacks := []*ratelimit.Layered[call]{
		stackOf(t, ratelimit.By(a, byUser), ratelimit.By(b, byUser)),
		stackOf(t, ratelimit.By(b, byUser), ratelimit.By(a, byUser)),
		stackOf(t, ratelimit.By(a, byUser), ratelimit.By(a, byUser)),
		stackOf(t, ratelimit.By(a, byUser), ratelimit.By(a, byRoute)),
		stackOf(t, ratelimit.By(a, byRoute), ratelimit.By(a, byUser), ratelimit.By(small, byRoute)),
	}
	charges := []map[string]int{{"u": 1}, {"u": 1}, {"u": 2}, {"u": 1, "r": 1}, {"u": 1, "r": 1}}
	var admitted [5]atomic.Int64
	var wg sync.WaitGroup
	for g := range 10 {
		wg.Go(func() {
			for i := range each {
				n := (g + i) % len(stacks)
				if stacks[n].Allow(call{user: "u", route: "r"}, 1) {
					admitted[n].Add(1)
				}
				if i%100 == 0 {
					small.Reset(context.Background(), "r")
					a.Sweep()
					a.Refresh("u")
					a.Refresh()
				}
			}
		})
	}
	wg.Wait()
	want := map[string]int{}
	for n, c := range charges {
		assert.EqualValues(t, 10*each/len(stacks), admitted[n].Load())
		for key, times := range c {
			want[key] += times * int(admitted[n].Load())
		}
	}
	assert.Equal(t, 1<<30-want["u"], remaining(t, a, "u"))
	assert.Equal(t, 1<<30-want["r"], remaining(t, a, "r"))
}

// A denial must not charge, not even for an instant. So a layer
// with just enough room for all other requests never denies them.
func TestADenialIsInvisible(t *testing.T) {
	const n = 5000
	clock := new(testClock)
	shared := onClock(t, clock, ratelimit.TokenBucket(ratelimit.PerDay(1), n))
	closed := onClock(t, clock, ratelimit.TokenBucket(ratelimit.PerDay(1), 1))
	require.True(t, closed.Allow("u", 1))
	denied := stackOf(t, ratelimit.By(shared, byRoute), ratelimit.By(closed, byUser))
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					if denied.Allow(call{user: "u", route: "r"}, 1) {
						t.Error("allowed")
						return
					}
				}
			}
		})
	}
	for range n {
		require.True(t, shared.Allow("r", 1))
	}
	close(stop)
	wg.Wait()
}

func TestMapKeysALimiterOfAnyKind(t *testing.T) {
	broken := errors.New("broken")
	limit := ratelimit.FixedWindow(ratelimit.PerMinute(2))
	for name, c := range map[string]struct {
		call call
		cost int
		want ratelimit.Decision // Take's result, after an Allow
		left int
		err  error
	}{
		"a key":              {call: call{user: "ann"}, cost: 1, want: ratelimit.Decision{Allowed: true, Limit: limit, ResetAfter: time.Minute, NextAfter: time.Minute}},
		"SkipLayer":          {call: call{user: "ann", tokens: 1}, cost: 9, want: ratelimit.Decision{Allowed: true, Limit: ratelimit.Unlimited(), Remaining: math.MaxInt}, left: 2},
		"a cost that is < 0": {call: call{user: "ann", tokens: 1}, cost: -1, left: 2, err: ratelimit.ErrNegativeCost},
		"an error":           {call: call{user: "ann", tokens: 2}, cost: 1, left: 2, err: broken},
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := newLimiter(t, limit)
			byTokens := ratelimit.Map(l, func(c call) (string, error) {
				return c.user, []error{nil, ratelimit.SkipLayer, broken}[c.tokens]
			})
			assert.Equal(t, c.err == nil, byTokens.Allow(c.call, c.cost))
			r, err := byTokens.Reserve(t.Context(), c.call, c.cost, 0)
			require.ErrorIs(t, err, c.err)
			assert.Equal(t, c.err == nil, r.Allowed)
			require.NoError(t, r.Settle(5*c.call.tokens), "0 for the key, and 5 or more that charge nothing")
			d, err := byTokens.Take(t.Context(), c.call, c.cost)
			require.ErrorIs(t, err, c.err)
			assert.Equal(t, c.want, d)
			assert.Equal(t, c.left, remaining(t, l, "ann"))
		})
	}
}

func TestAdjustOfAStackAdjustsEachLayer(t *testing.T) {
	clock := &testClock{}
	opts := &ratelimit.Options[string]{Clock: clock}
	users := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerHour(10)), opts))
	tenants := ratelimit.Must(ratelimit.New(ratelimit.Unlimited(), opts))
	trials := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerHour(10)), opts))
	key := func(k string) (string, error) { return k, nil }
	l, err := ratelimit.All(
		ratelimit.By(users, key),
		model.WithLimit(ratelimit.By(tenants, key), func(string) ratelimit.Limit { return ratelimit.FixedWindow(ratelimit.PerHour(5)) }),
		model.AsShadow(ratelimit.By(trials, key)),
	)
	require.NoError(t, err)
	left := func() int {
		d, err := l.Peek(context.Background(), "k", 1)
		require.NoError(t, err)
		return d.Remaining
	}
	require.NoError(t, l.Adjust(context.Background(), "k", 3))
	assert.Equal(t, 2, left(), "under the limit that the request brings")
	require.NoError(t, l.Adjust(context.Background(), "k", -2))
	assert.Equal(t, 4, left())
	d, err := trials.Peek(context.Background(), "k", 1)
	require.NoError(t, err)
	assert.Equal(t, 10, d.Remaining, "a shadow is left alone")
	require.NoError(t, l.Adjust(context.Background(), "k", 20), "a debt")
	assert.Zero(t, left())
	failing, err := ratelimit.All(ratelimit.By(users, func(string) (string, error) { return "", errBad }))
	require.NoError(t, err)
	require.ErrorIs(t, failing.Adjust(context.Background(), "k", 1), errBad)
}

var errBad = errors.New("bad")

// choice is a request. It contains the indexes of the layers that apply to it.
type choice []int

func thePicked(c choice, which []int) []int { return append(which, c...) }

// many returns a stack of n layers, and counts the calls to their key
// functions. Layer i has its own limiter, with a capacity of i + 1.
func many(t testing.TB, n int) (stack *ratelimit.Layered[choice], ran *int) {
	t.Helper()
	clock, ran := new(testClock), new(int)
	layers := make([]ratelimit.Layer[choice], n)
	for i := range layers {
		l := onClock(t, clock, ratelimit.FixedWindow(ratelimit.PerMinute(i+1)).Named(fmt.Sprint("layer", i)))
		layers[i] = ratelimit.By(l, func(choice) (string, error) { *ran++; return "ann", nil })
	}
	stack, err := ratelimit.AllOf(thePicked, layers...)
	require.NoError(t, err)
	return stack, ran
}

func TestOnlyThePickedLayersCount(t *testing.T) {
	stack, ran := many(t, 1000)
	assert.Len(t, stack.Describe().Limits, 1000)
	d, err := stack.Take(t.Context(), choice{9, 7, 999}, 6)
	require.NoError(t, err)
	assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: stack.Describe().Limits[7], Remaining: 2, ResetAfter: time.Minute}, d)
	assert.Equal(t, 3, *ran)
	d, err = stack.Take(t.Context(), choice{9, 999}, 5)
	require.NoError(t, err)
	assert.Equal(t, "layer9", d.Limit.Name)
	assert.False(t, d.Allowed)
	assert.True(t, stack.Allow(choice{999}, 994), "a denial charges none of the picked")
	assert.False(t, stack.Allow(choice{999}, 1))
	assert.True(t, stack.Allow(choice{0}, 1))
}

func TestALayerPickedTwiceCountsOnce(t *testing.T) {
	stack, ran := many(t, 4)
	d, err := stack.Take(t.Context(), choice{3, 2, 3, 2}, 1)
	require.NoError(t, err)
	assert.Equal(t, 2, d.Remaining)
	assert.Equal(t, 2, *ran)
}

func TestARequestThatPicksNothingIsAllowed(t *testing.T) {
	stack, _ := many(t, 4)
	for range 2 {
		d, err := stack.Take(t.Context(), nil, 9)
		require.NoError(t, err)
		assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: ratelimit.Unlimited(), Remaining: math.MaxInt}, d)
	}
	require.NoError(t, stack.Wait(t.Context(), nil, 1))
}

func TestAnIndexThatIsOutOfRangeIsAnError(t *testing.T) {
	stack, _ := many(t, 4)
	for _, i := range []int{4, -1, math.MaxInt, math.MinInt} {
		d, err := stack.Take(t.Context(), choice{3, i}, 1)
		require.EqualError(t, err, fmt.Sprintf("ratelimit: pick of AllOf returned layer %d of 4", i))
		assert.Equal(t, ratelimit.Decision{}, d)
		_, err = stack.Peek(context.Background(), choice{i}, 1)
		require.Error(t, err)
		_, err = stack.Reserve(t.Context(), choice{i}, 1, 0)
		require.Error(t, err)
		require.Error(t, stack.Wait(t.Context(), choice{i}, 1))
	}
	assert.True(t, stack.Allow(choice{3}, 4), "nothing was charged")
	_, err := stack.Take(t.Context(), choice{3}, -1)
	require.ErrorIs(t, err, ratelimit.ErrNegativeCost)
}

func TestThePicksOrderIsTheLayersOrder(t *testing.T) {
	clock := new(testClock)
	limit := ratelimit.FixedWindow(ratelimit.PerMinute(1))
	var layers []ratelimit.Layer[choice]
	for _, name := range []string{"a", "b", "c"} {
		layers = append(layers, ratelimit.By(onClock(t, clock, limit.Named(name)), func(choice) (string, error) { return "ann", nil }))
	}
	stack, err := ratelimit.AllOf(thePicked, layers...)
	require.NoError(t, err)
	for range 20 {
		for _, order := range []choice{{2, 0}, {1, 2}, {0, 1}} {
			d, err := stack.Peek(context.Background(), order, 1)
			require.NoError(t, err)
			assert.Equal(t, stack.Describe().Limits[order[0]], d.Limit)
		}
	}
}

func TestAllOfRefusesLayersThatCannotBeAStack(t *testing.T) {
	_, err := ratelimit.AllOf[choice](nil)
	require.EqualError(t, err, "ratelimit: AllOf: pick is nil")
	_, err = ratelimit.AllOf(thePicked)
	require.EqualError(t, err, "ratelimit: AllOf needs at least one layer")
	_, err = ratelimit.AllOf(thePicked, ratelimit.Layer[choice]{})
	require.EqualError(t, err, "ratelimit: layer 0: this Layer is nil or zero: make one with By or Global")
}

func TestPickedLayersDoNotAllocate(t *testing.T) {
	stack, _ := many(t, 1000)
	few, all := choice{998, 997, 999}, make(choice, 1000)
	for i := range all {
		all[i] = i
	}
	slices.Reverse(all)
	decide := func() {
		stack.Allow(few, 1)
		stack.Allow(all, 1)
		_, _ = stack.Take(context.Background(), few, 1)
		_, _ = stack.Peek(context.Background(), few, 1)
	}
	decide()
	if testsize.Race {
		return // under the race detector sync.Pool drops items at random
	}
	assert.Zero(t, testing.AllocsPerRun(50, decide))
}

func TestObserveReceivesTheDecisionOfEachLayer(t *testing.T) {
	type request struct{ user, route string }
	clock := new(testClock)
	var events []ratelimit.Event[string]
	users := newWith(t, ratelimit.FixedWindow(ratelimit.PerHour(1)).Named("user"), ratelimit.Options[string]{
		Clock: clock, OnDecision: func(e ratelimit.Event[string]) { events = append(events, e) },
	})
	routes := newWith(t, ratelimit.FixedWindow(ratelimit.PerHour(9)).Named("route"), ratelimit.Options[string]{Clock: clock})
	observed := map[string][]ratelimit.Event[request]{}
	watch := func(name string, l ratelimit.Layer[request]) ratelimit.Layer[request] {
		return model.ObservedBy(l, func(e ratelimit.Event[request]) { observed[name] = append(observed[name], e) })
	}
	stack, err := ratelimit.All(
		watch("user", ratelimit.By(users, func(r request) (string, error) { return r.user, nil })),
		model.AsShadow(watch("route", model.WithCost(
			ratelimit.By(routes, func(r request) (string, error) { return r.route, nil }), func(request) int { return 5 }))),
	)
	require.NoError(t, err)
	ann, bob := request{"ann", "/a"}, request{"bob", "/a"}
	require.True(t, stack.Allow(ann, 1))
	require.False(t, stack.Allow(ann, 1))
	require.True(t, stack.Allow(bob, 1))
	_, err = stack.Peek(context.Background(), bob, 1)
	require.NoError(t, err)

	require.Len(t, observed["user"], 3)
	require.Len(t, observed["route"], 3)
	for i, want := range []struct {
		r                        request
		user, route, spent, shad bool
	}{{ann, true, true, true, true}, {ann, false, false, false, false}, {bob, true, false, true, false}} {
		user, route := observed["user"][i], observed["route"][i]
		assert.Equal(t, want.r, user.Key)
		assert.Equal(t, want.r, route.Key)
		assert.Equal(t, want.user, user.Decision.Allowed)
		assert.Equal(t, want.route, route.Decision.Allowed)
		assert.Equal(t, want.spent, user.Spent)
		assert.Equal(t, want.shad, route.Spent)
		assert.Equal(t, 5, route.Cost)
		assert.Equal(t, "route", route.Decision.Limit.Name)
	}
	assert.Len(t, events, 3, "the limiter's own OnDecision is told as well")
}
