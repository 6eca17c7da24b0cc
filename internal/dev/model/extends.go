package model

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/held"
)

// Holding returns a limiter under Concurrent with 3 units and a hold of a minute.
func Holding(t testing.TB, clock ratelimit.Clock) *ratelimit.Keyed[string] {
	t.Helper()
	l, err := ratelimit.New(ratelimit.Concurrent(3, time.Minute).Named("streams"), &ratelimit.Options[string]{Clock: clock})
	require.NoError(t, err)
	return l
}

// Extends tests a limiter wrapping one from Holding. Its reservations must hold, extend
// and give back the inner limiter's units. Calls without an end must hold nothing.
func Extends(t testing.TB, clock Clock, outer ratelimit.Reserver[string], inner *ratelimit.Keyed[string]) {
	t.Helper()
	ctx := t.Context()
	inUse := func(key string) int {
		d, err := inner.Peek(ctx, key, 1)
		require.NoError(t, err)
		return 3 - d.Remaining
	}
	require.False(t, outer.Allow("endless", 1))
	_, err := outer.Take(ctx, "endless", 1)
	require.ErrorContains(t, err, "has no end at which")
	require.ErrorContains(t, ratelimit.Wait(ctx, outer, "endless", 1), "has no end at which")
	require.Eventually(t, func() bool { return inUse("endless") == 0 }, time.Minute, time.Millisecond, "a call without an end holds nothing")
	for _, key := range []string{"a", "b"} { // for b, the limiter may use what it has learnt from a
		one, err := outer.Reserve(ctx, key, 1, 0)
		require.NoError(t, err)
		require.True(t, one.Allowed)
		two, err := outer.Reserve(ctx, key, 2, 0)
		require.NoError(t, err)
		require.True(t, two.Allowed)
		require.Equal(t, 3, inUse(key), "no more than what calls use")
		require.Equal(t, time.Minute, held.Hold(one))
		denied, err := outer.Reserve(ctx, key, 1, 0)
		require.NoError(t, err)
		require.False(t, denied.Allowed)
		clock.Advance(40 * time.Second)
		require.NoError(t, one.Extend(ctx))
		clock.Advance(40 * time.Second)
		require.Equal(t, 1, inUse(key), "what was not extended has lapsed")
		require.ErrorIs(t, two.Extend(ctx), ratelimit.ErrLost)
		require.NoError(t, one.Extend(ctx))
		require.NoError(t, one.Settle(500))
		require.Zero(t, inUse(key))
		require.True(t, errors.Is(one.Extend(ctx), ratelimit.ErrLost))
	}
}
