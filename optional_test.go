package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/chain"
	"github.com/weir-go/ratelimit/internal/dev/model"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// If an engine lacks a method, a limiter around it lacks the method, too.
func TestAMissingMethodOfAnEngineIsUnsupported(t *testing.T) {
	first := onClock(t, new(testClock), ratelimit.FixedWindow(ratelimit.PerMinute(8)))
	require.True(t, first.Allow("k", 3))
	ctx := t.Context()
	for name, l := range map[string]ratelimit.Limiter[string]{
		"an engine":  allows(ratelimit.Decision{}),
		"in a chain": ratelimit.Must(chain.New[string](first, allows(ratelimit.Decision{}))),
		"behind Map": ratelimit.Map[string, string](allows(ratelimit.Decision{}), func(k string) (string, error) { return k, nil }),
	} {
		_, err := ratelimit.Peek(ctx, l, "k", 1)
		require.ErrorIs(t, err, errors.ErrUnsupported, name)
		require.ErrorIs(t, ratelimit.Adjust(ctx, l, "k", 1), errors.ErrUnsupported, name)
		require.ErrorIs(t, ratelimit.Reset(ctx, l, "k"), errors.ErrUnsupported, name)
	}
	assert.Equal(t, 5, remaining(t, first, "k"))
	layered, err := ratelimit.All(ratelimit.By(first, func(k string) (string, error) { return k, nil }))
	require.NoError(t, err)
	d, err := ratelimit.Peek(ctx, ratelimit.Limiter[string](layered), "k", 1)
	require.NoError(t, err)
	assert.Equal(t, 5, d.Remaining)
	require.ErrorIs(t, ratelimit.Reset(ctx, ratelimit.Limiter[string](layered), "k"), errors.ErrUnsupported, "a stack shares keys of several limiters")
}

// bare is a limiter with only Take.
type bare struct {
	ratelimit.Reserver[string]
	takes []int
}

func (b *bare) Take(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	b.takes = append(b.takes, cost)
	return b.Reserver.Take(ctx, key, cost)
}

func TestTakeUpToGrantsTheRemainingBudget(t *testing.T) {
	for _, limit := range partLimits() {
		for name, wrap := range map[string]func(*ratelimit.Keyed[string]) ratelimit.Limiter[string]{
			"keyed":   func(l *ratelimit.Keyed[string]) ratelimit.Limiter[string] { return l },
			"no Peek": func(l *ratelimit.Keyed[string]) ratelimit.Limiter[string] { return &bare{Reserver: l} },
			"behind Map, no Peek": func(l *ratelimit.Keyed[string]) ratelimit.Limiter[string] {
				return ratelimit.Map[string, string](&bare{Reserver: l}, itself)
			},
			"chain": func(l *ratelimit.Keyed[string]) ratelimit.Limiter[string] {
				return ratelimit.Must(chain.New[string](l))
			},
			"stack": func(l *ratelimit.Keyed[string]) ratelimit.Limiter[string] {
				stack, err := ratelimit.All(ratelimit.By(l, itself))
				require.NoError(t, err)
				return stack
			},
		} {
			t.Run(limit.String()+", "+name, func(t *testing.T) {
				clock := new(testClock)
				l := onClock(t, clock, limit)
				up := wrap(l)
				capacity := limit.Capacity()
				granted, d, err := ratelimit.TakeUpTo(t.Context(), up, "k", 1)
				require.NoError(t, err)
				require.Equal(t, 1, granted)
				require.Equal(t, capacity-1, d.Remaining)
				granted, d, err = ratelimit.TakeUpTo(t.Context(), up, "k", math.MaxInt)
				require.NoError(t, err)
				require.Equal(t, capacity-1, granted)
				require.True(t, d.Allowed)
				require.Zero(t, d.Remaining)

				granted, d, err = ratelimit.TakeUpTo(t.Context(), up, "k", math.MaxInt)
				require.NoError(t, err)
				require.Zero(t, granted)
				want, err := l.Peek(context.Background(), "k", 1)
				require.NoError(t, err)
				require.Equal(t, want, d, "RetryAfter is that of a cost of 1")
				clock.advance(d.RetryAfter - 1)
				granted, _, err = ratelimit.TakeUpTo(t.Context(), up, "k", 9)
				require.NoError(t, err)
				require.Zero(t, granted)
				clock.advance(1)
				granted, _, err = ratelimit.TakeUpTo(t.Context(), up, "k", 9)
				require.NoError(t, err)
				require.Positive(t, granted)
			})
		}
	}
}

func partLimits() []ratelimit.Limit {
	return []ratelimit.Limit{
		ratelimit.TokenBucket(ratelimit.PerSecond(3), 100),
		ratelimit.LeakyBucket(ratelimit.PerSecond(3), 100),
		ratelimit.FixedWindow(ratelimit.PerMinute(100)),
		ratelimit.SlidingLog(ratelimit.PerMinute(100)),
		ratelimit.SlidingCounter(ratelimit.PerMinute(100)),
	}
}

func itself(k string) (string, error) { return k, nil }

func TestTakeUpToOfNothingOrLessChargesNothing(t *testing.T) {
	l, _ := newLimiter(t, ratelimit.FixedWindow(ratelimit.PerMinute(5)))
	granted, d, err := ratelimit.TakeUpTo[string](t.Context(), l, "k", 0)
	require.NoError(t, err)
	assert.Zero(t, granted)
	assert.True(t, d.Allowed)
	assert.Equal(t, 5, d.Remaining)
	for _, most := range []int{-1, math.MinInt} {
		granted, d, err = ratelimit.TakeUpTo[string](t.Context(), l, "k", most)
		require.ErrorIs(t, err, ratelimit.ErrNegativeCost)
		assert.Zero(t, granted)
		assert.Equal(t, ratelimit.Decision{}, d)
	}
	assert.Zero(t, l.Stats().Keys)
}

func TestTakeUpToReturnsTheLimitersErrors(t *testing.T) {
	blocked, _ := newLimiter(t, ratelimit.Blocked())
	granted, d, err := ratelimit.TakeUpTo[string](t.Context(), blocked, "k", 3)
	require.ErrorIs(t, err, ratelimit.ErrBlocked)
	assert.Zero(t, granted)
	assert.False(t, d.Allowed)
	_, _, err = ratelimit.TakeUpTo[string](t.Context(), &bare{Reserver: blocked}, "k", math.MaxInt)
	require.ErrorIs(t, err, ratelimit.ErrBlocked)

	free, _ := newLimiter(t, ratelimit.Unlimited())
	granted, _, err = ratelimit.TakeUpTo[string](t.Context(), free, "k", math.MaxInt)
	require.NoError(t, err)
	assert.Equal(t, math.MaxInt, granted)

	down := fails(ratelimit.ErrUnavailable)
	granted, _, err = ratelimit.TakeUpTo[string](t.Context(), down, "k", 3)
	require.ErrorIs(t, err, ratelimit.ErrUnavailable)
	assert.Zero(t, granted)
	_, _, err = ratelimit.TakeUpTo[float64](t.Context(), ratelimit.Must(ratelimit.New[float64](ratelimit.Blocked(), nil)), math.NaN(), 3)
	require.ErrorIs(t, err, ratelimit.ErrInvalidKey)
}

// If an engine reports only that a cost is too high, TakeUpTo tries half the cost next.
func TestTakeUpToFindsAnUndescribedCapacity(t *testing.T) {
	const capacity = 37
	takes := 0
	l := limiterOf(func(cost int) (ratelimit.Decision, error) {
		if takes++; cost > capacity {
			return ratelimit.Decision{}, ratelimit.ErrExceedsLimit
		}
		return ratelimit.Decision{Allowed: true, Remaining: capacity - cost}, nil
	})
	granted, _, err := ratelimit.TakeUpTo[string](t.Context(), l, "k", math.MaxInt)
	require.NoError(t, err)
	assert.GreaterOrEqual(t, granted, capacity/2)
	assert.LessOrEqual(t, granted, capacity)
	assert.LessOrEqual(t, takes, 64)
}

// limiterOf is a limiter deciding by the cost alone.
type limiterOf func(cost int) (ratelimit.Decision, error)

func (f limiterOf) Allow(string, int) bool { panic("not asked") }

func (f limiterOf) Take(_ context.Context, _ string, cost int) (ratelimit.Decision, error) {
	return f(cost)
}

// taken is a limiter whose other callers are always faster.
type taken struct {
	limiterOf
	left *int
}

func (l taken) Peek(context.Context, string, int) (ratelimit.Decision, error) {
	return ratelimit.Decision{Allowed: true, Remaining: *l.left}, nil
}

func TestTakeUpToGivesUpAfterFourTriesThatOthersWereQuickerAt(t *testing.T) {
	for name, peeks := range map[string]bool{"with a Peek": true, "without": false} {
		var requested []int
		left := 50
		take := limiterOf(func(cost int) (ratelimit.Decision, error) {
			requested = append(requested, cost)
			left -= 10
			return ratelimit.Decision{Remaining: left, RetryAfter: s}, nil
		})
		var l ratelimit.Limiter[string] = take
		want := []int{60, 50, 40, 30, 20}
		if peeks {
			l, want = taken{take, &left}, []int{50, 40, 30, 20}
		} else {
			left = 60
		}
		granted, d, err := ratelimit.TakeUpTo(t.Context(), l, "k", 60)
		require.NoError(t, err, name)
		assert.Zero(t, granted, name)
		assert.Equal(t, want, requested, name)
		assert.Equal(t, ratelimit.Decision{Remaining: 10, RetryAfter: s}, d, name)
	}
}

// A stack's Remaining is the largest cost that all its layers allow, including layers with their own cost.
func TestTakeUpToOfAStackIsTheLeastOfItsLayers(t *testing.T) {
	clock := new(testClock)
	tokens := onClock(t, clock, ratelimit.TokenBucket(ratelimit.PerSecond(1), 20))
	requests := onClock(t, clock, ratelimit.FixedWindow(ratelimit.PerMinute(2)))
	global := ratelimit.Must(ratelimit.New(ratelimit.SlidingLog(ratelimit.PerMinute(25)), &ratelimit.Options[struct{}]{Clock: clock}))
	l := stackOf(t, ratelimit.By(tokens, byUser), ratelimit.By(tokens, byUser), ratelimit.Global[call](global),
		model.WithCost(ratelimit.By(requests, byUser), func(call) int { return 1 }))
	for _, step := range []struct {
		user    string
		granted int
	}{{"ann", 10}, {"ann", 0}, {"bob", 10}, {"eve", 5}, {"eve", 0}} {
		granted, d, err := ratelimit.TakeUpTo[call](t.Context(), l, call{user: step.user}, 1000)
		require.NoError(t, err)
		assert.Equal(t, step.granted, granted)
		assert.Equal(t, step.granted > 0, d.Allowed)
	}
	// The layer for requests has nothing left, but the others have.
	for range 2 {
		require.True(t, requests.Allow("zoe", 1))
	}
	global.Reset(context.Background(), struct{}{})
	granted, d, err := ratelimit.TakeUpTo[call](t.Context(), l, call{user: "zoe"}, 3)
	require.NoError(t, err)
	assert.Zero(t, granted)
	assert.Equal(t, time.Minute, d.RetryAfter)
}

func TestTakersOfPartsNeverGetMoreThanThereIs(t *testing.T) {
	const takers = 16
	for _, limit := range partLimits() {
		l, _ := newLimiter(t, limit)
		var sum atomic.Int64
		var wg sync.WaitGroup
		for i := range takers {
			wg.Go(func() {
				for {
					n, d, err := ratelimit.TakeUpTo[string](context.Background(), l, "k", 1+i)
					if !assert.NoError(t, err) || n == 0 && d.Remaining == 0 {
						return
					}
					sum.Add(int64(n))
				}
			})
		}
		wg.Wait()
		assert.Equal(t, int64(limit.Capacity()), sum.Load(), "%v", limit)
	}
}

func TestTakeUpToOfNilsFails(t *testing.T) {
	var none *ratelimit.Keyed[string]
	for _, l := range []ratelimit.Limiter[string]{nil, none} {
		granted, _, err := ratelimit.TakeUpTo(t.Context(), l, "k", 1)
		require.EqualError(t, err, "ratelimit: TakeUpTo: l is nil")
		require.Zero(t, granted)
	}
	l, _ := newLimiter(t, ratelimit.FixedWindow(ratelimit.PerMinute(5)))
	var noContext context.Context
	granted, _, err := ratelimit.TakeUpTo[string](noContext, l, "k", 9)
	require.NoError(t, err)
	require.Equal(t, 5, granted)
	require.False(t, errors.Is(err, ratelimit.ErrExceedsLimit))
}

// TakeUpTo grants the rest of the present window, and all of the next one, even to evicted keys.
func TestTakeUpToOfACalendar(t *testing.T) {
	for seed := range model.Rounds(300) {
		r := rand.New(rand.NewPCG(testsize.Seed(seed), 81))
		limit := ratelimit.Calendar(1+r.IntN(255), model.Periods[r.IntN(len(model.Periods))].Period)
		clock := new(wallClock)
		clock.setWall(date(t, "UTC", "2026-03-07 12:00"))
		l := newWith(t, limit, ratelimit.Options[int]{Clock: clock, MaxKeys: 2, Remember: 1 << 12})
		keys := map[int]*datedKey{}
		for range 50 {
			if r.IntN(2) == 0 {
				clock.advance(time.Duration(r.Int64N(int64(model.Span(limit)))))
			}
			i, most := r.IntN(4), r.IntN(2*limit.Rate.Units)
			k := keys[i]
			if k == nil {
				k = &datedKey{limit: limit}
				keys[i] = k
			}
			k.roll(clock.Wall())
			granted, d, err := ratelimit.TakeUpTo(t.Context(), l, i, most)
			require.NoError(t, err)
			require.Equal(t, min(most, limit.Rate.Units-k.used), granted, "seed %d, %v: %+v", seed, limit, *k)
			k.used += granted
			require.Equal(t, limit.Rate.Units-k.used, d.Remaining)
		}
	}
}

// Keys arrive at a full or nearly full table while wall clocks are set, limits change and more is evicted
// than remembered. Take changes other keys to make room. The decision on its own key stays the same.
func TestATakeAnswersAsThePeekBeforeIt(t *testing.T) {
	for seed := range model.Rounds(3000) {
		playPeeks(t, seed)
	}
}

func playPeeks(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(testsize.Seed(seed), 81))
	limits := []ratelimit.Limit{ratelimit.Calendar(5, model.Periods[r.IntN(len(model.Periods))].Period)}
	if r.IntN(2) == 0 {
		limits = append(limits, slowLimits()[r.IntN(5)], fastLimits()[r.IntN(5)], ratelimit.Calendar(3, model.Periods[r.IntN(len(model.Periods))].Period))
	}
	limit := limits[r.IntN(len(limits))]
	clock := new(wallClock)
	clock.setWall(time.Date(2026, 3, 1+r.IntN(60), r.IntN(24), 0, 0, 0, time.UTC))
	o := ratelimit.Options[string]{Clock: clock, MaxKeys: 1 + r.IntN(3), Remember: r.IntN(4) * r.IntN(20)}
	if r.IntN(3) == 0 {
		o.Remember = 1 << 12
	}
	if r.IntN(4) == 0 {
		o.Remember, o.OnFull = 0, ratelimit.RefuseNew
	}
	l := newWith(t, limit, o)
	stack := ratelimit.Must(ratelimit.All(ratelimit.By(l, itself)))
	keys := 1 + r.IntN(40)
	for step := range 100 {
		span := int64(model.Span(limit))
		switch r.IntN(5) {
		case 0:
			clock.advance(time.Duration(r.Int64N(span)))
		case 1:
			clock.setWall(clock.Wall().Add(time.Duration(r.Int64N(4*span) - 2*span)))
			clock.advance(time.Minute + time.Nanosecond)
		case 2:
			if limit = limits[r.IntN(len(limits))]; r.IntN(4) == 0 {
				require.NoError(t, l.SetLimit(limit))
			}
		}
		key, cost := fmt.Sprint(r.IntN(keys)), 1+r.IntN(3)
		switch r.IntN(20) {
		case 0:
			l.Reset(context.Background(), fmt.Sprint(r.IntN(keys)))
		case 1:
			if err := l.Adjust(context.Background(), fmt.Sprint(r.IntN(keys)), r.IntN(20)-10); o.OnFull != ratelimit.RefuseNew {
				require.NoError(t, err)
			}
		case 2:
			res, _ := l.Reserve(t.Context(), fmt.Sprint(r.IntN(keys)), cost, time.Duration(r.Int64N(3*span)))
			defer res.Cancel()
		}
		answer, err := l.Peek(context.Background(), key, cost)
		require.NoError(t, err)
		var d ratelimit.Decision
		if r.IntN(3) == 0 {
			d, err = stack.Take(t.Context(), key, cost)
		} else {
			d, err = l.Take(t.Context(), key, cost)
		}
		what := fmt.Sprintf("seed %d, step %d: %v, %v, key %s of %d, %+v", seed, step, l.Describe().Limits[0], clock.Wall(), key, o.MaxKeys, o)
		if o.OnFull == ratelimit.RefuseNew && err != nil {
			require.ErrorIs(t, err, ratelimit.ErrTableFull, what)
			continue
		}
		require.NoError(t, err, what)
		require.Equal(t, answer.Allowed, d.Allowed, what)
		require.Equal(t, answer.RetryAfter, d.RetryAfter, what)
		require.Equal(t, answer.Delay, d.Delay, what)
		if d.Allowed && answer.Delay == 0 {
			require.Equal(t, max(0, answer.Remaining-cost), d.Remaining, what)
		} else if !d.Allowed {
			require.Equal(t, answer, d, what)
		}
	}
}

// Two equal stacks make the same decisions. One is also observed, and gets peeks,
// and calls that fail because a later layer has no key. This changes nothing.
func TestPeeksAndFailuresOfAnObservedStackChangeNothing(t *testing.T) {
	for seed := range model.Rounds(2000) {
		r := rand.New(rand.NewPCG(testsize.Seed(seed), 82))
		clock := new(wallClock)
		clock.setWall(time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC))
		limits := append(slowLimits(), fastLimits()...)
		begin := [2]ratelimit.Limit{limits[r.IntN(len(limits))], limits[r.IntN(len(limits))]}
		world := func(o ratelimit.Options[string], wrap func(ratelimit.Layer[call]) ratelimit.Layer[call]) (*ratelimit.Layered[call], []*ratelimit.Keyed[string]) {
			o.Clock = clock
			users, others := newWith(t, begin[0], o), newWith(t, begin[1], o)
			return stackOf(t, wrap(ratelimit.By(users, byUser)), wrap(model.AsShadow(ratelimit.By(others, byUser))),
				wrap(ratelimit.By(others, func(c call) (string, error) {
					if c.route == "" {
						return "", errNoRoute
					}
					return c.route, nil
				}))), []*ratelimit.Keyed[string]{users, others}
		}
		plain, quiet := world(ratelimit.Options[string]{}, func(y ratelimit.Layer[call]) ratelimit.Layer[call] { return y })
		var watched ratelimit.Options[string]
		report := func(y ratelimit.Layer[call]) ratelimit.Layer[call] { return y }
		if r.IntN(2) == 0 {
			watched.OnDecision = func(ratelimit.Event[string]) {}
		} else {
			report = func(y ratelimit.Layer[call]) ratelimit.Layer[call] {
				return model.ObservedBy(y, func(ratelimit.Event[call]) {})
			}
		}
		observed, seen := world(watched, report)
		for step := range 40 {
			switch clock.advance(time.Duration(r.Int64N(int64(time.Minute)))); r.IntN(4) {
			case 0:
				i, limit := r.IntN(2), limits[r.IntN(len(limits))]
				require.NoError(t, quiet[i].SetLimit(limit))
				require.NoError(t, seen[i].SetLimit(limit))
			case 1:
				clock.advance(time.Duration(r.Int64N(int64(90 * 24 * time.Hour))))
			}
			c := call{user: string('a' + rune(r.IntN(3))), route: string('x' + rune(r.IntN(2)))}
			nobody, cost := call{user: string('a' + rune(r.IntN(3)))}, r.IntN(4)
			for range r.IntN(4) {
				switch r.IntN(5) {
				case 0:
					_, err := observed.Peek(context.Background(), nobody, cost)
					require.ErrorIs(t, err, errNoRoute)
				case 1:
					_, err := observed.Take(t.Context(), nobody, cost)
					require.ErrorIs(t, err, errNoRoute)
				case 2:
					require.ErrorIs(t, observed.Adjust(context.Background(), nobody, cost), errNoRoute)
				case 3:
					require.ErrorIs(t, observed.Wait(t.Context(), nobody, cost), errNoRoute)
				case 4:
					_, _ = observed.Peek(context.Background(), c, cost)
				}
			}
			want, err := plain.Take(t.Context(), c, cost)
			require.NoError(t, err)
			got, err := observed.Take(t.Context(), c, cost)
			require.NoError(t, err)
			require.Equal(t, want, got, "seed %d, step %d", seed, step)
			for i := range seen {
				for _, key := range []string{"a", "b", "c", "x", "y"} {
					want, err := quiet[i].Peek(context.Background(), key, 1)
					require.NoError(t, err)
					got, err := seen[i].Peek(context.Background(), key, 1)
					require.NoError(t, err)
					require.Equal(t, want, got, "seed %d, step %d, limiter %d, key %s", seed, step, i, key)
				}
			}
		}
	}
}

var errNoRoute = errors.New("no route")
