package sqllimit

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

// 60 calls are booked at 1 a second. At 100 a second they take 1 unit of each 100, and each keeps its instant in the row.
func TestAfterARaiseFarBookingsLeaveTheRestToOthers(t *testing.T) {
	for _, limit := range []func(n int) ratelimit.Limit{
		func(n int) ratelimit.Limit { return ratelimit.TokenBucket(ratelimit.PerSecond(n), n) },
		func(n int) ratelimit.Limit { return ratelimit.FixedWindow(ratelimit.PerSecond(n)) },
		func(n int) ratelimit.Limit { return ratelimit.SlidingLog(ratelimit.PerSecond(n)) },
		func(n int) ratelimit.Limit { return ratelimit.SlidingCounter(ratelimit.PerSecond(n)) },
	} {
		clock := newClock()
		_, db := newFake(t, clock.now)
		low, high := newLimiter(t, db, limit(1), patient), newLimiter(t, db, limit(100), patient)
		require.True(t, low.Allow("k", 1))
		for range 60 {
			r, err := low.Reserve(t.Context(), "k", 1, 3*time.Minute)
			require.NoError(t, err)
			require.True(t, r.Allowed)
		}
		passed := 0
		for range 50 {
			for high.Allow("k", 1) {
				passed++
			}
			d, err := high.Take(t.Context(), "k", 1)
			require.NoError(t, err)
			require.Zero(t, d.Debt)
			clock.advance(100 * time.Millisecond)
		}
		require.GreaterOrEqual(t, passed, 99*4, "%v", limit(100))
		require.LessOrEqual(t, passed, 99*6, "%v", limit(100))
	}
}
