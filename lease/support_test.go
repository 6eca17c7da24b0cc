package lease_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/chain"
	"github.com/weir-go/ratelimit/lease"
)

func TestAStackWithCostsOfItsOwnIsRefused(t *testing.T) {
	requests := ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerHour(20)), nil))
	same := func(k string) (string, error) { return k, nil }
	one := func(string) int { return 1 }
	plain := ratelimit.By(requests, same)
	stack := func(l ratelimit.Layer[string]) *ratelimit.Layered[string] {
		s, err := ratelimit.All(plain, l)
		require.NoError(t, err)
		return s
	}
	shadow := plain
	shadow.Shadow = true
	replacing := shadow
	replacing.Cost = one
	charging := stack(replacing)
	chain, err := chain.New[string](requests, charging)
	require.NoError(t, err)
	for name, remote := range map[string]ratelimit.Reserver[string]{
		"a stack":    charging,
		"in a chain": chain,
		"behind Map": ratelimit.Map(charging, same),
	} {
		_, err := lease.New(remote, &lease.Options[string]{MaxBatch: 10})
		require.ErrorContains(t, err, "lease: the remote limiter has layers with a cost of their own", name)
	}
	_, err = lease.New[string](stack(shadow), &lease.Options[string]{MaxBatch: 10})
	require.NoError(t, err)
}

func TestResetFreesACustomerWithOneCall(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, tight(100))
		l := leased(t, s, lease.Options[string]{MaxBatch: 50, DenyFor: time.Hour})
		for l.Allow("k", 1) {
			synctest.Wait()
		}
		require.False(t, take(t, l, 5).Allowed)
		require.NoError(t, ratelimit.Reset(context.Background(), ratelimit.Limiter[string](l), "k"))
		d := take(t, l, 5)
		require.True(t, d.Allowed)
		require.Equal(t, 95, d.Remaining)
	})
}

func TestResetForgetsHeldUnitsAndFetches(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, tight(1000))
		l := leased(t, s, lease.Options[string]{MaxBatch: 50})
		holding(t, l)
		r := reserve(t, l, 3)
		s.fail(func(context.Context) error { time.Sleep(time.Millisecond); return nil })
		for l.Stats().Held > 2 {
			require.True(t, l.Allow("k", 1))
		}
		go func() { _ = l.Allow("k", 1) }()
		time.Sleep(time.Nanosecond)
		require.NoError(t, l.Reset(context.Background(), "k"))
		s.fail(nil)
		time.Sleep(time.Second)
		synctest.Wait()
		require.NoError(t, r.Settle(1))
		require.NoError(t, l.Flush(context.Background()))
		require.Zero(t, l.Stats().Held)
		d, err := l.Peek(context.Background(), "k", 1)
		require.NoError(t, err)
		require.GreaterOrEqual(t, d.Remaining, 999, "at most the decision that was under way")
	})
}

func TestPeekCountsTheHeldUnits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, tight(100))
		l := leased(t, s, lease.Options[string]{MaxBatch: 40})
		held := holds(t, l, 10)
		leave(t, s, 3)
		before := s.total()
		for cost, allowed := range map[int]bool{0: true, 1: true, held: true, held + 3: true, held + 4: false} {
			d, err := ratelimit.Peek(context.Background(), ratelimit.Limiter[string](l), "k", cost)
			require.NoError(t, err)
			require.Equal(t, allowed, d.Allowed, "cost %d", cost)
			require.Equal(t, held+3, d.Remaining)
			require.Equal(t, allowed, d.RetryAfter == 0)
		}
		_, err := l.Peek(context.Background(), "k", 101)
		require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
		_, err = l.Peek(context.Background(), "k", -1)
		require.ErrorIs(t, err, ratelimit.ErrNegativeCost)
		require.Equal(t, before, s.total())
		require.Equal(t, held, l.Stats().Held)
	})
}

func TestAdjustIsKnownAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, tight(10))
		l := leased(t, s, lease.Options[string]{MaxBatch: 40, DenyFor: time.Hour})
		require.True(t, l.Allow("k", 10))
		require.False(t, l.Allow("k", 1))
		require.NoError(t, ratelimit.Adjust(context.Background(), ratelimit.Limiter[string](l), "k", -4))
		require.True(t, l.Allow("k", 4))
		require.NoError(t, l.Adjust(context.Background(), "k", -4))
		require.NoError(t, l.Adjust(context.Background(), "k", 3))
		require.False(t, l.Allow("k", 2))
		require.True(t, l.Allow("k", 1))
	})
}

func TestAMissingMethodOfTheRemoteLimiterIsUnsupported(t *testing.T) {
	l, err := lease.New[string](withoutLimits{struct{ *server }{newServer(t, plenty)}}, &lease.Options[string]{MaxBatch: 1})
	require.NoError(t, err)
	ctx := context.Background()
	_, err = l.Peek(ctx, "k", 1)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorIs(t, l.Adjust(ctx, "k", 1), errors.ErrUnsupported)
	require.ErrorIs(t, l.Reset(ctx, "k"), errors.ErrUnsupported)
}

func TestOnDecisionIsCalledForEachDecision(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newServer(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 20))
		var l *lease.Limiter[string]
		var events []ratelimit.Event[string]
		l = leased(t, s, lease.Options[string]{MaxBatch: 10, OnDecision: func(e ratelimit.Event[string]) {
			events = append(events, e)
			l.Stats() // this deadlocks if a lock is held
		}})
		expect := func(cost int, allowed, spent bool, err error) {
			t.Helper()
			require.Len(t, events, 1)
			e := events[0]
			events = nil
			require.Equal(t, "k", e.Key)
			require.Equal(t, cost, e.Cost)
			require.Equal(t, allowed, e.Decision.Allowed)
			require.Equal(t, spent, e.Spent)
			require.ErrorIs(t, e.Err, err)
		}
		for range 10 {
			require.True(t, l.Allow("k", 1))
			expect(1, true, true, nil)
			synctest.Wait()
		}
		take(t, l, 2)
		expect(2, true, true, nil)
		take(t, l, 0)
		expect(0, true, false, nil)
		take(t, l, 15)
		expect(15, false, false, nil)
		_, err := l.Take(context.Background(), "k", 21)
		expect(21, false, false, ratelimit.ErrExceedsLimit)
		require.Error(t, err)
		reserve(t, l, 1)
		expect(1, true, true, nil)
		require.NoError(t, l.Wait(context.Background(), "k", 7))
		expect(7, true, true, nil)
		require.NoError(t, l.Wait(context.Background(), "k", 2))
		expect(2, true, true, nil)
	})
}

// lateAnswers is a server that decides at once and answers late.
type lateAnswers struct {
	*server
	by time.Duration
}

func (s *lateAnswers) Reserve(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	r, err := s.server.Reserve(ctx, key, cost, maxDelay)
	time.Sleep(s.by)
	return r, err
}

// A batch may be charged before a reset and arrive after it. It is
// not held then, because the reset has already given its units back.
func TestABatchOfBeforeAResetIsNotHeld(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &lateAnswers{server: newServer(t, tight(10_000))}
		l, err := lease.New[string](s, &lease.Options[string]{MaxBatch: 50})
		require.NoError(t, err)
		for l.Stats().Held < 30 {
			require.True(t, l.Allow("k", 1))
			synctest.Wait()
		}
		s.by = time.Millisecond
		s.received(&s.requested)
		for len(s.requested) == 0 { // until a fetch ahead of need is under way
			require.True(t, l.Allow("k", 1))
			synctest.Wait()
		}
		require.NoError(t, l.Reset(context.Background(), "k"))
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		require.Zero(t, l.Stats().Held)
	})
}
