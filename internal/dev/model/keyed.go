package model

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// OnClock returns a limiter that reads a test's clock.
func OnClock(t testing.TB, clock *ratelimittest.Clock, limit ratelimit.Limit) *ratelimit.Keyed[string] {
	t.Helper()
	l, err := ratelimit.New(limit, &ratelimit.Options[string]{Clock: clock})
	require.NoError(t, err)
	return l
}

// Remaining returns a key's remaining budget.
func Remaining(t testing.TB, l *ratelimit.Keyed[string], key string) int {
	t.Helper()
	d, err := l.Peek(context.Background(), key, 0)
	require.NoError(t, err)
	return d.Remaining
}
