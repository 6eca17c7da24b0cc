package lease_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/lease"
)

// If units were held beyond their calendar window, they would be spent in the next one, in addition to its own units.
func TestNothingIsHeldPastTheEndOfACalendarsWindow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, ratelimit.Calendar(10_000, ratelimit.Day("UTC")))
		s.clock.SetWall(time.Date(2026, 5, 20, 23, 59, 58, 0, time.UTC))
		l := leased(t, s, lease.Options[string]{MaxBatch: 16, HoldFor: time.Minute})
		for l.Stats().Held < 10 {
			require.True(t, l.Allow("k", 1))
			synctest.Wait()
		}
		time.Sleep(1999 * time.Millisecond)
		synctest.Wait()
		require.NotZero(t, l.Stats().Held)
		time.Sleep(time.Millisecond)
		synctest.Wait()
		require.Zero(t, l.Stats().Held)
	})
}

// An answer reports how long the window lasts after the decision. If the answer is slow, less is left when it arrives.
func TestABatchThatArrivesLateIsNotHeldPastTheEndOfItsWindow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &lateAnswers{server: newServer(t, ratelimit.Calendar(10_000, ratelimit.Day("UTC")))}
		s.clock.SetWall(time.Date(2026, 5, 20, 23, 59, 58, 0, time.UTC))
		l, err := lease.New[string](s, &lease.Options[string]{MaxBatch: 50, HoldFor: time.Minute})
		require.NoError(t, err)
		for l.Stats().Held < 30 {
			require.True(t, l.Allow("k", 1))
			synctest.Wait()
		}
		s.by = 500 * time.Millisecond
		s.received(&s.requested)
		for len(s.requested) == 0 { // until a fetch ahead of need is under way
			require.True(t, l.Allow("k", 1))
			synctest.Wait()
		}
		time.Sleep(time.Second)
		require.NotZero(t, l.Stats().Held)
		time.Sleep(time.Second)
		synctest.Wait()
		require.Zero(t, l.Stats().Held)
	})
}
