package lease_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/lease"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// server is a remote limiter in memory, on a clock set by hand. It records its calls, and can be made to fail.
type server struct {
	*ratelimit.Keyed[string]
	clock *ratelimittest.Clock

	mu        sync.Mutex
	requested []int                           // costs of Reserve, in order
	taken     []int                           // costs of Take
	settled   []int                           // actual costs of Settle
	charged   int                             // units reserved and not given back
	before    func(ctx context.Context) error // called before each call, unless nil
}

func newServer(t testing.TB, limit ratelimit.Limit) *server {
	clock := new(ratelimittest.Clock)
	l, err := ratelimit.New(limit, &ratelimit.Options[string]{Clock: clock})
	require.NoError(t, err)
	return &server{Keyed: l, clock: clock}
}

// fail makes each call run f first and return its error.
func (s *server) fail(f func(ctx context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = f
}

func (s *server) enter(ctx context.Context, note *[]int, n int) error {
	s.mu.Lock()
	*note = append(*note, n)
	f := s.before
	s.mu.Unlock()
	if f != nil {
		return f(ctx)
	}
	return nil
}

func (s *server) Take(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	if err := s.enter(ctx, &s.taken, cost); err != nil {
		return ratelimit.Decision{}, err
	}
	d, err := s.Keyed.Take(ctx, key, cost)
	if d.Allowed {
		s.count(cost)
	}
	return d, err
}

func (s *server) Wait(ctx context.Context, key string, cost int) error {
	if err := s.enter(ctx, &s.taken, cost); err != nil {
		return err
	}
	err := s.Keyed.Wait(ctx, key, cost)
	if err == nil {
		s.count(cost)
	}
	return err
}

func (s *server) count(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.charged += n
}

func (s *server) Reserve(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	if err := s.enter(ctx, &s.requested, cost); err != nil {
		return nil, err
	}
	r, err := s.Keyed.Reserve(ctx, key, cost, maxDelay)
	if r.Allowed {
		s.count(cost)
	}
	return ratelimit.NewReservation(r.Decision, func(actual int) error {
		if err := s.enter(context.Background(), &s.settled, actual); err != nil {
			return err
		}
		s.count(actual - cost)
		return r.Settle(actual)
	}), err
}

// received returns the recorded costs, and clears them.
func (s *server) received(note *[]int) []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	got := slices.Clone(*note)
	*note = nil
	return got
}

func (s *server) total() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.charged
}

// leased returns a limiter on the server, with the server's clock.
func leased(t testing.TB, s *server, o lease.Options[string]) *lease.Limiter[string] {
	if o.Clock == nil {
		o.Clock = s.clock
	}
	l, err := lease.New[string](s, &o)
	require.NoError(t, err)
	return l
}

func take(t testing.TB, l ratelimit.Limiter[string], cost int) ratelimit.Decision {
	t.Helper()
	d, err := l.Take(context.Background(), "k", cost)
	require.NoError(t, err)
	return d
}

func reserve(t testing.TB, l ratelimit.Reserver[string], cost int) *ratelimit.Reservation {
	t.Helper()
	r, err := l.Reserve(context.Background(), "k", cost, 0)
	require.NoError(t, err)
	return r
}

type (
	decision    = ratelimit.Decision
	reservation = ratelimit.Reservation
)
