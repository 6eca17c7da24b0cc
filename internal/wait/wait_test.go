package wait_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/wait"
)

func TestSleepEndsWithTheDelayOrTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		require.NoError(t, wait.Sleep(t.Context(), time.Second))
		require.Equal(t, time.Second, time.Since(start))

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, wait.Sleep(ctx, time.Minute), context.DeadlineExceeded)
		require.Equal(t, 2*time.Second, time.Since(start))
		require.NoError(t, wait.Sleep(ctx, 0), "nothing to wait for")
		require.NoError(t, wait.Sleep(ctx, -1))
		require.Equal(t, 2*time.Second, time.Since(start))
	})
}

func TestASleepThatEndsWithTheContextWasInTime(t *testing.T) {
	for range 100 { // select chooses at random, so once is not enough
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			require.NoError(t, wait.Sleep(ctx, time.Second))
		})
	}
}

// late is a context whose timer has not fired yet.
type late struct{ context.Context }

func (late) Deadline() (time.Time, bool) { return time.Now().Add(-time.Nanosecond), true }

func TestTheTimeLeftOfAContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left, err := wait.Left(context.Background())
		require.NoError(t, err)
		require.Equal(t, wait.Forever, left)

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		left, err = wait.Left(ctx)
		require.NoError(t, err)
		require.Equal(t, time.Second, left)
		cancel()
		_, err = wait.Left(ctx)
		require.ErrorIs(t, err, context.Canceled)

		_, err = wait.Left(late{context.Background()})
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

func TestTheCallersContextOutlastsABoundOfTheWait(t *testing.T) {
	caller, cancel := context.WithCancel(context.Background())
	waiting, end := wait.Within(caller, time.Hour)
	defer end()
	_, bounded := waiting.Deadline()
	require.True(t, bounded)
	found, ok := wait.Caller(waiting)
	require.True(t, ok)
	require.Equal(t, caller, found)
	_, ok = wait.Caller(caller)
	require.False(t, ok)
	cancel()
	require.ErrorIs(t, waiting.Err(), context.Canceled)
}
