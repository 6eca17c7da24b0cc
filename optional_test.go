package ratelimit_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

func TestWhatAChainsLimitersCanDoTheChainCanDo(t *testing.T) {
	clock := new(testClock)
	first := onClock(t, clock, ratelimit.TokenBucket(ratelimit.PerSecond(1), 5).Named("first"))
	last := onClock(t, clock, ratelimit.FixedWindow(ratelimit.PerMinute(8)).Named("last"))
	var l ratelimit.Limiter[string] = ratelimit.MapReserver(chainOf(t, chainOf(t, first), last), func(k string) (string, error) {
		if k == "skip" {
			return "", ratelimit.SkipLayer
		}
		return k, nil
	})
	ctx := t.Context()
	require.True(t, l.Allow("k", 4))
	for cost := range 6 {
		want := ratelimit.Decision{Allowed: cost <= 1, Limit: first.Limits()[0], Remaining: 1, ResetAfter: time.Minute}
		if !want.Allowed {
			want.RetryAfter, want.ResetAfter = s*time.Duration(cost-1), 4*s
		}
		d, err := ratelimit.Peek(ctx, l, "k", cost)
		require.NoError(t, err)
		assert.Equal(t, want, d, "cost %d", cost)
	}
	_, err := ratelimit.Peek(ctx, l, "k", 6)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	assert.Equal(t, 1, remaining(t, first, "k"), "nothing was spent")

	require.NoError(t, ratelimit.Adjust(ctx, l, "k", -2))
	assert.Equal(t, 3, remaining(t, first, "k"))
	assert.Equal(t, 6, remaining(t, last, "k"))
	require.NoError(t, ratelimit.Reset(ctx, l, "k"))
	assert.Equal(t, 5, remaining(t, first, "k"))
	assert.Equal(t, 8, remaining(t, last, "k"))

	require.NoError(t, ratelimit.Reset(ctx, l, "skip"))
	require.NoError(t, ratelimit.Adjust(ctx, l, "skip", 1))
	d, err := ratelimit.Peek(ctx, l, "skip", 1)
	require.NoError(t, err)
	assert.True(t, d.Allowed)
}

// If one limiter cannot do it, none does.
func TestWhatAnEngineCannotDoIsUnsupported(t *testing.T) {
	first := onClock(t, new(testClock), ratelimit.FixedWindow(ratelimit.PerMinute(8)))
	require.True(t, first.Allow("k", 3))
	ctx := t.Context()
	for name, l := range map[string]ratelimit.Limiter[string]{
		"an engine":  allows(ratelimit.Decision{}),
		"in a chain": chainOf(t, first, allows(ratelimit.Decision{})),
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

// adjustable is an engine whose methods take a context.
type adjustable struct {
	*engine
	err error
	n   int
}

func (a *adjustable) Adjust(_ context.Context, _ string, delta int) error {
	a.n += delta
	return a.err
}

func TestAChainAdjustsAllAndTellsWhatFailed(t *testing.T) {
	a, b := &adjustable{engine: allows(ratelimit.Decision{}), err: ratelimit.ErrUnavailable}, &adjustable{engine: allows(ratelimit.Decision{})}
	err := chainOf(t, a, b).Adjust(t.Context(), "k", 3)
	require.ErrorIs(t, err, ratelimit.ErrUnavailable)
	require.ErrorContains(t, err, "limiter 0 of Chain")
	assert.Equal(t, []int{3, 3}, []int{a.n, b.n})
}
