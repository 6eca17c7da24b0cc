package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/chain"
	"github.com/weir-go/ratelimit/internal/dev/model"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

const (
	ms = time.Millisecond
	s  = time.Second
)

// step is one Take, and its expected decision without the limit.
type step struct {
	at      time.Duration
	cost    int
	allowed bool
	left    int
	retry   time.Duration
	reset   time.Duration
	delay   time.Duration
	next    time.Duration // the wait for one unit after a denial; 0 if equal to retry
}

func TestTakeBehaves(t *testing.T) {
	for _, test := range []struct {
		name  string
		limit ratelimit.Limit
		steps []step
	}{
		{"a token bucket spends its burst at once and regains at the rate", ratelimit.TokenBucket(ratelimit.PerSecond(10), 3), []step{
			{at: 0, cost: 3, allowed: true, left: 0, reset: 300 * ms, next: 100 * ms},
			{at: 0, cost: 1, left: 0, retry: 100 * ms, reset: 300 * ms},
			{at: 100*ms - 1, cost: 1, left: 0, retry: 1, reset: 200*ms + 1},
			{at: 100 * ms, cost: 1, allowed: true, left: 0, reset: 300 * ms, next: 100 * ms},
			{at: 350 * ms, cost: 3, left: 2, retry: 50 * ms, reset: 50 * ms},
			{at: 350 * ms, cost: 2, allowed: true, left: 0, reset: 250 * ms, next: 50 * ms},
		}},
		{"a token bucket keeps fractions of a nanosecond", ratelimit.TokenBucket(ratelimit.PerSecond(3), 2), []step{
			{at: 0, cost: 2, allowed: true, left: 0, reset: 666_666_667, next: 333_333_334},
			{at: 333_333_333, cost: 1, left: 0, retry: 1, reset: 333_333_334},
			{at: 333_333_334, cost: 1, allowed: true, left: 0, reset: 666_666_666, next: 333_333_333},
			{at: 666_666_666, cost: 1, left: 0, retry: 1, reset: 333_333_334},
			{at: 666_666_667, cost: 1, allowed: true, left: 0, reset: 666_666_667, next: 333_333_333},
			{at: s, cost: 1, allowed: true, left: 0, reset: 666_666_667, next: 333_333_334},
		}},
		{"a leaky bucket lets work out evenly and refuses what overflows", ratelimit.LeakyBucket(ratelimit.PerSecond(10), 3), []step{
			{at: 0, cost: 1, allowed: true, left: 2, reset: 100 * ms},
			{at: 0, cost: 1, allowed: true, left: 1, reset: 200 * ms, delay: 100 * ms},
			{at: 50 * ms, cost: 1, allowed: true, left: 0, reset: 250 * ms, delay: 150 * ms, next: 50 * ms},
			{at: 50 * ms, cost: 1, left: 0, retry: 50 * ms, reset: 250 * ms},
			{at: 100 * ms, cost: 1, allowed: true, left: 0, reset: 300 * ms, delay: 200 * ms, next: 100 * ms},
		}},
		{"a leaky bucket holds what follows a large cost for longer", ratelimit.LeakyBucket(ratelimit.PerSecond(10), 9), []step{
			{at: 0, cost: 5, allowed: true, left: 4, reset: 500 * ms},
			{at: 0, cost: 1, allowed: true, left: 3, reset: 600 * ms, delay: 500 * ms},
		}},
		{"a fixed window begins with the first spending, and anew with the first after its end", ratelimit.FixedWindow(ratelimit.PerSecond(3)), []step{
			{at: 200 * ms, cost: 2, allowed: true, left: 1, reset: s},
			{at: 900 * ms, cost: 2, left: 1, retry: 300 * ms, reset: 300 * ms},
			{at: 1200*ms - 1, cost: 1, allowed: true, left: 0, reset: 1, next: 1},
			{at: 1500 * ms, cost: 3, allowed: true, left: 0, reset: s, next: s},
		}},
		{"a sliding log frees each spending when it is as old as the window", ratelimit.SlidingLog(ratelimit.PerSecond(3)), []step{
			{at: 0, cost: 1, allowed: true, left: 2, reset: s},
			{at: 400 * ms, cost: 2, allowed: true, left: 0, reset: s, next: 600 * ms},
			{at: 500 * ms, cost: 1, left: 0, retry: 500 * ms, reset: 900 * ms},
			{at: 500 * ms, cost: 2, left: 0, retry: 900 * ms, reset: 900 * ms, next: 500 * ms},
			{at: s, cost: 1, allowed: true, left: 0, reset: s, next: 400 * ms},
			{at: 1400 * ms, cost: 2, allowed: true, left: 0, reset: s, next: 600 * ms},
		}},
		{"a sliding counter weighs the window before, rounded up", ratelimit.SlidingCounter(ratelimit.PerSecond(4)), []step{
			{at: 0, cost: 4, allowed: true, left: 0, reset: 2 * s, next: 1250 * ms},
			{at: 500 * ms, cost: 1, left: 0, retry: 750 * ms, reset: 1500 * ms},
			{at: 1250*ms - 1, cost: 1, left: 0, retry: 1, reset: 750*ms + 1},
			{at: 1250 * ms, cost: 1, allowed: true, left: 0, reset: 1750 * ms, next: 250 * ms},
			{at: 1750 * ms, cost: 3, left: 2, retry: 250 * ms, reset: 1250 * ms},
			{at: 3 * s, cost: 4, allowed: true, left: 0, reset: 2 * s, next: 1250 * ms},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			l, clock := newLimiter(t, test.limit)
			for i, step := range test.steps {
				clock.set(step.at)
				d, err := l.Take(t.Context(), "k", step.cost)
				require.NoError(t, err)
				next := step.next
				if next == 0 && step.cost == 1 {
					next = step.retry
				}
				assert.Equal(t, ratelimit.Decision{
					Allowed: step.allowed, Limit: test.limit, Remaining: step.left,
					RetryAfter: step.retry, ResetAfter: step.reset, Delay: step.delay, NextAfter: next,
				}, d, "step %d", i)
			}
		})
	}
}

func TestNothingIsChargedFor(t *testing.T) {
	for _, limit := range everyAlgorithm {
		for _, test := range []struct {
			name    string
			cost    int
			allowed bool
			err     error
		}{
			{"a cost of 0, which is allowed", 0, true, nil},
			{"a negative cost", -5, false, ratelimit.ErrNegativeCost},
			{"the most negative cost", math.MinInt, false, ratelimit.ErrNegativeCost},
			{"a cost above the capacity", 6, false, ratelimit.ErrExceedsLimit},
			{"the largest cost", math.MaxInt, false, ratelimit.ErrExceedsLimit},
		} {
			t.Run(limit.Algorithm.String()+"/"+test.name, func(t *testing.T) {
				l, _ := newLimiter(t, limit)
				for _, known := range []int{0, 2} {
					if known > 0 {
						require.True(t, l.Allow("k", known))
					}
					d, err := l.Take(t.Context(), "k", test.cost)
					require.ErrorIs(t, err, test.err)
					assert.Equal(t, test.allowed, d.Allowed)
					assert.Zero(t, d.RetryAfter)
					assert.Equal(t, test.allowed, l.Allow("k", test.cost))
					r, err := l.Reserve(t.Context(), "k", test.cost, time.Hour)
					require.ErrorIs(t, err, test.err)
					require.NoError(t, r.Settle(test.cost))
					require.ErrorIs(t, l.Wait(t.Context(), "k", test.cost), test.err)
					assert.Equal(t, 5-known, remaining(t, l, "k"))
					assert.Equal(t, min(1, known), l.Stats().Keys)
				}
			})
		}
	}
}

func remaining[K comparable](t testing.TB, l *ratelimit.Keyed[K], key K) int {
	t.Helper()
	d, err := l.Peek(context.Background(), key, 0)
	require.NoError(t, err)
	return d.Remaining
}

func TestErrorsNameTheFigures(t *testing.T) {
	l, _ := newLimiter(t, ratelimit.TokenBucket(ratelimit.PerSecond(10), 20).Named("per-user"))
	_, err := l.Take(t.Context(), "k", 21)
	require.EqualError(t, err, `ratelimit: cost exceeds the limit "per-user": cost 21 is above 20, the capacity of token-bucket 10/s burst 20`)
	_, err = l.Take(t.Context(), "k", -3)
	require.EqualError(t, err, "ratelimit: negative cost: -3")
}

// visit is a key of several fields. The tests use few types of keys, because generic code is compiled again for each.
type visit struct {
	user   int
	method string
	from   netip.Addr
}

func TestKeysOfAnyComparableType(t *testing.T) {
	testKeys(t, "a", "b", "")
	testKeys(t, 1, -1, 0)
	testKeys(t, [16]byte{1}, [16]byte{0, 1})
	testKeys(t, netip.MustParseAddr("1.2.3.4"), netip.MustParseAddr("::ffff:1.2.3.4"), netip.MustParseAddr("::1"),
		netip.MustParseAddr("fe80::1%eth0"), netip.MustParseAddr("fe80::1%eth1"), netip.MustParseAddr("fe80::1"),
		netip.MustParseAddr("::"), netip.MustParseAddr("0.0.0.0"), netip.Addr{})
	testKeys(t, visit{1, "GET", netip.MustParseAddr("::1")}, visit{1, "PUT", netip.MustParseAddr("::1")}, visit{})
	testKeys[any](t, 1, "1", nil, 1.5, struct{}{}, new(int), new(int), [2]any{}, [2]any{1})
}

// testKeys checks that each key has its own budget.
func testKeys[K comparable](t *testing.T, keys ...K) {
	t.Run(fmt.Sprintf("%T", *new(K)), func(t *testing.T) {
		l := newWith(t, ratelimit.TokenBucket(ratelimit.PerDay(1), 1), ratelimit.Options[K]{Clock: new(testClock)})
		stack := ratelimit.Must(ratelimit.All(ratelimit.By(l, func(key K) (K, error) { return key, nil })))
		for range 2 {
			for i, key := range keys {
				require.True(t, l.Allow(key, 1), "key %d", i)
				require.False(t, l.Allow(key, 1), "key %d", i)
				require.False(t, stack.Allow(key, 1), "key %d", i)
				d, err := stack.Peek(context.Background(), key, 1)
				require.NoError(t, err)
				require.False(t, d.Allowed, "key %d", i)
			}
			require.Equal(t, len(keys), l.Stats().Keys)
			for _, key := range keys {
				l.Reset(context.Background(), key)
			}
			require.Zero(t, l.Stats().Keys)
		}
	})
}

func TestKeysThatCannotBeFoundAgainAreRefused(t *testing.T) {
	limit := ratelimit.TokenBucket(ratelimit.PerSecond(1), 1)
	refuses(t, newWith(t, limit, ratelimit.Options[float64]{}), math.NaN())
	refuses(t, newWith(t, limit, ratelimit.Options[any]{}), any([]byte("slice")))
	refuses(t, newWith(t, limit, ratelimit.Options[any]{}), any([1]any{map[string]int{}}))
	refuses(t, newWith(t, limit, ratelimit.Options[any]{}), any(struct{ error }{notComparable{func() {}}}))
	refuses(t, newWith(t, limit, ratelimit.Options[any]{}), any(struct{ x any }{math.NaN()}))
}

type notComparable struct{ f func() }

func (notComparable) Error() string { return "not comparable" }

func refuses[K comparable](t *testing.T, l *ratelimit.Keyed[K], key K) {
	t.Helper()
	_, err := l.Take(t.Context(), key, 1)
	require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
	require.False(t, l.Allow(key, 1))
	require.False(t, l.Allow(key, 0))
	_, err = l.Peek(context.Background(), key, 1)
	require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
	r, err := l.Reserve(t.Context(), key, 1, 0)
	require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
	r.Cancel()
	require.ErrorIs(t, l.Wait(t.Context(), key, 1), ratelimit.ErrInvalidKey)
	require.ErrorIs(t, l.Adjust(context.Background(), key, 1), ratelimit.ErrInvalidKey)
	l.Reset(context.Background(), key)
	l.Refresh(key)
	require.Zero(t, l.Stats().Keys)

	total := newWith(t, ratelimit.FixedWindow(ratelimit.PerDay(1)), ratelimit.Options[struct{}]{})
	stack := ratelimit.Must(ratelimit.All(ratelimit.Global[K](total), ratelimit.By(l, func(key K) (K, error) { return key, nil })))
	_, err = stack.Take(t.Context(), key, 1)
	require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
	_, err = stack.Peek(context.Background(), key, 1)
	require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
	require.Zero(t, l.Stats().Keys)
	require.Zero(t, total.Stats().Keys, "charged")
}

func TestUnlimitedAllowsAllAndTracksNothing(t *testing.T) {
	l, _ := newLimiter(t, ratelimit.Unlimited())
	for _, cost := range []int{0, 1, math.MaxInt} {
		d, err := l.Take(t.Context(), "k", cost)
		require.NoError(t, err)
		assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: ratelimit.Unlimited(), Remaining: math.MaxInt}, d)
		require.NoError(t, l.Wait(t.Context(), "k", cost))
		require.NoError(t, l.Adjust(context.Background(), "k", cost))
		r, err := l.Reserve(t.Context(), "k", cost, 0)
		require.NoError(t, err)
		r.Settle(math.MaxInt)
	}
	assert.Zero(t, l.Stats().Keys)
}

func TestBlockedAllowsNothingAndTracksNothing(t *testing.T) {
	l, _ := newLimiter(t, ratelimit.Blocked())
	d, err := l.Take(t.Context(), "k", 1)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	assert.Equal(t, ratelimit.Decision{Limit: ratelimit.Blocked()}, d)
	require.ErrorIs(t, l.Wait(t.Context(), "k", 1), ratelimit.ErrExceedsLimit)
	require.NoError(t, l.Adjust(context.Background(), "k", 1))
	assert.True(t, l.Allow("k", 0))
	assert.Zero(t, l.Stats().Keys)
}

// clockFunc turns a function into a clock.
type clockFunc func() time.Duration

func (f clockFunc) Now() time.Duration { return f() }

func TestOptionsAreChecked(t *testing.T) {
	limit := ratelimit.FixedWindow(ratelimit.PerSecond(1))
	for _, test := range []struct {
		opts ratelimit.Options[string]
		want string
	}{
		{ratelimit.Options[string]{MaxKeys: -1}, "ratelimit: Options.MaxKeys is -1, want 0 for the default, or more"},
		{ratelimit.Options[string]{OnFull: 7}, "ratelimit: Options.OnFull is 7, want 0 or RefuseNew"},
		{ratelimit.Options[string]{IdleTTL: -s}, "ratelimit: Options.IdleTTL is -1s, want 0 for none, or more"},
		{ratelimit.Options[string]{Clock: (*testClock)(nil)}, "ratelimit: Options.Clock holds a nil *ratelimit_test.testClock: give nil itself for none"},
		{ratelimit.Options[string]{Clock: clockFunc(nil)}, "ratelimit: Options.Clock holds a nil ratelimit_test.clockFunc: give nil itself for none"},
	} {
		_, err := ratelimit.New(limit, &test.opts)
		assert.EqualError(t, err, test.want)
	}
	_, err := ratelimit.New[string](ratelimit.Limit{}, nil)
	require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
	assert.Panics(t, func() { ratelimit.Must(ratelimit.New[string](ratelimit.Limit{}, nil)) })
}

func TestOnDecisionSeesEveryDecisionOnceAndNoPeek(t *testing.T) {
	var events []ratelimit.Event[string]
	var l *ratelimit.Keyed[string]
	l = newWith(t, ratelimit.FixedWindow(ratelimit.PerSecond(3)), ratelimit.Options[string]{
		Clock: new(testClock),
		OnDecision: func(e ratelimit.Event[string]) {
			events = append(events, e)
			l.Stats() // no lock is held here
			_, _ = l.Peek(context.Background(), e.Key, 1)
		},
	})
	l.Allow("k", 1)
	_, _ = l.Take(t.Context(), "k", 2)
	_, _ = l.Take(t.Context(), "k", 1)
	_, _ = l.Take(t.Context(), "k", 9)
	_, _ = l.Reserve(t.Context(), "j", 1, 0)
	_ = l.Wait(t.Context(), "i", -1)
	_, _ = l.Peek(context.Background(), "k", 1)
	var got []string
	for _, e := range events {
		got = append(got, fmt.Sprint(e.Key, e.Cost, e.Decision.Allowed, e.Decision.Remaining, errors.Unwrap(e.Err)))
	}
	assert.Equal(t, []string{
		"k1 true 2 <nil>", "k2 true 0 <nil>", "k1 false 0 <nil>",
		"k9 false 0 " + ratelimit.ErrExceedsLimit.Error(), "j1 true 2 <nil>", "i-1 false 0 " + ratelimit.ErrNegativeCost.Error(),
	}, got)
}

func TestNilContextsDoNotPanic(t *testing.T) {
	l, _ := newLimiter(t, ratelimit.FixedWindow(ratelimit.PerSecond(3)))
	var none context.Context
	_, err := l.Take(none, "k", 1)
	require.NoError(t, err)
	_, err = l.Reserve(none, "k", 1, 0)
	require.NoError(t, err)
	require.NoError(t, l.Wait(none, "k", 1))
}

func TestDecisionsOfKnownKeysDoNotAllocate(t *testing.T) {
	doNotAllocate(t, "user:1")
	doNotAllocate(t, 42)
	doNotAllocate(t, [16]byte{1})
	doNotAllocate(t, visit{user: 1, method: "GET"})
	doNotAllocate(t, netip.MustParseAddr("10.1.2.3"))
	doNotAllocate(t, netip.MustParseAddr("fe80::1%eth0"))
}

func doNotAllocate[K comparable](t *testing.T, key K) {
	for _, limit := range everyAlgorithm {
		clock := new(testClock)
		l := newWith(t, limit, ratelimit.Options[K]{Clock: clock})
		allowed := 0
		decide := func() {
			clock.advance(90 * ms)
			if l.Allow(key, 1) {
				allowed++
			}
			_, _ = l.Take(context.Background(), key, 1)
			_, _ = l.Peek(context.Background(), key, 1)
		}
		decide()
		assert.Zero(t, testing.AllocsPerRun(1000, decide), "%v, key %T", limit, key)
		assert.Positive(t, allowed)
	}
}

func TestPanicOfTheZeroKeyedNamesNew(t *testing.T) {
	for name, call := range map[string]func(l *ratelimit.Keyed[string]){
		"Allow":    func(l *ratelimit.Keyed[string]) { l.Allow("k", 1) },
		"Take":     func(l *ratelimit.Keyed[string]) { _, _ = l.Take(t.Context(), "k", 1) },
		"Peek":     func(l *ratelimit.Keyed[string]) { _, _ = l.Peek(context.Background(), "k", 1) },
		"Reserve":  func(l *ratelimit.Keyed[string]) { _, _ = l.Reserve(t.Context(), "k", 1, 0) },
		"Wait":     func(l *ratelimit.Keyed[string]) { _ = l.Wait(t.Context(), "k", 1) },
		"Adjust":   func(l *ratelimit.Keyed[string]) { _ = l.Adjust(context.Background(), "k", 1) },
		"Reset":    func(l *ratelimit.Keyed[string]) { l.Reset(context.Background(), "k") },
		"Refresh":  func(l *ratelimit.Keyed[string]) { l.Refresh("k") },
		"Refresh0": func(l *ratelimit.Keyed[string]) { l.Refresh() },
		"SetLimit": func(l *ratelimit.Keyed[string]) { _ = l.SetLimit(onceADay) },
		"Sweep":    func(l *ratelimit.Keyed[string]) { l.Sweep() },
		"Stats":    func(l *ratelimit.Keyed[string]) { l.Stats() },
		"Describe": func(l *ratelimit.Keyed[string]) { l.Describe() },
	} {
		assert.PanicsWithError(t, "ratelimit: this Keyed is nil or zero: make one with New", func() { call(new(ratelimit.Keyed[string])) }, name)
	}
}

func TestAStackRefusesAZeroKeyed(t *testing.T) {
	_, err := ratelimit.All(ratelimit.By(new(ratelimit.Keyed[string]), func(key string) (string, error) { return key, nil }))
	assert.EqualError(t, err, "ratelimit: layer 0: By: this Keyed is nil or zero: make one with New")
}

// remote is another package's engine. Tests need it only as a nil pointer.
type remote struct{ ratelimit.Reserver[string] }

// Constructors with an error result refuse a nil argument, and an argument whose first call would panic.
func TestConstructorsRefuseNilArguments(t *testing.T) {
	var noKeyed *ratelimit.Keyed[string]
	l := newWith(t, ratelimit.FixedWindow(ratelimit.PerMinute(9)), ratelimit.Options[string]{})
	layer := ratelimit.By(l, byUser)
	pick := func(_ call, which []int) []int { return which }
	all := func(layers ...ratelimit.Layer[call]) error {
		_, err := ratelimit.All(layers...)
		return err
	}
	_, errAllOf := ratelimit.AllOf(nil, layer)
	_, errAllOfLayer := ratelimit.AllOf(pick, ratelimit.Layer[call]{})
	for _, test := range []struct {
		err  error
		want string
	}{
		{all(layer, ratelimit.Layer[call]{}), "ratelimit: layer 1: this Layer is nil or zero: make one with By or Global"},
		{all(ratelimit.By(noKeyed, byUser)), "ratelimit: layer 0: By: l is nil"},
		{all(ratelimit.By(new(ratelimit.Keyed[string]), byUser)), "ratelimit: layer 0: By: this Keyed is nil or zero: make one with New"},
		{all(ratelimit.By[call](l, nil)), "ratelimit: layer 0: By: key is nil"},
		{errAllOf, "ratelimit: AllOf: pick is nil"},
		{errAllOfLayer, "ratelimit: layer 0: this Layer is nil or zero: make one with By or Global"},
	} {
		assert.EqualError(t, test.err, test.want)
	}
}

// Constructors without an error result accept nil. Their limiters then fail at each call, and do not panic.
func TestALimiterMadeOfNilFailsAtEachCall(t *testing.T) {
	var noKeyed *ratelimit.Keyed[string]
	var noRemote *remote
	l := newWith(t, ratelimit.FixedWindow(ratelimit.PerMinute(9)), ratelimit.Options[string]{})
	for _, test := range []struct {
		l    ratelimit.Reserver[call]
		want string
	}{
		{ratelimit.Map(nil, byUser), "ratelimit: Map: l is nil"},
		{ratelimit.Map[call](ratelimit.Reserver[string](noKeyed), byUser), "ratelimit: Map: l is nil"},
		{ratelimit.Map[call](ratelimit.Reserver[string](noRemote), byUser), "ratelimit: Map: l is nil"},
		{ratelimit.Map[call, string](l, nil), "ratelimit: Map: key is nil"},
	} {
		for cost := range 2 {
			assert.False(t, test.l.Allow(call{}, cost))
			d, err := test.l.Take(t.Context(), call{}, cost)
			assert.Equal(t, ratelimit.Decision{}, d)
			assert.EqualError(t, err, test.want)
		}
		if describer, ok := test.l.(ratelimit.Describer); assert.True(t, ok) {
			assert.NotPanics(t, func() { describer.Describe() })
		}
		res, err := test.l.Reserve(t.Context(), call{}, 1, time.Second)
		assert.EqualError(t, err, test.want)
		assert.False(t, res.Allowed)
		assert.NoError(t, res.Cancel())
		assert.EqualError(t, ratelimit.Wait(t.Context(), test.l, call{}, 1), test.want)
		chain, err := chain.New(test.l)
		require.NoError(t, err)
		_, err = chain.Take(t.Context(), call{}, 1)
		assert.EqualError(t, err, test.want)
	}
}

func TestFunctionsThatAreGivenNoLimiterFail(t *testing.T) {
	var noKeyed *ratelimit.Keyed[string]
	var noRemote *remote
	for _, r := range []ratelimit.Reserver[string]{nil, noKeyed, noRemote} {
		assert.EqualError(t, ratelimit.Wait(t.Context(), r, "ann", 1), "ratelimit: Wait: r is nil")
		_, err := ratelimit.Peek(t.Context(), ratelimit.Limiter[string](r), "ann", 1)
		assert.EqualError(t, err, "ratelimit: Peek: l is nil")
		assert.EqualError(t, ratelimit.Adjust(t.Context(), ratelimit.Limiter[string](r), "ann", 1), "ratelimit: Adjust: l is nil")
		assert.EqualError(t, ratelimit.Reset(t.Context(), ratelimit.Limiter[string](r), "ann"), "ratelimit: Reset: l is nil")
	}
}

// A nil context never ends, in every function that sleeps.
func TestANilContextNeverEnds(t *testing.T) {
	var none context.Context
	l := newWith(t, ratelimit.TokenBucket(ratelimit.PerSecond(1000), 1), ratelimit.Options[string]{})
	stack := stackOf(t, ratelimit.By(l, byUser))
	chain, err := chain.New[string](l)
	require.NoError(t, err)
	for range 2 {
		require.NoError(t, l.Wait(none, "ann", 1))
		require.NoError(t, ratelimit.Wait(none, ratelimit.Reserver[string](l), "ann", 1))
		require.NoError(t, stack.Wait(none, call{user: "ann"}, 1))
		require.NoError(t, chain.Wait(none, "ann", 1))
		require.NoError(t, ratelimit.Map[call](l, byUser).(interface {
			Wait(context.Context, call, int) error
		}).Wait(none, call{user: "ann"}, 1))
		r, err := l.Reserve(none, "ann", 1, time.Second)
		require.NoError(t, err)
		require.NoError(t, r.Wait(none))
	}
}

// refusals lists the ways to refuse a call for good, with Take's result for each.
func refusals() []refusal {
	big := model.Whole(1 << 40)
	bucket, blocked := ratelimit.TokenBucket(ratelimit.PerSecond(10), 20).Named("plan"), ratelimit.Blocked()
	return []refusal{
		{"above the capacity", bucket, 21, ratelimit.ErrExceedsLimit},
		{"far above the capacity", ratelimit.SlidingLog(ratelimit.PerSecond(10)), big, ratelimit.ErrExceedsLimit},
		{"blocked", blocked, 1, ratelimit.ErrBlocked},
		{"blocked and named", blocked.Named("banned"), big, ratelimit.ErrBlocked},
		{"above a queue", ratelimit.LeakyBucket(ratelimit.PerSecond(10), 5), 6, ratelimit.ErrExceedsLimit},
		{"below zero", bucket, -1, ratelimit.ErrNegativeCost},
		{"below zero and blocked", blocked, -big, ratelimit.ErrNegativeCost},
	}
}

type refusal struct {
	name  string
	limit ratelimit.Limit
	cost  int
	err   error
}

// A banned client, or one whose costs can never pass, must cause no
// more work than a denied client. Allow allocates for none of them.
func TestAllowAllocatesNothingForCostsThatNeverPass(t *testing.T) {
	if testsize.Race {
		t.Skip("the race detector makes pools allocate")
	}
	for _, test := range refusals() {
		for _, known := range []bool{false, true} {
			l := newWith(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 100), ratelimit.Options[string]{})
			if known {
				require.True(t, l.Allow("ann", 1))
			}
			require.NoError(t, l.SetLimit(test.limit))
			name := fmt.Sprintf("%s, known: %v", test.name, known)
			allocatesNothing(t, name, func() { l.Allow("ann", test.cost) })
			for n := 1; n <= 3; n++ {
				open := newWith(t, ratelimit.Unlimited(), ratelimit.Options[string]{})
				layers := []ratelimit.Layer[call]{ratelimit.By(open, byUser), ratelimit.By(l, byUser), ratelimit.By(open, byRoute)}
				stack := stackOf(t, layers[3-n:]...)
				if n == 1 {
					stack = stackOf(t, layers[1])
				}
				allocatesNothing(t, fmt.Sprintf("%s, %d layers", name, n), func() { stack.Allow(call{user: "ann"}, test.cost) })
				_, err := stack.Take(t.Context(), call{user: "ann"}, test.cost)
				require.ErrorIs(t, err, test.err)
				if !known { // otherwise the key is not under the new limit yet, and its spending is converted
					allocs := testing.AllocsPerRun(100, func() { _, _ = stack.Take(t.Context(), call{user: "ann"}, test.cost) })
					require.LessOrEqual(t, allocs, 2.0, "Take allocates its error and no text: %s", name)
				}
			}
			_, err := l.Take(t.Context(), "ann", test.cost)
			require.ErrorIs(t, err, test.err)
			require.False(t, l.Allow("ann", test.cost))
		}
	}
}

func allocatesNothing(t *testing.T, name string, f func()) {
	t.Helper()
	f()
	assert.Zero(t, testing.AllocsPerRun(100, f), name)
}

// Allow allocates nothing for a full table or a failing key function, either.
func TestAllowAllocatesNothingForErrors(t *testing.T) {
	if testsize.Race {
		t.Skip("the race detector makes pools allocate")
	}
	full := newWith(t, ratelimit.TokenBucket(ratelimit.PerHour(1), 5), ratelimit.Options[string]{MaxKeys: 1, OnFull: ratelimit.RefuseNew})
	require.True(t, full.Allow("ann", 1))
	other := newWith(t, ratelimit.TokenBucket(ratelimit.PerHour(1), 5), ratelimit.Options[string]{})
	require.True(t, other.Allow("", 1)) // no key is inserted for a denied cost
	boom := errors.New("boom")
	stacks := map[string]*ratelimit.Layered[call]{
		"a full table": stackOf(t, ratelimit.By(other, byRoute), ratelimit.By(full, byUser)),
		"no key":       stackOf(t, ratelimit.By(other, byRoute), ratelimit.By(full, func(call) (string, error) { return "", boom })),
		"no shadow's key": stackOf(t, ratelimit.By(full, func(call) (string, error) { return "ann", nil }),
			model.AsShadow(ratelimit.By(other, func(call) (string, error) { return "", boom }))),
	}
	for name, stack := range stacks {
		require.Equal(t, name == "no shadow's key", stack.Allow(call{user: "bob"}, 1), name)
		allocatesNothing(t, name, func() { stack.Allow(call{user: "bob"}, 1) })
	}
	allocatesNothing(t, "a full table, alone", func() { full.Allow("bob", 1) })
	_, err := stacks["a full table"].Take(t.Context(), call{user: "bob"}, 1)
	require.EqualError(t, err, "layer 1: ratelimit: key table full: 1 keys")
	_, err = stacks["no key"].Take(t.Context(), call{user: "bob"}, 1)
	require.EqualError(t, err, "layer 1: key: boom")
	require.ErrorIs(t, err, boom)
}

// Allow decides as Take does, even on costs that can never pass and for keys without a limit.
func TestAllowAnswersAsTakeDoesToAnyCost(t *testing.T) {
	for _, limit := range append(everyAlgorithm[:len(everyAlgorithm):len(everyAlgorithm)], ratelimit.Unlimited(), ratelimit.Blocked()) {
		for _, known := range []bool{false, true} {
			for _, cost := range []int{-model.Whole(1 << 62), -1, 0, 1, limit.Capacity(), model.Whole(1 << 62)} {
				a, _ := newLimiter(t, ratelimit.TokenBucket(ratelimit.PerHour(1), 1000))
				b, _ := newLimiter(t, ratelimit.TokenBucket(ratelimit.PerHour(1), 1000))
				for _, l := range []*ratelimit.Keyed[string]{a, b} {
					if known {
						require.True(t, l.Allow("ann", 1))
					}
					require.NoError(t, l.SetLimit(limit))
					if known { // so that the decision is under the new limit
						l.Allow("ann", 1)
					}
				}
				d, err := a.Take(t.Context(), "ann", cost)
				require.Equal(t, d.Allowed, b.Allow("ann", cost), "%v: cost %d, known: %v: %v", limit, cost, known, err)
				want, err := a.Peek(context.Background(), "ann", 0)
				require.NoError(t, err)
				got, err := b.Peek(context.Background(), "ann", 0)
				require.NoError(t, err)
				require.Equal(t, want, got)
			}
		}
	}
}

func BenchmarkRefused(b *testing.B) {
	for _, test := range append(refusals(), refusal{name: "denied", limit: ratelimit.TokenBucket(ratelimit.PerHour(1), 20), cost: 20}) {
		l := ratelimit.Must(ratelimit.New[string](test.limit, nil))
		l.Allow("ann", 1)
		open := ratelimit.Must(ratelimit.New[string](ratelimit.Unlimited(), nil))
		b.Run(fmt.Sprintf("by=%s/layers=0/call=Allow", test.name), func(b *testing.B) {
			serial(b, []string{"ann"}, func(key string) { l.Allow(key, test.cost) })
		})
		b.Run(fmt.Sprintf("by=%s/layers=0/call=Take", test.name), func(b *testing.B) {
			serial(b, []string{"ann"}, func(key string) { _, _ = l.Take(b.Context(), key, test.cost) })
		})
		for n := 1; n <= 3; n++ {
			stack, err := ratelimit.All([]ratelimit.Layer[call]{
				ratelimit.By(l, byUser), ratelimit.By(open, byUser), ratelimit.By(open, byUser),
			}[:n]...)
			if err != nil {
				b.Fatal(err)
			}
			b.Run(fmt.Sprintf("by=%s/layers=%d/call=Allow", test.name, n), func(b *testing.B) {
				serial(b, []call{{user: "ann"}}, func(c call) { stack.Allow(c, test.cost) })
			})
			b.Run(fmt.Sprintf("by=%s/layers=%d/call=Take", test.name, n), func(b *testing.B) {
				serial(b, []call{{user: "ann"}}, func(c call) { _, _ = stack.Take(b.Context(), c, test.cost) })
			})
		}
	}
}
