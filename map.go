package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weir-go/ratelimit/internal/nilcheck"
)

// Map returns a limiter of requests of type R that charges l, of whatever kind, for
// the key that the function finds in a request. The function's error denies the
// request, charges nothing and is returned by Take as it is; [SkipLayer] lets
// the request pass, by [Unlimited]. If l is a [Reserver], so is the result: see
// [MapReserver]. If l is a [LimitLister], so is the result. If l
// or key is nil, each call of the result fails with an error that says so.
func Map[R, K any](l Limiter[K], key func(R) (K, error)) Limiter[R] {
	m := newMapped("Map", l, key)
	if r, ok := l.(Reserver[K]); ok {
		return &mappedReserver[R, K]{m, r}
	}
	return &m
}

// MapReserver is [Map] for a [Reserver], and returns one: for [Chain] and [Wait], say,
// which need it.
func MapReserver[R, K any](l Reserver[K], key func(R) (K, error)) Reserver[R] {
	return &mappedReserver[R, K]{newMapped("MapReserver", l, key), l}
}

// newMapped returns what maker is to return. It has no error to return, and a limiter that panics
// at its first request is found too late, so the result of a nil argument denies with an error.
func newMapped[R, K any](maker string, l Limiter[K], key func(R) (K, error)) mapped[R, K] {
	var missing string
	switch {
	case nilcheck.IsNil(l):
		missing = "limiter"
	case key == nil:
		missing = "key function"
	default:
		return mapped[R, K]{l, key}
	}
	err := fmt.Errorf("ratelimit: %s was given no %s", maker, missing)
	return mapped[R, K]{key: func(R) (k K, _ error) { return k, err }}
}

type mapped[R, K any] struct {
	Limiter Limiter[K]
	key     func(R) (K, error)
}

type mappedReserver[R, K any] struct {
	mapped[R, K]
	reserver Reserver[K]
}

// DropsRequests reports that no request is used any more once a call has returned: the limiter
// gets its key, and is in memory. Another may go on when its caller has left, as those of package
// failover do, with a key that holds the request. Packages of this repository ask it.
func (m *mapped[R, K]) DropsRequests() bool {
	_, ok := m.Limiter.(interface{ inMemory() })
	return ok
}

func (*Keyed[K]) inMemory() {}

// skipped is the decision on a request that the limiter does not apply to.
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
	return m.Limiter.Allow(key, cost)
}

func (m *mapped[R, K]) Take(ctx context.Context, r R, cost int) (Decision, error) {
	key, err := m.key(r)
	switch {
	case errors.Is(err, SkipLayer):
		return skipped(cost)
	case err != nil:
		return Decision{}, err
	}
	return m.Limiter.Take(ctx, key, cost)
}

// Limits returns the limits of the limiter behind, if it tells them.
func (m *mapped[R, K]) Limits() []Limit {
	if l, ok := m.Limiter.(LimitLister); ok {
		return l.Limits()
	}
	return nil
}

// Peek is the package's Peek on the limiter behind.
func (m *mapped[R, K]) Peek(ctx context.Context, r R, cost int) (Decision, error) {
	key, err := m.key(r)
	switch {
	case errors.Is(err, SkipLayer):
		return skipped(cost)
	case err != nil:
		return Decision{}, err
	}
	return Peek(ctx, m.Limiter, key, cost)
}

// Adjust is the package's Adjust on the limiter behind.
func (m *mapped[R, K]) Adjust(ctx context.Context, r R, delta int) error {
	return m.unlessSkipped(r, func(key K) error { return Adjust(ctx, m.Limiter, key, delta) })
}

// Reset is the package's Reset on the limiter behind.
func (m *mapped[R, K]) Reset(ctx context.Context, r R) error {
	return m.unlessSkipped(r, func(key K) error { return Reset(ctx, m.Limiter, key) })
}

// unlessSkipped does something for the key of a request, if the limiter applies to it.
func (m *mapped[R, K]) unlessSkipped(r R, do func(key K) error) error {
	key, err := m.key(r)
	switch {
	case errors.Is(err, SkipLayer):
		return nil
	case err != nil:
		return err
	}
	return do(key)
}

// ReplacesCost reports what the limiter behind does.
func (m *mapped[R, K]) ReplacesCost() bool { return replacesCost(m.Limiter) }

// Wait is the package's Wait on the limiter behind.
func (m *mappedReserver[R, K]) Wait(ctx context.Context, r R, cost int) error {
	key, err := m.key(r)
	switch {
	case errors.Is(err, SkipLayer):
		_, err = skipped(cost)
		return err
	case err != nil:
		return err
	}
	return Wait(ctx, m.reserver, key, cost)
}

func (m *mappedReserver[R, K]) Reserve(ctx context.Context, r R, cost int, maxDelay time.Duration) (*Reservation, error) {
	key, err := m.key(r)
	switch {
	case errors.Is(err, SkipLayer):
		d, err := skipped(cost)
		return NewReservation(d, nil), err
	case err != nil:
		return NewReservation(Decision{}, nil), err
	}
	return m.reserver.Reserve(ctx, key, cost, maxDelay)
}
