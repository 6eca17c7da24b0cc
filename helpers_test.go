package ratelimit_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/model"
)

// testClock is a clock set by hand.
type testClock struct{ now atomic.Int64 }

func (c *testClock) Now() time.Duration      { return time.Duration(c.now.Load()) }
func (c *testClock) Wall() time.Time         { return time.Unix(0, c.now.Load()) }
func (c *testClock) set(t time.Duration)     { c.now.Store(int64(t)) }
func (c *testClock) advance(d time.Duration) { c.now.Add(int64(d)) }

// newLimiter returns a limiter on a clock set by hand, for tests that need no options.
func newLimiter(t testing.TB, limit ratelimit.Limit) (*ratelimit.Keyed[string], *testClock) {
	t.Helper()
	clock := new(testClock)
	return newWith(t, limit, ratelimit.Options[string]{Clock: clock}), clock
}

func newWith[K comparable](t testing.TB, limit ratelimit.Limit, opts ratelimit.Options[K]) *ratelimit.Keyed[K] {
	t.Helper()
	l, err := ratelimit.New(limit, &opts)
	require.NoError(t, err)
	return l
}

func TestSystemClockRunsForward(t *testing.T) {
	l := ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.Per(1, time.Nanosecond), 1), nil))
	for range 1000 {
		require.NoError(t, l.Wait(t.Context(), "k", 1))
	}
}

func TestClockMayReadAnything(t *testing.T) {
	readings := []time.Duration{-1 << 63, 1<<63 - 1, 0, -1, 1 << 62, -1 << 62, time.Hour}
	for _, limit := range everyAlgorithm {
		t.Run(limit.Algorithm.String(), func(t *testing.T) {
			l, clock := newLimiter(t, limit)
			for _, r := range readings {
				clock.set(r)
				d, err := l.Peek(context.Background(), "k", 1)
				require.NoError(t, err)
				assert.GreaterOrEqual(t, d.RetryAfter, time.Duration(0))
				assert.GreaterOrEqual(t, d.ResetAfter, time.Duration(0))
				assert.Equal(t, d.Allowed, l.Allow("k", 1))
			}
		})
	}
}

// everyAlgorithm has a small limit for each algorithm that regains spending with time.
var everyAlgorithm = []ratelimit.Limit{
	ratelimit.TokenBucket(ratelimit.PerSecond(10), 5),
	ratelimit.LeakyBucket(ratelimit.PerSecond(10), 5),
	ratelimit.FixedWindow(ratelimit.PerSecond(5)),
	ratelimit.SlidingLog(ratelimit.PerSecond(5)),
	ratelimit.SlidingCounter(ratelimit.PerSecond(5)),
	ratelimit.Calendar(5, ratelimit.Day("Europe/Berlin")),
}

// allows and fails return engines of another kind, with fixed results.
var allows, fails = model.Allows, model.Fails

// rig is a limiter and its clock.
type rig struct {
	limiter *ratelimit.Keyed[string]
	clock   *testClock
}

func newRig(t testing.TB, limit ratelimit.Limit) rig {
	l, clock := newLimiter(t, limit)
	return rig{l, clock}
}
