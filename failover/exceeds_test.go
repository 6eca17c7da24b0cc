package failover_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// part describes one layer, present in both the primary's stack and the stand-in's.
type part struct {
	most, share   int // the primary's capacity, and the stand-in's
	shadow, skips bool
	own           int // the layer's own cost, or 0
}

func stackOf(t *testing.T, parts []part, capacity func(part) int) *ratelimit.Layered[string] {
	var layers []ratelimit.Layer[string]
	for _, p := range parts {
		l := newLocal(t, ratelimit.TokenBucket(ratelimit.PerDay(1), capacity(p)))
		y := ratelimit.By(l, func(r string) (string, error) {
			if p.skips {
				return "", ratelimit.SkipLayer
			}
			return r, nil
		})
		if p.own > 0 {
			y.Cost = func(string) int { return p.own }
		}
		if p.shadow {
			y.Shadow = true
		}
		layers = append(layers, y)
	}
	pick := func(_ string, which []int) []int {
		for i := range parts {
			which = append(which, len(parts)-1-i)
		}
		return which
	}
	if len(parts)%2 == 0 {
		return ratelimit.Must(ratelimit.AllOf(pick, layers...))
	}
	return ratelimit.Must(ratelimit.All(layers...))
}

// downStack is a stack on an unreachable store.
type downStack struct{ *ratelimit.Layered[string] }

func (downStack) Take(context.Context, string, int) (ratelimit.Decision, error) {
	return ratelimit.Decision{}, errDown
}

func (downStack) Reserve(context.Context, string, int, time.Duration) (*ratelimit.Reservation, error) {
	return nil, errDown
}

func most(p part) int  { return p.most }
func share(p part) int { return p.share }

func TestACostThatOneLayerCanNeverPassIsAnErrorWhateverStandsIn(t *testing.T) {
	for name, row := range map[string]struct {
		parts []part
		never bool
	}{
		"one layer is too small":              {[]part{{most: 100, share: 10}, {most: 5, share: 1}}, true},
		"it comes first":                      {[]part{{most: 5, share: 1}, {most: 100, share: 10}}, true},
		"its share is as large as it is":      {[]part{{most: 100, share: 1}, {most: 5, share: 5}}, true},
		"it does not apply":                   {[]part{{most: 100, share: 10}, {most: 5, share: 1, skips: true}}, false},
		"it is a shadow":                      {[]part{{most: 100, share: 10}, {most: 5, share: 1, shadow: true}}, false},
		"a shadow is before it":               {[]part{{most: 1, share: 1, shadow: true}, {most: 100, share: 10}, {most: 5, share: 1}}, true},
		"a small cost of its own":             {[]part{{most: 100, share: 10}, {most: 5, share: 1, own: 5}}, false},
		"a large cost of its own":             {[]part{{most: 100, share: 10}, {most: 5, share: 1, own: 6}}, true},
		"all are large":                       {[]part{{most: 100, share: 10}, {most: 50, share: 10}}, false},
		"all are too small":                   {[]part{{most: 10, share: 10}, {most: 49, share: 10}}, true},
		"the only one that applies is enough": {[]part{{most: 5, share: 1, skips: true}, {most: 100, share: 10}, {most: 1, share: 1, shadow: true}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			l := over(t, downStack{stackOf(t, row.parts, most)}, stackOf(t, row.parts, share), failover.Options{})
			d, err := l.Take(context.Background(), "k", 50)
			require.Equal(t, row.never, errors.Is(err, ratelimit.ErrExceedsLimit), "%v", err)
			require.False(t, d.Allowed)
			require.True(t, d.Degraded)
			require.Equal(t, row.never, d.RetryAfter == 0)
			if !row.never {
				require.NoError(t, err)
				require.Equal(t, time.Second, d.RetryAfter)
			}
		})
	}
	l := over(t, downStack{stackOf(t, []part{{most: 100}, {most: 5}}, most)}, newLocal(t, ratelimit.TokenBucket(ratelimit.PerDay(1), 10)), failover.Options{})
	_, err := l.Take(context.Background(), "k", 50)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit, "a single limiter stands in")
}

// A healthy primary returns an error for a cost above its capacity. During an outage, the stand-in returns the same error.
func TestACostThatCanNeverPassIsAnErrorWithAndWithoutThePrimary(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 41))
	never, forNow := 0, 0
	for range testsize.Of(800, 3000) {
		parts := make([]part, 1+r.IntN(4))
		for i := range parts {
			p := part{most: 1 + r.IntN(60), shadow: r.IntN(4) == 0, skips: r.IntN(4) == 0}
			p.share = 1 + r.IntN(p.most)
			if r.IntN(4) == 0 {
				p.own = 1 + r.IntN(70)
			}
			parts[i] = p
		}
		cost := 1 + r.IntN(80)
		_, want := stackOf(t, parts, most).Take(context.Background(), "k", cost)
		l := over(t, downStack{stackOf(t, parts, most)}, stackOf(t, parts, share), failover.Options{})
		d, err := l.Take(context.Background(), "k", cost)
		require.Equal(t, want != nil, err != nil, "%+v, cost %d: %v, %v", parts, cost, want, err)
		switch {
		case err != nil:
			require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
			never++
		case !d.Allowed:
			require.Equal(t, time.Second, d.RetryAfter)
			forNow++
		}
	}
	require.Greater(t, never, 100)
	require.Greater(t, forNow, 20)
}
