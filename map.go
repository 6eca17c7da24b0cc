package ratelimit

import (
	"context"
	"errors"
	"time"

	"github.com/weir-go/ratelimit/internal/optional"
)

// Map returns a limiter for requests of type R. It charges l for the function's key. If the function
// returns an error, the request is denied, nothing is charged, and the error is returned as it is.
// The error [SkipLayer] lets the request pass, by [Unlimited]. If l or key is nil, each call fails.
//
// The result has all optional methods, from [Describer] to [Resetter], and answers as l
// does. Where l has no Peek, Adjust or Reset, the error wraps [errors.ErrUnsupported].
func Map[R, K any](l Reserver[K], key func(R) (K, error)) Reserver[R] {
	// Map has no error to return, and a limiter must not panic at its first request.
	switch {
	case optional.IsNil(l):
		l, key = nil, fails[R, K](optional.Nil("ratelimit: Map: l"))
	case key == nil:
		key = fails[R, K](optional.Nil("ratelimit: Map: key"))
	}
	return &mapped[R, K]{l, key}
}

// fails returns a key function that always fails.
func fails[R, K any](err error) func(R) (K, error) {
	return func(R) (k K, _ error) { return k, err }
}

type mapped[R, K any] struct {
	l   Reserver[K]
	key func(R) (K, error)
}

// DropsRequests reports whether the limiter keeps no request after a call has returned. It keeps none if the
// inner limiter gets only the key, and is in memory. Other limiters may continue after their caller has left, for
// example package failover's, and their key may hold the request. Packages of this repository call DropsRequests.
func (m *mapped[R, K]) DropsRequests() bool {
	_, ok := m.l.(interface{ inMemory() })
	return ok
}

func (*Keyed[K]) inMemory() {}

// skipped is the decision if the limiter does not apply to the request.
func skipped(cost int) (Decision, error) {
	if cost < 0 {
		return Decision{}, negativeCostError(cost)
	}
	return Decision{Allowed: true, Limit: Unlimited(), Remaining: Unlimited().Capacity()}, nil
}

func (m *mapped[R, K]) Allow(r R, cost int) bool {
	key, err := m.key(r)
	if err != nil {
		return errors.Is(err, SkipLayer) && cost >= 0
	}
	return m.l.Allow(key, cost)
}

func (m *mapped[R, K]) Take(ctx context.Context, r R, cost int) (Decision, error) {
	key, err := m.key(r)
	switch {
	case errors.Is(err, SkipLayer):
		return skipped(cost)
	case err != nil:
		return Decision{}, err
	}
	return m.l.Take(ctx, key, cost)
}

func (m *mapped[R, K]) Reserve(ctx context.Context, r R, cost int, maxDelay time.Duration) (*Reservation, error) {
	key, err := m.key(r)
	switch {
	case errors.Is(err, SkipLayer):
		d, err := skipped(cost)
		return NewReservation(d, nil), err
	case err != nil:
		return NewReservation(Decision{}, nil), err
	}
	return m.l.Reserve(ctx, key, cost, maxDelay)
}

func (m *mapped[R, K]) Wait(ctx context.Context, r R, cost int) error {
	key, err := m.key(r)
	switch {
	case errors.Is(err, SkipLayer):
		_, err = skipped(cost)
		return err
	case err != nil:
		return err
	}
	return Wait(ctx, m.l, key, cost)
}

func (m *mapped[R, K]) Peek(ctx context.Context, r R, cost int) (Decision, error) {
	key, err := m.key(r)
	switch {
	case errors.Is(err, SkipLayer):
		return skipped(cost)
	case err != nil:
		return Decision{}, err
	}
	return Peek(ctx, Limiter[K](m.l), key, cost)
}

func (m *mapped[R, K]) Adjust(ctx context.Context, r R, delta int) error {
	key, err := m.key(r)
	if err != nil {
		return unlessSkipped(err)
	}
	return Adjust(ctx, Limiter[K](m.l), key, delta)
}

func (m *mapped[R, K]) Reset(ctx context.Context, r R) error {
	key, err := m.key(r)
	if err != nil {
		return unlessSkipped(err)
	}
	return Reset(ctx, Limiter[K](m.l), key)
}

// unlessSkipped returns a key function's error, or nil for SkipLayer.
func unlessSkipped(err error) error {
	if errors.Is(err, SkipLayer) {
		return nil
	}
	return err
}

func (m *mapped[R, K]) Describe() Description { return Describe(m.l) }
