package inflight_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/ratelimittest"
)

type options = inflight.Options[string]

func newLimiter(t testing.TB, limit int, opts *options) *inflight.Limiter[string] {
	t.Helper()
	l, err := inflight.New(limit, opts)
	require.NoError(t, err)
	return l
}

// take takes n units. They must be free.
func take(t testing.TB, l *inflight.Limiter[string], key string, n int) inflight.Permit {
	t.Helper()
	p, err := l.TryAcquire(key, n)
	require.NoError(t, err)
	return p
}

// refused asserts that n units are not free.
func refused(t testing.TB, l *inflight.Limiter[string], key string, n int) {
	t.Helper()
	p, err := l.TryAcquire(key, n)
	assert.ErrorIs(t, err, ratelimit.ErrLimited)
	assert.Zero(t, p)
}

func stats(t testing.TB, l *inflight.Limiter[string], key string) inflight.Stats {
	t.Helper()
	s, ok := l.Stats(key)
	require.True(t, ok, "the key is tracked")
	return s
}

func TestKeyHasItsLimitInFlightAndNoMore(t *testing.T) {
	l := newLimiter(t, 3, nil)
	one, two := take(t, l, "a", 1), take(t, l, "a", 2)
	refused(t, l, "a", 1)
	take(t, l, "b", 3)
	two.Release()
	refused(t, l, "a", 3)
	take(t, l, "a", 2)
	one.Release()
	take(t, l, "a", 1)
	assert.Equal(t, inflight.Stats{Limit: 3, Bound: 3, InFlight: 3, Weight: 1, Shed: 2}, stats(t, l, "a"))
}

func TestTotalBoundsAllKeysTogether(t *testing.T) {
	l := newLimiter(t, 3, &options{Total: 4})
	a := take(t, l, "a", 3)
	take(t, l, "b", 1)
	refused(t, l, "c", 1)
	refused(t, l, "b", 1)
	a.Release()
	take(t, l, "c", 3)
	refused(t, l, "a", 1)
}

func TestPermitIsReleasedOnce(t *testing.T) {
	for name, again := range map[string]func(inflight.Permit){
		"Release":           inflight.Permit.Release,
		"another outcome":   func(p inflight.Permit) { p.Done(inflight.Dropped) },
		"an unknown one":    func(p inflight.Permit) { p.Done(200) },
		"the same, by many": func(p inflight.Permit) { inParallel(100, func(int) { p.Done(inflight.Ignored) }) },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLimiter(t, 2, &options{Total: 2})
			p := take(t, l, "a", 1)
			take(t, l, "a", 1)
			p.Release()
			again(p)
			again(p)
			assert.Equal(t, 1, stats(t, l, "a").InFlight)
			take(t, l, "a", 1)
			refused(t, l, "a", 1)
		})
	}
}

func TestPermitsForNothing(t *testing.T) {
	var none inflight.Permit
	assert.NotPanics(t, func() { none.Release(); none.Done(inflight.Dropped) })

	l := newLimiter(t, 1, &options{Total: 1})
	held := take(t, l, "a", 1)
	p, err := l.TryAcquire("a", 0)
	require.NoError(t, err, "0 units are always free")
	p.Release()
	p, err = l.Acquire(context.Background(), "b", 0)
	require.NoError(t, err)
	p.Release()
	assert.Equal(t, 1, l.Totals().Keys, "a key that asks for nothing is not tracked")
	refused(t, l, "a", 1)
	held.Release()
}

func TestACallThatNeverFitsIsAnErrorAtOnce(t *testing.T) {
	l := newLimiter(t, 5, &options{Total: 7, MaxQueue: 10, LimitFor: func(key string) int {
		return map[string]int{"large": 9, "blocked": -1, "most negative": math.MinInt}[key]
	}})
	for _, test := range []struct {
		name, key, text string
		n               int
		is, isNot       error
	}{
		{"above the key's limit", "a", "6 is above the key's limit of 5", 6, ratelimit.ErrExceedsLimit, ratelimit.ErrBlocked},
		{"above Total", "large", "8 is above the total of 7", 8, ratelimit.ErrExceedsLimit, ratelimit.ErrBlocked},
		{"the largest int", "a", "above the total of 7", math.MaxInt, ratelimit.ErrExceedsLimit, ratelimit.ErrBlocked},
		{"a blocked key", "blocked", "blocked", 1, ratelimit.ErrBlocked, ratelimit.ErrLimited},
		{"a blocked key, of the least int", "most negative", "blocked", 1, ratelimit.ErrExceedsLimit, ratelimit.ErrLimited},
		{"below zero", "a", "-3", -3, ratelimit.ErrNegativeCost, ratelimit.ErrExceedsLimit},
		{"the least int", "a", fmt.Sprint(math.MinInt), math.MinInt, ratelimit.ErrNegativeCost, ratelimit.ErrExceedsLimit},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, try := l.TryAcquire(test.key, test.n)
			_, wait := l.Acquire(context.Background(), test.key, test.n)
			for _, err := range []error{try, wait} {
				assert.ErrorIs(t, err, test.is)
				assert.NotErrorIs(t, err, test.isNot)
				assert.ErrorContains(t, err, test.text)
				assert.True(t, strings.HasPrefix(err.Error(), "inflight: "), err.Error())
			}
		})
	}
	assert.Zero(t, stats(t, l, "a").Shed, "what never fits is not shed")
	take(t, l, "a", 5)
}

func TestErrorsDoNotNameTheKey(t *testing.T) {
	l := newLimiter(t, 1, &options{MaxKeys: 1, LimitFor: func(string) int { return 1 }})
	take(t, l, "secret", 1)
	for key, n := range map[string]int{"secret": 1, "secret ": 1, "secret  ": -1} {
		_, err := l.TryAcquire(key, n)
		assert.NotContains(t, err.Error(), "secret")
	}
}

func TestKeyThatIsNotEqualToItself(t *testing.T) {
	l, err := inflight.New[float64](1, nil)
	require.NoError(t, err)
	_, err = l.TryAcquire(math.NaN(), 1)
	assert.ErrorIs(t, err, ratelimit.ErrInvalidKey)
	_, ok := l.Stats(math.NaN())
	assert.False(t, ok)
	l.Refresh(math.NaN())
	assert.Zero(t, l.Totals().Keys)
}

func TestKeyThatCannotBeCompared(t *testing.T) {
	l, err := inflight.New[any](1, nil)
	require.NoError(t, err)
	_, err = l.TryAcquire([]int{1}, 1)
	assert.ErrorIs(t, err, ratelimit.ErrInvalidKey)
	l.Refresh([]int{1})
	_, ok := l.Stats([]int{1})
	assert.False(t, ok)
	_, err = l.TryAcquire("text", 1)
	assert.NoError(t, err)
}

func TestBadOptionsAreNamed(t *testing.T) {
	for _, test := range []struct {
		name, text string
		limit      int
		opts       *options
	}{
		{"limit of zero", "the limit is 0, want at least 1", 0, nil},
		{"limit below zero", "the limit is -7", -7, nil},
		{"Total", "Options.Total is -1", 1, &options{Total: -1}},
		{"MaxQueue", "Options.MaxQueue is -2", 1, &options{MaxQueue: -2}},
		{"MaxKeys", "Options.MaxKeys is -3", 1, &options{MaxKeys: -3}},
		{"an Adaptive that makes nothing", "the result of Options.Adaptive is nil", 1,
			&options{Adaptive: func() inflight.Algorithm { return nil }}},
		{"an Adaptive that makes a nil pointer", "the result of Options.Adaptive is nil", 1,
			&options{Adaptive: func() inflight.Algorithm { return (*scripted)(nil) }}},
		{"Clock", "Options.Clock holds a nil *ratelimittest.Clock", 1, &options{Clock: (*ratelimittest.Clock)(nil)}},
	} {
		t.Run(test.name, func(t *testing.T) {
			l, err := inflight.New(test.limit, test.opts)
			assert.Nil(t, l)
			assert.ErrorContains(t, err, "inflight: "+test.text)
		})
	}
}

func TestPanicOfTheZeroLimiterNamesNew(t *testing.T) {
	for name, l := range map[string]*inflight.Limiter[string]{"zero": {}, "nil": nil} {
		for method, call := range map[string]func(){
			"TryAcquire": func() { l.TryAcquire("a", 1) },
			"Acquire":    func() { l.Acquire(context.Background(), "a", 1) },
			"SetLimit":   func() { l.SetLimit(1) },
			"Refresh":    func() { l.Refresh("a") },
			"Stats":      func() { l.Stats("a") },
			"Snapshot":   func() { l.Snapshot() },
		} {
			assert.PanicsWithError(t, "inflight: this Limiter is nil or zero: make one with New", call, "%s, %s", name, method)
		}
	}
}

func TestHugeLimitsAndRequests(t *testing.T) {
	l := newLimiter(t, math.MaxInt, nil)
	p := take(t, l, "a", math.MaxInt)
	refused(t, l, "a", 1)
	refused(t, l, "a", math.MaxInt)
	p.Release()
	take(t, l, "a", math.MaxInt-1)
	take(t, l, "a", 1)
	refused(t, l, "a", 1)
}

func TestHugeAndEmptyKeys(t *testing.T) {
	l := newLimiter(t, 1, nil)
	for _, key := range []string{"", "\x00", strings.Repeat("x", 1<<20)} {
		p := take(t, l, key, 1)
		refused(t, l, key, 1)
		p.Release()
		take(t, l, key, 1)
	}
}

func TestPanicInTheWorkGivesThePermitBack(t *testing.T) {
	l := newLimiter(t, 1, nil)
	assert.Panics(t, func() {
		defer take(t, l, "a", 1).Release()
		panic("work")
	})
	take(t, l, "a", 1)
}

func TestOldestPermitIsAsOldAsSeen(t *testing.T) {
	clock := new(ratelimittest.Clock)
	l := newLimiter(t, 10, &options{Clock: clock})
	first := take(t, l, "a", 1)
	assert.Zero(t, stats(t, l, "a").Oldest, "first seen now")
	clock.Advance(time.Minute)
	second := take(t, l, "a", 2)
	assert.Equal(t, time.Minute, stats(t, l, "a").Oldest)
	second.Release()
	clock.Advance(time.Minute)
	third := take(t, l, "a", 1)
	assert.Equal(t, 2*time.Minute, stats(t, l, "a").Oldest, "a later permit was released")
	first.Release()
	assert.Zero(t, stats(t, l, "a").Oldest, "seen for no time: the clock stands where the third was first seen")
	clock.Advance(time.Second)
	assert.Equal(t, time.Second, l.Snapshot()["a"].Oldest)
	clock.Set(0)
	assert.Zero(t, stats(t, l, "a").Oldest, "a clock that steps back gives no negative age")
	third.Release()
	assert.Zero(t, stats(t, l, "a").Oldest, "nothing is in flight")
}

func TestOutcomesHaveNames(t *testing.T) {
	for o, name := range map[inflight.Outcome]string{
		inflight.Success: "success", inflight.Dropped: "dropped", inflight.Ignored: "ignored", inflight.Cancelled: "cancelled", 77: "ignored",
	} {
		assert.Equal(t, name, o.String())
	}
}

func TestRefusalAllocatesNothing(t *testing.T) {
	l := newLimiter(t, 1, nil)
	take(t, l, "a", 1)
	assert.Zero(t, testing.AllocsPerRun(100, func() { l.TryAcquire("a", 1) }))
}

func TestPermitAllocatesNothing(t *testing.T) {
	for name, opts := range map[string]*options{"fixed": nil, "total": {Total: 5}} {
		l := newLimiter(t, 1, opts)
		take(t, l, "a", 1).Release()
		allocs := testing.AllocsPerRun(100, func() {
			p, _ := l.TryAcquire("a", 1)
			p.Done(inflight.Success)
		})
		assert.Zero(t, allocs, name)
	}
}

// A permit's place is reused by later permits, but a copy of the released permit does nothing.
func TestCopyOfAReleasedPermitDoesNothing(t *testing.T) {
	l := newLimiter(t, 100, nil)
	rng := rand.New(rand.NewPCG(1, 2))
	var held, stale []inflight.Permit
	for range 20_000 {
		switch {
		case len(held) < 100 && rng.IntN(2) == 0:
			held = append(held, take(t, l, "a", 1))
		case len(held) > 0:
			i := rng.IntN(len(held))
			p := held[i]
			p.Release()
			held = slices.Delete(held, i, i+1)
			if stale = append(stale, p); len(stale) > 300 {
				stale = stale[1:]
			}
		}
		if len(stale) > 0 {
			stale[rng.IntN(len(stale))].Done(inflight.Dropped)
		}
		require.Equal(t, len(held), stats(t, l, "a").InFlight)
	}
}

func TestOldestIsThatOfTheOldestPermitStillInFlight(t *testing.T) {
	clock := new(ratelimittest.Clock)
	l := newLimiter(t, 1000, &options{Clock: clock})
	rng := rand.New(rand.NewPCG(3, 4))
	type seen struct {
		p  inflight.Permit
		at time.Duration // when Stats saw it first, or -1
	}
	var held []seen
	for range 5000 {
		clock.Advance(time.Duration(rng.IntN(1000)))
		switch rng.IntN(5) {
		case 0, 1:
			held = append(held, seen{take(t, l, "a", 1+rng.IntN(3)), -1})
		case 2, 3:
			if len(held) > 0 {
				i := rng.IntN(len(held))
				held[i].p.Release()
				held = slices.Delete(held, i, i+1)
			}
		default:
			if _, ok := l.Stats("a"); !ok {
				continue
			}
			want := time.Duration(0)
			for i := range held {
				if held[i].at < 0 {
					held[i].at = clock.Now()
				}
				want = max(want, clock.Now()-held[i].at)
			}
			require.Equal(t, want, stats(t, l, "a").Oldest)
		}
	}
}

// The highest possible limits are enforced. Without a Total, there is no limit over all keys.
func TestTheHighestLimitsHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, math.MaxInt, &options{MaxQueue: 5})
		held := take(t, l, "a", math.MaxInt)
		refused(t, l, "a", 1)
		q := &line{l: l}
		waits := q.send("one", "a", 1)
		assert.False(t, waits.done)
		held.Release()
		synctest.Wait()
		assert.True(t, waits.done)
		assert.Equal(t, 1, stats(t, l, "a").InFlight)
		waits.release()
	})
	l := newLimiter(t, math.MaxInt, &options{MaxQueue: 5, MaxWaiting: 5})
	take(t, l, "a", math.MaxInt)
	take(t, l, "b", math.MaxInt)
	refused(t, l, "b", 1)
	take(t, l, "c", 1)
	for _, adaptive := range []func() inflight.Algorithm{inflight.Learn(&inflight.LearnOptions{Start: math.MaxInt}), inflight.Learn(&inflight.LearnOptions{Min: math.MaxInt})} {
		l := newLimiter(t, 100, &options{Adaptive: adaptive})
		take(t, l, "a", 1)
		assert.Equal(t, 100, stats(t, l, "a").Limit)
	}
}

func TestAcquireWithoutAContext(t *testing.T) {
	l := newLimiter(t, 1, nil)
	var none context.Context
	p, err := l.Acquire(none, "a", 1)
	require.NoError(t, err)
	_, err = l.Acquire(none, "a", 1)
	assert.ErrorIs(t, err, ratelimit.ErrLimited)
	p.Release()
}
