package linetest

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/outcome"
)

// Mover returns functions for a new limiter with a full budget. The first one books,
// and may replace another booking. The second returns the state of the limiter's key.
type Mover func(t *testing.T, limit ratelimit.Limit) (book func(cost int, ahead time.Duration, instead any) outcome.Made, stands func() ratelimit.Decision)

// Moves tests bookings that replace other bookings.
func (m Mover) Moves(t *testing.T) {
	for _, limit := range []ratelimit.Limit{
		bucket(1, 2), ratelimit.FixedWindow(ratelimit.PerSecond(2)), ratelimit.SlidingLog(ratelimit.PerSecond(2)), ratelimit.SlidingCounter(ratelimit.PerSecond(2)),
	} {
		t.Run(limit.String(), func(t *testing.T) {
			book, stands := m(t, limit)
			spent := book(2, 0, nil)
			require.True(t, spent.Allowed)
			before := stands()
			first, second, third := book(2, math.MaxInt64, nil), book(2, math.MaxInt64, nil), book(2, math.MaxInt64, nil)
			require.Greater(t, third.Delay, second.Delay)
			require.Greater(t, second.Delay, first.Delay)
			require.Equal(t, first.Life, third.Life)

			if limit.Algorithm == ratelimit.AlgorithmTokenBucket {
				require.NoError(t, spent.Settle(1))
				early := book(2, first.Delay-time.Millisecond, first.Ref) // one unit too few is free
				require.True(t, early.Allowed)
				require.Equal(t, first.Delay-time.Second, early.Delay)
				first = early
				second, third = book(2, math.MaxInt64, second.Ref), book(2, math.MaxInt64, third.Ref)
				require.Equal(t, first.Delay+4*time.Second, third.Delay)
				before.Allowed, before.Remaining, before.RetryAfter, before.NextAfter = true, 1, 0, 0
				before.ResetAfter -= time.Second
			}
			require.NoError(t, first.Settle(0))
			all := stands()
			denied := book(2, 0, third.Ref)
			require.False(t, denied.Allowed)
			require.Equal(t, first.Delay, denied.RetryAfter)
			require.Equal(t, all, stands(), "nothing has changed")
			moved := book(2, third.Delay-time.Millisecond, third.Ref)
			require.True(t, moved.Allowed)
			require.Equal(t, first.Delay, moved.Delay)
			last := book(2, math.MaxInt64, nil)
			require.Equal(t, third.Delay, last.Delay, "its place is free")
			for _, b := range []outcome.Made{last, second, moved} {
				require.NoError(t, b.Settle(0))
			}
			require.Equal(t, before, stands(), "nothing stays booked")
		})
	}
}
