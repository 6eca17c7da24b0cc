package lease_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/lease"
)

// bytesPerKey calls warm for many keys of a lease, and returns the memory per key.
func bytesPerKey(t *testing.T, holdFor time.Duration, warm func(l *lease.Limiter[string], key string)) float64 {
	n := testsize.Of(20_000, 60_000)
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("tenant:%09d", i)
	}
	limit := ratelimit.TokenBucket(ratelimit.PerSecond(1_000_000), 1_000_000).Named("shared")
	l, err := lease.New[string](free{limit}, &lease.Options[string]{MaxBatch: 64, HoldFor: holdFor, BatchFor: holdFor})
	require.NoError(t, err)
	before := testsize.Heap()
	for _, name := range names {
		warm(l, name)
	}
	time.Sleep(100 * time.Millisecond) // batches are fetched ahead meanwhile
	after := testsize.Heap()
	require.Equal(t, n, l.Stats().Keys)
	runtime.KeepAlive(names)
	return float64(after-before) / float64(n)
}

// free is a remote limiter without state.
type free struct{ limit ratelimit.Limit }

func (f free) decision() decision {
	return decision{Allowed: true, Limit: f.limit, Remaining: 1_000_000, ResetAfter: time.Second}
}

func (f free) Allow(string, int) bool { return true }

func (f free) Take(context.Context, string, int) (decision, error) { return f.decision(), nil }

func (f free) Reserve(context.Context, string, int, time.Duration) (*reservation, error) {
	return ratelimit.NewReservation(f.decision(), nil), nil
}

func TestAKeyTakesNoMoreMemoryThanDocumented(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector takes memory of its own")
	}
	often := func(l *lease.Limiter[string], key string) {
		for range 4 {
			l.Allow(key, 1)
		}
	}
	idle := bytesPerKey(t, time.Millisecond, often)
	held := bytesPerKey(t, time.Hour, often)
	t.Logf("%.0f bytes an idle key, %.0f one with batches", idle, held)
	require.Less(t, idle, 328.0)
	require.Less(t, held, 640.0)
}

// keeper is a remote limiter. Its reservations retain their key until they are settled.
type keeper struct{ free }

func (k keeper) Reserve(_ context.Context, key string, _ int, _ time.Duration) (*reservation, error) {
	return ratelimit.NewReservation(k.decision(), func(int) error { runtime.KeepAlive(key); return nil }), nil
}

// A key may be a part of a request's text. Neither its holding nor its batches retain the rest of the text.
func TestAKeyDoesNotKeepTheRequestThatItWasCutFrom(t *testing.T) {
	const n, size = 200, 100_000
	limit := ratelimit.TokenBucket(ratelimit.PerSecond(1_000_000), 1_000_000)
	bubble(t, func(t *testing.T) {
		l, err := lease.New[string](keeper{free{limit}}, &lease.Options[string]{MaxBatch: 64, HoldFor: time.Hour, BatchFor: time.Hour})
		require.NoError(t, err)
		before := testsize.Heap()
		for i := range n {
			request := fmt.Sprintf("tenant:%09d", i) + strings.Repeat("x", size)
			require.True(t, l.Allow(request[:16], 1))
		}
		synctest.Wait() // batches are fetched ahead
		kept := testsize.Heap() - before
		require.Equal(t, n, l.Stats().Keys)
		require.Less(t, kept, int64(n*size/10))
	})
}
