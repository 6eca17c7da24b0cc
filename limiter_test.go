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
)

const (
	ms = time.Millisecond
	s  = time.Second
)

// step is one Take at an instant, and what it must answer but for the limit.
type step struct {
	at      time.Duration
	cost    int
	allowed bool
	left    int
	retry   time.Duration
	reset   time.Duration
	delay   time.Duration
}

func TestTakeBehaves(t *testing.T) {
	for _, test := range []struct {
		name  string
		limit ratelimit.Limit
		steps []step
	}{
		{"a token bucket spends its burst at once and regains at the rate", ratelimit.TokenBucket(ratelimit.PerSecond(10), 3), []step{
			{at: 0, cost: 3, allowed: true, left: 0, reset: 300 * ms},
			{at: 0, cost: 1, left: 0, retry: 100 * ms, reset: 300 * ms},
			{at: 100*ms - 1, cost: 1, left: 0, retry: 1, reset: 200*ms + 1},
			{at: 100 * ms, cost: 1, allowed: true, left: 0, reset: 300 * ms},
			{at: 350 * ms, cost: 3, left: 2, retry: 50 * ms, reset: 50 * ms},
			{at: 350 * ms, cost: 2, allowed: true, left: 0, reset: 250 * ms},
		}},
		{"a token bucket keeps fractions of a nanosecond", ratelimit.TokenBucket(ratelimit.PerSecond(3), 2), []step{
			{at: 0, cost: 2, allowed: true, left: 0, reset: 666_666_667},
			{at: 333_333_333, cost: 1, left: 0, retry: 1, reset: 333_333_334},
			{at: 333_333_334, cost: 1, allowed: true, left: 0, reset: 666_666_666},
			{at: 666_666_666, cost: 1, left: 0, retry: 1, reset: 333_333_334},
			{at: 666_666_667, cost: 1, allowed: true, left: 0, reset: 666_666_667},
			{at: s, cost: 1, allowed: true, left: 0, reset: 666_666_667},
		}},
		{"a leaky bucket lets work out evenly and refuses what overflows", ratelimit.LeakyBucket(ratelimit.PerSecond(10), 3), []step{
			{at: 0, cost: 1, allowed: true, left: 2, reset: 100 * ms},
			{at: 0, cost: 1, allowed: true, left: 1, reset: 200 * ms, delay: 100 * ms},
			{at: 50 * ms, cost: 1, allowed: true, left: 0, reset: 250 * ms, delay: 150 * ms},
			{at: 50 * ms, cost: 1, left: 0, retry: 50 * ms, reset: 250 * ms},
			{at: 100 * ms, cost: 1, allowed: true, left: 0, reset: 300 * ms, delay: 200 * ms},
		}},
		{"a leaky bucket holds what follows a large cost for longer", ratelimit.LeakyBucket(ratelimit.PerSecond(10), 9), []step{
			{at: 0, cost: 5, allowed: true, left: 4, reset: 500 * ms},
			{at: 0, cost: 1, allowed: true, left: 3, reset: 600 * ms, delay: 500 * ms},
		}},
		{"a fixed window begins with the first spending, and anew with the first after its end", ratelimit.FixedWindow(ratelimit.PerSecond(3)), []step{
			{at: 200 * ms, cost: 2, allowed: true, left: 1, reset: s},
			{at: 900 * ms, cost: 2, left: 1, retry: 300 * ms, reset: 300 * ms},
			{at: 1200*ms - 1, cost: 1, allowed: true, left: 0, reset: 1},
			{at: 1500 * ms, cost: 3, allowed: true, left: 0, reset: s},
		}},
		{"a sliding log frees each spending when it is as old as the window", ratelimit.SlidingLog(ratelimit.PerSecond(3)), []step{
			{at: 0, cost: 1, allowed: true, left: 2, reset: s},
			{at: 400 * ms, cost: 2, allowed: true, left: 0, reset: s},
			{at: 500 * ms, cost: 1, left: 0, retry: 500 * ms, reset: 900 * ms},
			{at: 500 * ms, cost: 2, left: 0, retry: 900 * ms, reset: 900 * ms},
			{at: s, cost: 1, allowed: true, left: 0, reset: s},
			{at: 1400 * ms, cost: 2, allowed: true, left: 0, reset: s},
		}},
		{"a sliding counter weighs the window before, rounded up", ratelimit.SlidingCounter(ratelimit.PerSecond(4)), []step{
			{at: 0, cost: 4, allowed: true, left: 0, reset: 2 * s},
			{at: 500 * ms, cost: 1, left: 0, retry: 750 * ms, reset: 1500 * ms},
			{at: 1250*ms - 1, cost: 1, left: 0, retry: 1, reset: 750*ms + 1},
			{at: 1250 * ms, cost: 1, allowed: true, left: 0, reset: 1750 * ms},
			{at: 1750 * ms, cost: 3, left: 2, retry: 250 * ms, reset: 1250 * ms},
			{at: 3 * s, cost: 4, allowed: true, left: 0, reset: 2 * s},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			l, clock := newLimiter(t, test.limit)
			for i, step := range test.steps {
				clock.set(step.at)
				d, err := l.Take(t.Context(), "k", step.cost)
				require.NoError(t, err)
				assert.Equal(t, ratelimit.Decision{
					Allowed: step.allowed, Limit: test.limit, Remaining: step.left,
					RetryAfter: step.retry, ResetAfter: step.reset, Delay: step.delay,
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
					assert.Equal(t, min(1, known), l.Len())
				}
			})
		}
	}
}

func remaining[K comparable](t testing.TB, l *ratelimit.Keyed[K], key K) int {
	t.Helper()
	d, err := l.Peek(key, 0)
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

// visit is a key of several fields. The tests have few types of keys, since all generic code is compiled once for each.
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

// testKeys shows that each key has a budget of its own.
func testKeys[K comparable](t *testing.T, keys ...K) {
	t.Run(fmt.Sprintf("%T", *new(K)), func(t *testing.T) {
		l := newWith(t, ratelimit.TokenBucket(ratelimit.PerDay(1), 1), ratelimit.Options[K]{Clock: new(testClock)})
		stack := ratelimit.Must(ratelimit.All(ratelimit.By(l, func(key K) (K, error) { return key, nil })))
		for range 2 {
			for i, key := range keys {
				require.True(t, l.Allow(key, 1), "key %d", i)
				require.False(t, l.Allow(key, 1), "key %d", i)
				require.False(t, stack.Allow(key, 1), "key %d", i)
				d, err := stack.Peek(key, 1)
				require.NoError(t, err)
				require.False(t, d.Allowed, "key %d", i)
			}
			require.Equal(t, len(keys), l.Len())
			for _, key := range keys {
				l.Reset(key)
			}
			require.Zero(t, l.Len())
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
	_, err = l.Peek(key, 1)
	require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
	r, err := l.Reserve(t.Context(), key, 1, 0)
	require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
	r.Cancel()
	require.ErrorIs(t, l.Wait(t.Context(), key, 1), ratelimit.ErrInvalidKey)
	require.ErrorIs(t, l.Adjust(key, 1), ratelimit.ErrInvalidKey)
	l.Reset(key)
	l.Refresh(key)
	require.Zero(t, l.Len())

	total := newWith(t, ratelimit.FixedWindow(ratelimit.PerDay(1)), ratelimit.Options[struct{}]{})
	stack := ratelimit.Must(ratelimit.All(ratelimit.Global[K](total), ratelimit.By(l, func(key K) (K, error) { return key, nil })))
	_, err = stack.Take(t.Context(), key, 1)
	require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
	_, err = stack.Peek(key, 1)
	require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
	require.Zero(t, l.Len())
	require.Zero(t, total.Len(), "charged")
}

func TestUnlimitedAllowsAllAndTracksNothing(t *testing.T) {
	l, _ := newLimiter(t, ratelimit.Unlimited())
	for _, cost := range []int{0, 1, math.MaxInt} {
		d, err := l.Take(t.Context(), "k", cost)
		require.NoError(t, err)
		assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: ratelimit.Unlimited(), Remaining: math.MaxInt}, d)
		require.NoError(t, l.Wait(t.Context(), "k", cost))
		require.NoError(t, l.Adjust("k", cost))
		r, err := l.Reserve(t.Context(), "k", cost, 0)
		require.NoError(t, err)
		r.Settle(math.MaxInt)
	}
	assert.Zero(t, l.Len())
}

func TestBlockedAllowsNothingAndTracksNothing(t *testing.T) {
	l, _ := newLimiter(t, ratelimit.Blocked())
	d, err := l.Take(t.Context(), "k", 1)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	assert.Equal(t, ratelimit.Decision{Limit: ratelimit.Blocked()}, d)
	require.ErrorIs(t, l.Wait(t.Context(), "k", 1), ratelimit.ErrExceedsLimit)
	require.NoError(t, l.Adjust("k", 1))
	assert.True(t, l.Allow("k", 0))
	assert.Zero(t, l.Len())
}

// clockFunc is a clock that is a function.
type clockFunc func() time.Duration

func (f clockFunc) Now() time.Duration { return f() }

func TestOptionsAreChecked(t *testing.T) {
	limit := ratelimit.FixedWindow(ratelimit.PerSecond(1))
	for _, test := range []struct {
		opts ratelimit.Options[string]
		want string
	}{
		{ratelimit.Options[string]{MaxKeys: -1}, "ratelimit: Options.MaxKeys is -1, want 0 for the default or more"},
		{ratelimit.Options[string]{OnFull: 7}, "ratelimit: Options.OnFull is 7, want 0 or RefuseNew"},
		{ratelimit.Options[string]{IdleTTL: -s}, "ratelimit: Options.IdleTTL is -1s, want 0 or more"},
		{ratelimit.Options[string]{Clock: (*testClock)(nil)}, "ratelimit: Options.Clock is a nil *ratelimit_test.testClock, want a clock or none"},
		{ratelimit.Options[string]{Clock: clockFunc(nil)}, "ratelimit: Options.Clock is a nil ratelimit_test.clockFunc, want a clock or none"},
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
			l.Len() // outside every lock
			_, _ = l.Peek(e.Key, 1)
		},
	})
	l.Allow("k", 1)
	_, _ = l.Take(t.Context(), "k", 2)
	_, _ = l.Take(t.Context(), "k", 1)
	_, _ = l.Take(t.Context(), "k", 9)
	_, _ = l.Reserve(t.Context(), "j", 1, 0)
	_ = l.Wait(t.Context(), "i", -1)
	_, _ = l.Peek("k", 1)
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
			_, _ = l.Peek(key, 1)
		}
		decide()
		assert.Zero(t, testing.AllocsPerRun(1000, decide), "%v, key %T", limit, key)
		assert.Positive(t, allowed)
	}
}
