package lease_test

import (
	"context"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/lease"
)

var errUnavailable = ratelimit.ErrUnavailable

func TestFlushGivesAllBatchesBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, tight(1000))
		l := leased(t, s, lease.Options[string]{MaxBatch: 100})
		for i := range 40 {
			for range 20 {
				require.True(t, l.Allow(strconv.Itoa(i), 1))
				synctest.Wait()
			}
		}
		require.Greater(t, s.total(), 800)
		require.NoError(t, l.Flush(context.Background()))
		require.Equal(t, 800, s.total())
		require.Zero(t, l.Stats().Held)
		calls := len(s.received(&s.settled))
		require.Equal(t, 40, calls)

		require.NoError(t, l.Flush(context.Background()), "twice")
		require.Empty(t, s.received(&s.settled))
		require.True(t, l.Allow("0", 1), "it stays usable")
	})
}

func TestFlushWaitsForFetches(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, plenty)
		l := leased(t, s, lease.Options[string]{MaxBatch: 100})
		holding(t, l)
		s.fail(func(context.Context) error { time.Sleep(300 * time.Millisecond); return nil })
		for l.Stats().Held > 8 { // until a fetch of the next batch is under way
			require.True(t, l.Allow("k", 1))
		}
		began := time.Now()
		require.NoError(t, l.Flush(context.Background()))
		require.Equal(t, 600*time.Millisecond, time.Since(began), "a fetch, then a settlement")
		st := l.Stats()
		require.Zero(t, st.Held)
		require.EqualValues(t, s.total(), st.Decisions)
	})
}

func TestFlushEndsWithItsContext(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, plenty)
		l := leased(t, s, lease.Options[string]{MaxBatch: 100})
		holding(t, l)
		s.fail(func(context.Context) error { time.Sleep(time.Minute); return nil })
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		err := l.Flush(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.EqualError(t, err, "lease: Flush: up to 1 batches are still being given back: context deadline exceeded")
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		require.EqualValues(t, s.total(), l.Stats().Decisions, "it went on in the background")
	})
}

func TestFlushWhileDecisionsGoOn(t *testing.T) {
	s := newServer(t, tight(30_000))
	l := leased(t, s, lease.Options[string]{MaxBatch: 100})
	var used atomic.Int64
	var wg sync.WaitGroup
	var stop atomic.Bool
	for range 16 {
		wg.Go(func() {
			for !stop.Load() {
				if l.Allow("k", 3) {
					used.Add(3)
				}
				if r, err := l.Reserve(context.Background(), "k", 2, 0); err == nil && r.Allowed {
					_ = r.Cancel()
				}
				runtime.Gosched() // let Flush run, even on one processor
			}
		})
	}
	for range 200 {
		require.NoError(t, l.Flush(context.Background()))
		runtime.Gosched()
	}
	stop.Store(true)
	wg.Wait()
	require.NoError(t, l.Flush(context.Background()))
	require.EqualValues(t, s.total(), used.Load()+int64(l.Stats().UnitsLost))
}

// Flush waits for a fetch. Another fetch, ahead of need, may follow it. Flush gives back both batches.
func TestFlushGivesBackBatchesThatAreBeingFetched(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, plenty)
		l := leased(t, s, lease.Options[string]{MaxBatch: 100})
		require.True(t, l.Allow("k", 1))
		require.True(t, l.Allow("k", 3))
		s.fail(func(context.Context) error { time.Sleep(100 * time.Millisecond); return nil })
		go l.Allow("k", 4)
		synctest.Wait()
		s.received(&s.requested)
		require.NoError(t, l.Flush(context.Background()))
		require.Len(t, s.received(&s.requested), 1, "a batch was fetched ahead")
		require.Zero(t, l.Stats().Held)
	})
}

func TestStatsCountAWaitWhoseContextHasEnded(t *testing.T) {
	l := leased(t, newServer(t, plenty), lease.Options[string]{MaxBatch: 40})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, l.Wait(ctx, "k", 1), context.Canceled)
	require.EqualValues(t, 1, l.Stats().Decisions)
}
