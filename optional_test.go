package ratelimit_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/chain"
)

// If one limiter cannot do it, none does.
func TestWhatAnEngineCannotDoIsUnsupported(t *testing.T) {
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
