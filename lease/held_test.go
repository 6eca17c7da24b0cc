package lease_test

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/lease"
)

// An open reservation may put units back into its batch. The next batch leaves
// room for them: otherwise a process could admit both within one interval.
func TestTheClaimOfAnOpenReservationLeavesLessRoomForTheNextBatch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, plenty)
		l := leased(t, s, lease.Options[string]{MaxBatch: 16})
		for l.Stats().Held < 10 {
			require.True(t, l.Allow("k", 1))
			synctest.Wait()
		}
		r := reserve(t, l, l.Stats().Held-1)
		synctest.Wait() // the next batch is fetched
		require.NoError(t, r.Cancel())
		require.LessOrEqual(t, l.Stats().Held, 16)
	})
}

// The limiter keeps room for units that open reservations may put back. A cost without room beside them is reserved directly.
func TestACostBesideOpenReservationsIsReservedDirectly(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, plenty)
		l := leased(t, s, lease.Options[string]{MaxBatch: 16})
		for l.Stats().Held < 10 {
			require.True(t, l.Allow("k", 1))
			synctest.Wait()
		}
		r := reserve(t, l, l.Stats().Held-1)
		synctest.Wait()
		s.received(&s.taken)
		require.True(t, l.Allow("k", 16))
		require.Len(t, s.received(&s.taken), 1)
		before := s.total()
		require.NoError(t, r.Cancel())
		require.LessOrEqual(t, l.Stats().Held, 16)
		require.Zero(t, l.Stats().UnitsLost)
		require.NoError(t, l.Flush(context.Background()))
		require.Less(t, s.total(), before)
	})
}

func TestEachBatchIsGivenBackAtItsOwnTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, plenty)
		l := leased(t, s, lease.Options[string]{MaxBatch: 16, HoldFor: time.Second})
		for l.Stats().Held < 10 {
			require.True(t, l.Allow("k", 1))
			synctest.Wait()
		}
		time.Sleep(600 * time.Millisecond)
		fetched := len(s.received(&s.requested))
		for range 8 { // spends half the batch
			require.True(t, l.Allow("k", 1))
			synctest.Wait()
			if len(s.received(&s.requested)) > 0 {
				break
			}
		}
		require.NotZero(t, fetched)
		older := l.Stats().Held
		time.Sleep(400 * time.Millisecond)
		synctest.Wait()
		require.Less(t, l.Stats().Held, older, "the older one is given back")
		require.NotZero(t, l.Stats().Held, "the younger one is not")
		time.Sleep(600 * time.Millisecond)
		synctest.Wait()
		require.Zero(t, l.Stats().Held)
	})
}

// When a budget is nearly used up, an idle process does not keep the last units from the others.
func TestUnusedUnitsGoBackSoonWhereLittleIsLeft(t *testing.T) {
	for _, limit := range []ratelimit.Limit{tight(400), ratelimit.SlidingLog(ratelimit.PerHour(400)), ratelimit.FixedWindow(ratelimit.PerHour(300))} {
		bubble(t, func(t *testing.T) {
			s := newServer(t, limit)
			a := leased(t, s, lease.Options[string]{MaxBatch: 100})
			b := leased(t, s, lease.Options[string]{MaxBatch: 100, DenyFor: -1})
			for a.Stats().Held < 25 {
				require.True(t, a.Allow("k", 1))
				synctest.Wait()
			}
			admitted := s.total() - a.Stats().Held
			for b.Allow("k", 1) {
				admitted++
				synctest.Wait()
			}
			require.GreaterOrEqual(t, a.Stats().Held, 25)
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
			require.Zero(t, a.Stats().Held)
			for b.Allow("k", 1) {
				admitted++
				synctest.Wait()
			}
			require.Equal(t, limit.Capacity(), admitted)
		})
	}
}

// The longest Duration means "for ever".
func TestABatchIsHeldForAnyHoldFor(t *testing.T) {
	for _, o := range []lease.Options[string]{
		{HoldFor: math.MaxInt64},
		{HoldFor: math.MaxInt64, BatchFor: math.MaxInt64},
		{HoldFor: 100 * year},
	} {
		bubble(t, func(t *testing.T) {
			s := newServer(t, ratelimit.TokenBucket(ratelimit.PerDay(1), 1000))
			o.MaxBatch = 500 // so large that the remote limiter seems nearly used up
			l := leased(t, s, o)
			for range 15 {
				require.True(t, l.Allow("k", 1))
				synctest.Wait()
			}
			require.NotZero(t, l.Stats().Held)
			before := s.total()
			time.Sleep(time.Millisecond)
			synctest.Wait()
			require.Equal(t, before, s.total(), "nothing is given back, with HoldFor %v and BatchFor %v", o.HoldFor, o.BatchFor)
			require.NoError(t, l.Flush(context.Background()))
		})
	}
}

const year = 365 * 24 * time.Hour

func TestABatchWaitsForItsReservationsTenTimesAnyHoldFor(t *testing.T) {
	for _, holdFor := range []time.Duration{30 * year, 33 * year, 40 * year, 200 * year} {
		bubble(t, func(t *testing.T) {
			s := newServer(t, plenty)
			l := leased(t, s, lease.Options[string]{MaxBatch: 40, HoldFor: holdFor})
			holding(t, l)
			r := reserve(t, l, 3)
			time.Sleep(holdFor + time.Hour)
			synctest.Wait()
			require.Zero(t, l.Stats().BatchesForfeited, "%v", holdFor)
			require.NoError(t, r.Cancel())
			require.Zero(t, l.Stats().UnitsLost)
			require.NoError(t, l.Flush(context.Background()))
		})
	}
}
