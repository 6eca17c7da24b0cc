package ctxwait_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/ctxwait"
)

func TestSleepEndsWithTheDelayOrTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		require.NoError(t, ctxwait.Sleep(t.Context(), time.Second))
		require.Equal(t, time.Second, time.Since(start))

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, ctxwait.Sleep(ctx, time.Minute), context.DeadlineExceeded)
		require.Equal(t, 2*time.Second, time.Since(start))
		require.NoError(t, ctxwait.Sleep(ctx, 0), "nothing to wait for")
		require.NoError(t, ctxwait.Sleep(ctx, -1))
		require.Equal(t, 2*time.Second, time.Since(start))
	})
}

func TestASleepThatEndsWithTheContextWasInTime(t *testing.T) {
	for range 100 { // select picks either
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			require.NoError(t, ctxwait.Sleep(ctx, time.Second))
		})
	}
}

// late is a context whose timer has not fired yet.
type late struct{ context.Context }

func (late) Deadline() (time.Time, bool) { return time.Now().Add(-time.Nanosecond), true }

func TestWhatIsLeftOfAContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left, err := ctxwait.Left(context.Background())
		require.NoError(t, err)
		require.Equal(t, ctxwait.Forever, left)

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		left, err = ctxwait.Left(ctx)
		require.NoError(t, err)
		require.Equal(t, time.Second, left)
		cancel()
		_, err = ctxwait.Left(ctx)
		require.ErrorIs(t, err, context.Canceled)

		_, err = ctxwait.Left(late{context.Background()})
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}
