package failover_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
)

// store is a primary in memory. Tests make it fail.
type store struct {
	*ratelimit.Keyed[string]
	calls  atomic.Int64
	repaid atomic.Int64 // units charged for outages

	mu     sync.Mutex
	before func(ctx context.Context) error // runs before each call, unless nil
	again  chan struct{}                   // closed when before changes
}

func newStore(t testing.TB, limit ratelimit.Limit) *store {
	return &store{Keyed: newLocal(t, limit), again: make(chan struct{})}
}

func newLocal(t testing.TB, limit ratelimit.Limit) *ratelimit.Keyed[string] {
	l, err := ratelimit.New[string](limit, nil)
	require.NoError(t, err)
	return l
}

// fail makes each call run f first and return f's error, including waiting calls.
func (s *store) fail(f func(ctx context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = f
	close(s.again)
	s.again = make(chan struct{})
}

func (s *store) enter(ctx context.Context) error {
	s.calls.Add(1)
	s.mu.Lock()
	f := s.before
	s.mu.Unlock()
	if f != nil {
		return f(ctx)
	}
	return nil
}

func (s *store) Take(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	if err := s.enter(ctx); err != nil {
		return ratelimit.Decision{}, err
	}
	return s.Keyed.Take(ctx, key, cost)
}

func (s *store) Reserve(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	r, err := s.Keyed.Reserve(ctx, key, cost, maxDelay)
	return ratelimit.NewReservation(r.Decision, func(actual int) error {
		if err := s.enter(context.Background()); err != nil {
			return err
		}
		return r.Settle(actual)
	}), err
}

func (s *store) Peek(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	if err := s.enter(ctx); err != nil {
		return ratelimit.Decision{}, err
	}
	return s.Keyed.Peek(ctx, key, cost)
}

// Wait gives up its place in line when fail is called.
func (s *store) Wait(ctx context.Context, key string, cost int) error {
	for {
		s.mu.Lock()
		again := s.again
		s.mu.Unlock()
		if err := s.enter(ctx); err != nil {
			return err
		}
		inner, stop := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			select {
			case <-again:
				stop()
			case <-inner.Done():
			}
		}()
		err := s.Keyed.Wait(inner, key, cost)
		stop()
		<-ended
		if err == nil || ctx.Err() != nil || !errors.Is(err, context.Canceled) {
			return err
		}
	}
}

func (s *store) Adjust(ctx context.Context, key string, delta int) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	s.repaid.Add(int64(delta))
	return s.Keyed.Adjust(ctx, key, delta)
}

// unadjusted is a store without Adjust. So the units passed by a stand-in cannot be charged to it.
type unadjusted struct{ ratelimit.Reserver[string] }

func (u unadjusted) Describe() ratelimit.Description { return ratelimit.Describe(u.Reserver) }

func (s *store) Allow(string, int) bool { panic("the primary's Allow hides errors") }

func over(t testing.TB, primary, instead ratelimit.Reserver[string], o failover.Options) *failover.Limiter[string] {
	if o.Logger == nil {
		o.Logger = silent
	}
	l, err := failover.New(primary, instead, &o)
	require.NoError(t, err)
	return l
}

func take(t testing.TB, l ratelimit.Limiter[string], cost int) ratelimit.Decision {
	t.Helper()
	d, err := l.Take(context.Background(), "k", cost)
	require.NoError(t, err)
	return d
}

func remaining(t testing.TB, l *ratelimit.Keyed[string]) int {
	t.Helper()
	d, err := l.Peek(context.Background(), "k", 1)
	require.NoError(t, err)
	return d.Remaining
}
