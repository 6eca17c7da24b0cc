package pace_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/pace"
)

// The head waits for its booking, which is far ahead. When the server
// demands a wait, the head gives the booking back and books again later.
func TestAServersWaitEndsABookingThatIsFarAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerMinute(1), 1), nil))
		pc := pace.New("test", l, pace.Options[string]{})
		first := pc.Arrive(t.Context(), "queue")
		require.NoError(t, pc.Await(first, "k"))
		done := make(chan time.Duration, 3)
		begin := time.Now()
		for range 3 {
			go func() {
				if send(t.Context(), pc, "k") == nil {
					done <- time.Since(begin)
				}
			}()
			synctest.Wait()
		}
		time.Sleep(time.Second)
		pc.Learn(first, pace.Advice{Refused: true, Wait: 90 * time.Second}, time.Now())
		pc.Leave(first)
		synctest.Wait()
		d, err := l.Peek(t.Context(), "k", 1)
		require.NoError(t, err)
		require.Equal(t, 59*time.Second, d.RetryAfter, "nothing is booked")
		require.Equal(t, 91*time.Second, <-done)
		require.Equal(t, 151*time.Second, <-done)
		require.Equal(t, 211*time.Second, <-done)
		require.Zero(t, pc.Stats().Unsettled)
	})
}

// The head gives up while it waits for its booking. The next place gets the booking's instant.
func TestAHeadThatGivesUpLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerMinute(1), 1), nil))
		require.True(t, l.Allow("k", 1))
		pc := pace.New("test", l, pace.Options[string]{MaxWait: 5 * time.Minute})
		begin := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 2)
		go func() { done <- send(ctx, pc, "k") }()
		synctest.Wait()
		go func() { done <- send(t.Context(), pc, "k") }()
		time.Sleep(59*time.Second + 950*time.Millisecond) // both places have a booking
		synctest.Wait()
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
		require.NoError(t, <-done)
		require.LessOrEqual(t, time.Since(begin), time.Minute)
	})
}

// While the head waits, the limit is lowered, so the head would be
// too late. It fails with an error that has the limit and the time.
func TestAHeadThatABrakeMakesTooLateFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerMinute(1), 1), nil))
		require.True(t, l.Allow("k", 1))
		pc := pace.New("test", l, pace.Options[string]{MaxWait: 2 * time.Minute})
		done := make(chan error, 1)
		go func() { done <- send(t.Context(), pc, "k") }()
		synctest.Wait()
		require.NoError(t, l.SetLimit(ratelimit.TokenBucket(ratelimit.PerHour(1), 1)))
		var late *ratelimit.LateError
		require.ErrorAs(t, <-done, &late)
		require.ErrorIs(t, late, ratelimit.ErrLimited)
		require.Equal(t, "test", late.Package)
	})
}
