package model

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

// testClock is a clock set by hand.
type testClock struct{ now atomic.Int64 }

func (c *testClock) Now() time.Duration { return time.Duration(c.now.Load()) }
func (c *testClock) Wall() time.Time    { return time.Unix(0, c.now.Load()) }

func newWith[K comparable](t testing.TB, limit ratelimit.Limit, opts ratelimit.Options[K]) *ratelimit.Keyed[K] {
	t.Helper()
	l, err := ratelimit.New(limit, &opts)
	require.NoError(t, err)
	return l
}
