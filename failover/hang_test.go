package failover_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// Calls ignore their context and hold all turns for an hour. The store recovers long before.
func TestAProbeBeginsAlthoughHungCallsHoldAllTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, wide)
		l := over(t, s, failover.AllowAll[string](), failover.Options{MaxCalls: 3, Failures: 3})
		s.fail(takes(time.Hour))
		storm(3, func() { require.True(t, take(t, l, 1).Degraded) })
		for range 4 { // probes hang too
			require.Equal(t, failover.StateOpen, l.Stats().State)
			time.Sleep(1200*time.Millisecond + 1)
			require.Equal(t, failover.StateHalfOpen, l.Stats().State)
			before := s.calls.Load()
			var probe sync.WaitGroup
			probe.Go(func() { require.True(t, take(t, l, 1).Degraded) })
			synctest.Wait()
			require.Equal(t, before+1, s.calls.Load(), "it begins at once")
			began := time.Now()
			storm(10, func() { require.True(t, take(t, l, 1).Degraded) })
			require.Zero(t, time.Since(began), "all others are answered at once")
			probe.Wait()
		}
		s.fail(nil)
		time.Sleep(1200*time.Millisecond + 1)
		for range 10 {
			require.False(t, take(t, l, 1).Degraded)
			require.Equal(t, failover.StateClosed, l.Stats().State)
		}
		require.Zero(t, l.Stats().Busy)
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		s.fail(takes(40 * time.Millisecond))
		storm(3, func() { require.False(t, take(t, l, 1).Degraded) })
	})
}

func TestHungSettlementsDoNotKeepLaterOnesFromAStoreThatHasRecovered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, wide)
		l := over(t, s, failover.AllowAll[string](), failover.Options{MaxCalls: 2, Failures: 2})
		var all []*ratelimit.Reservation
		for range 5 {
			r, err := l.Reserve(context.Background(), "k", 1, 0)
			require.NoError(t, err)
			all = append(all, r)
		}
		time.Sleep(time.Minute)
		s.fail(takes(time.Hour))
		var wg sync.WaitGroup
		for _, r := range all[:2] {
			wg.Go(func() { assert.ErrorIs(t, r.Cancel(), ratelimit.ErrUnavailable) })
		}
		wg.Wait()
		require.Equal(t, failover.StateOpen, l.Stats().State)
		s.fail(nil)
		time.Sleep(1200*time.Millisecond + 1)
		require.False(t, take(t, l, 1).Degraded)
		for _, r := range all[2:] {
			require.NoError(t, r.Cancel())
		}
		time.Sleep(2 * time.Hour)
	})
}

// hanging is a primary whose calls hang for random times, with a model of the
// documented rules for turns and probes. Each caller comes at its own instant.
type hanging struct {
	t        *testing.T
	l        *failover.Limiter[string]
	calls    int
	timeout  time.Duration
	mu       sync.Mutex // guards the fields below
	rng      *rand.Rand
	bad      int // of 100 calls, how many hang
	begun    int
	inTurn   []time.Time // when the calls holding a turn began
	probing  bool
	shutOnce int // callers answered while the breaker was not closed
	freed    int // how often the breaker closed and hung calls lost their turns
}

func (h *hanging) enter(context.Context) error {
	closed := h.l.Stats().State == failover.StateClosed
	h.mu.Lock()
	h.begun++
	span := time.Duration(h.rng.Int64N(int64(h.timeout / 4)))
	if h.rng.IntN(100) < h.bad {
		span = h.timeout + 1 + time.Duration(h.rng.Int64N(int64(h.timeout)<<h.rng.IntN(10)))
	}
	began := time.Now()
	if closed {
		h.inTurn = append(h.inTurn, began)
	}
	h.mu.Unlock()
	time.Sleep(span)
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, b := range h.inTurn { // give the call's turn back, unless it was freed before
		if closed && b.Equal(began) {
			h.inTurn = append(h.inTurn[:i:i], h.inTurn[i+1:]...)
			break
		}
	}
	return nil
}

// changed is called for each change of state.
func (h *hanging) changed(_, to failover.State) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if to == failover.StateClosed && h.free(0) {
		h.freed++
	}
}

// free frees the turns if hung calls have held all of them for at least timeout + d. It reports whether it has freed them.
func (h *hanging) free(d time.Duration) bool {
	for _, b := range h.inTurn {
		if time.Since(b) < h.timeout+d {
			return false
		}
	}
	if len(h.inTurn) < h.calls {
		return false
	}
	h.inTurn = nil
	return true
}

func (h *hanging) one(at string) {
	state := h.l.Stats().State
	h.mu.Lock()
	probes := state == failover.StateHalfOpen && !h.probing
	h.probing = h.probing || probes
	if state == failover.StateClosed {
		h.free(max(time.Second, 2*h.timeout))
	}
	free := state == failover.StateClosed && len(h.inTurn) < h.calls
	if state != failover.StateClosed && !probes {
		h.shutOnce++
	}
	begun := h.begun
	h.mu.Unlock()
	began := time.Now()
	d := take(h.t, h.l, 1)
	took := time.Since(began)
	h.mu.Lock()
	defer h.mu.Unlock()
	if probes {
		h.probing = false
	}
	switch {
	case probes || free:
		assert.Greater(h.t, h.begun, begun, "%s: the primary is asked at once", at)
		assert.Equal(h.t, took < h.timeout, !d.Degraded, "%s: %v after %v", at, state, took)
		fallthrough
	case state == failover.StateClosed:
		assert.LessOrEqual(h.t, took, h.timeout, at)
	default:
		assert.True(h.t, d.Degraded && took == 0, "%s: answered after %v, %v", at, took, state)
	}
}

func TestWithCallsThatHangTheBreakerAndItsTurnsAgreeWithAModel(t *testing.T) {
	shut, freed := 0, 0
	n := *histories
	for seed := range uint64(n) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(testsize.Seed(seed), 37))
			h := &hanging{
				t: t, rng: rand.New(rand.NewPCG(testsize.Seed(seed), 38)),
				calls:   1 + rng.IntN(4),
				timeout: time.Duration(1+rng.IntN(400)) * time.Millisecond,
			}
			s := newStore(t, wide)
			s.fail(h.enter)
			h.l = over(t, s, failover.AllowAll[string](), failover.Options{
				MaxCalls: h.calls, Failures: 1 + rng.IntN(5), Timeout: h.timeout, OnStateChange: h.changed,
				OpenFor: time.Duration(1+rng.IntN(2000)) * time.Millisecond,
			})
			pause := int64(time.Duration(1+rng.IntN(100)) * time.Millisecond)
			var callers sync.WaitGroup
			for range 1000 {
				if rng.IntN(40) == 0 {
					h.mu.Lock()
					h.bad = []int{0, 0, 10, 60, 100}[rng.IntN(5)]
					h.mu.Unlock()
				}
				callers.Go(func() { h.one(time.Now().String()) })
				time.Sleep(time.Duration(1 + rng.Int64N(pause)))
				synctest.Wait()
			}
			callers.Wait()
			time.Sleep(time.Hour)
			synctest.Wait()
			shut, freed = shut+h.shutOnce, freed+h.freed
			require.False(t, t.Failed(), "seed %d", seed)
		})
	}
	require.NotZero(t, shut)
	require.NotZero(t, freed)
}

// slowAdjust is a store whose Adjust takes 30 ms.
type slowAdjust struct {
	*store
	adjusted atomic.Int64
}

func (s *slowAdjust) Adjust(context.Context, string, int) error {
	time.Sleep(30 * time.Millisecond)
	s.adjusted.Add(1)
	return nil
}

func TestAnAdjustUnderWayIsNotReportedAsUncalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slowAdjust{store: newStore(t, wide)}
		l := over(t, s, failover.AllowAll[string](), failover.Options{MaxCalls: 1})
		s.fail(takes(40 * time.Millisecond))
		var wg sync.WaitGroup
		wg.Go(func() { take(t, l, 1) })
		synctest.Wait()
		err := l.Adjust(context.Background(), "k", 5)
		require.ErrorIs(t, err, ratelimit.ErrUnavailable)
		require.NotContains(t, err.Error(), "was not called")
		wg.Wait()
		time.Sleep(time.Second)
		require.EqualValues(t, 1, s.adjusted.Load())
	})
}

// Calls hang for ever. They lose their turns once the store works again. They can hold all
// turns if they are fewer than Failures, or if the breaker was forced closed when they began.
func TestHungCallsThatHoldAllTurnsLoseThem(t *testing.T) {
	for _, row := range []struct {
		calls  int
		forced bool
	}{{3, false}, {3, true}, {6, true}} {
		synctest.Test(t, func(t *testing.T) {
			s := newStore(t, wide)
			l := over(t, s, failover.AllowAll[string](), failover.Options{MaxCalls: row.calls})
			if row.forced {
				l.Force(failover.StateClosed)
			}
			s.fail(takes(24 * time.Hour))
			for range row.calls {
				take(t, l, 1)
			}
			s.fail(nil)
			if row.forced {
				l.Force(failover.StateHalfOpen)
			}
			time.Sleep(900 * time.Millisecond)
			require.True(t, take(t, l, 1).Degraded, "they may still end")
			time.Sleep(100 * time.Millisecond)
			for range 100 {
				require.False(t, take(t, l, 1).Degraded, "%+v", row)
			}
			require.Equal(t, failover.StateClosed, l.Stats().State)
			time.Sleep(48 * time.Hour)
		})
	}
}

// late is a store whose reservations are settled too late. The error comes from the store's own client.
type late struct{ *store }

func (s late) Reserve(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	r, err := s.store.Reserve(ctx, key, cost, maxDelay)
	return ratelimit.NewReservation(r.Decision, func(int) error { return fmt.Errorf("read: %w", context.DeadlineExceeded) }), err
}

func TestWithoutATimeoutASettlementKeepsThePrimarysError(t *testing.T) {
	l := over(t, late{newStore(t, wide)}, failover.AllowAll[string](), failover.Options{Timeout: -1})
	r, err := l.Reserve(t.Context(), "k", 1, 0)
	require.NoError(t, err)
	err = r.Cancel()
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, ratelimit.ErrUnavailable)
}
