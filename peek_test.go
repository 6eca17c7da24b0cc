package ratelimit_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/testsize"
)

// Keys come to a table that is full or nearly so, while wall clocks are set, limits change and more is evicted than is
// remembered. What Take does to the other keys, to make room, changes nothing about the key that it is asked for.
func TestATakeAnswersAsThePeekBeforeIt(t *testing.T) {
	for seed := range rounds(3000) {
		playPeeks(t, seed)
	}
}

func playPeeks(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(testsize.Seed(seed), 81))
	limits := []ratelimit.Limit{ratelimit.Calendar(5, modelPeriods[r.IntN(len(modelPeriods))].Period)}
	if r.IntN(2) == 0 {
		limits = append(limits, slowLimits()[r.IntN(5)], fastLimits()[r.IntN(5)], ratelimit.Calendar(3, modelPeriods[r.IntN(len(modelPeriods))].Period))
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
		span := int64(spanOf(limit))
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
			l.Reset(fmt.Sprint(r.IntN(keys)))
		case 1:
			if err := l.Adjust(fmt.Sprint(r.IntN(keys)), r.IntN(20)-10); o.OnFull != ratelimit.RefuseNew {
				require.NoError(t, err)
			}
		case 2:
			res, _ := l.Reserve(t.Context(), fmt.Sprint(r.IntN(keys)), cost, time.Duration(r.Int64N(3*span)))
			defer res.Cancel()
		}
		said, err := l.Peek(key, cost)
		require.NoError(t, err)
		var d ratelimit.Decision
		if r.IntN(3) == 0 {
			d, err = stack.Take(t.Context(), key, cost)
		} else {
			d, err = l.Take(t.Context(), key, cost)
		}
		what := fmt.Sprintf("seed %d, step %d: %v, %v, key %s of %d, %+v", seed, step, l.Limits()[0], clock.Wall(), key, o.MaxKeys, o)
		if o.OnFull == ratelimit.RefuseNew && err != nil {
			require.ErrorIs(t, err, ratelimit.ErrTableFull, what)
			continue
		}
		require.NoError(t, err, what)
		require.Equal(t, said.Allowed, d.Allowed, what)
		require.Equal(t, said.RetryAfter, d.RetryAfter, what)
		require.Equal(t, said.Delay, d.Delay, what)
		if d.Allowed && said.Delay == 0 {
			require.Equal(t, max(0, said.Remaining-cost), d.Remaining, what)
		} else if !d.Allowed {
			require.Equal(t, said, d, what)
		}
	}
}

// Two worlds see the same decisions. In one of them there are also peeks, and calls that fail because a later layer has no
// key, and all is observed. That changes nothing.
func TestPeeksAndFailuresOfAnObservedStackChangeNothing(t *testing.T) {
	for seed := range rounds(2000) {
		r := rand.New(rand.NewPCG(testsize.Seed(seed), 82))
		clock := new(wallClock)
		clock.setWall(time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC))
		limits := append(slowLimits(), fastLimits()...)
		begin := [2]ratelimit.Limit{limits[r.IntN(len(limits))], limits[r.IntN(len(limits))]}
		world := func(o ratelimit.Options[string], wrap func(ratelimit.Layer[call]) ratelimit.Layer[call]) (*ratelimit.Layered[call], []*ratelimit.Keyed[string]) {
			o.Clock = clock
			users, others := newWith(t, begin[0], o), newWith(t, begin[1], o)
			return stackOf(t, wrap(ratelimit.By(users, byUser)), wrap(ratelimit.Shadow(ratelimit.By(others, byUser))),
				wrap(ratelimit.By(others, func(c call) (string, error) {
					if c.route == "" {
						return "", errNoRoute
					}
					return c.route, nil
				}))), []*ratelimit.Keyed[string]{users, others}
		}
		plain, quiet := world(ratelimit.Options[string]{}, func(y ratelimit.Layer[call]) ratelimit.Layer[call] { return y })
		var watched ratelimit.Options[string]
		tell := func(y ratelimit.Layer[call]) ratelimit.Layer[call] { return y }
		if r.IntN(2) == 0 {
			watched.OnDecision = func(ratelimit.Event[string]) {}
		} else {
			tell = func(y ratelimit.Layer[call]) ratelimit.Layer[call] {
				return ratelimit.Observe(y, func(ratelimit.Event[call]) {})
			}
		}
		observed, seen := world(watched, tell)
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
					_, err := observed.Peek(nobody, cost)
					require.ErrorIs(t, err, errNoRoute)
				case 1:
					_, err := observed.Take(t.Context(), nobody, cost)
					require.ErrorIs(t, err, errNoRoute)
				case 2:
					require.ErrorIs(t, observed.Adjust(nobody, cost), errNoRoute)
				case 3:
					require.ErrorIs(t, observed.Wait(t.Context(), nobody, cost), errNoRoute)
				case 4:
					_, _ = observed.Peek(c, cost)
				}
			}
			want, err := plain.Take(t.Context(), c, cost)
			require.NoError(t, err)
			got, err := observed.Take(t.Context(), c, cost)
			require.NoError(t, err)
			require.Equal(t, want, got, "seed %d, step %d", seed, step)
			for i := range seen {
				for _, key := range []string{"a", "b", "c", "x", "y"} {
					want, err := quiet[i].Peek(key, 1)
					require.NoError(t, err)
					got, err := seen[i].Peek(key, 1)
					require.NoError(t, err)
					require.Equal(t, want, got, "seed %d, step %d, limiter %d, key %s", seed, step, i, key)
				}
			}
		}
	}
}

var errNoRoute = errors.New("no route")
