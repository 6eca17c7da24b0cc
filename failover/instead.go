package failover

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/weir-go/ratelimit"
)

// AllowAll returns a stand-in that allows each cost.
func AllowAll[K any]() ratelimit.Reserver[K] {
	return fixed[K]{ratelimit.Decision{Allowed: true, Limit: ratelimit.Unlimited(), Remaining: math.MaxInt}}
}

// DenyAll returns a stand-in that denies each cost above 0.
func DenyAll[K any]() ratelimit.Reserver[K] {
	return fixed[K]{ratelimit.Decision{RetryAfter: time.Second, NextAfter: time.Second}}
}

// fixed is a stand-in with the same decision for each key.
type fixed[K any] struct{ decision ratelimit.Decision }

func (f fixed[K]) Allow(key K, cost int) bool {
	d, err := f.Take(context.Background(), key, cost)
	return err == nil && d.Allowed
}

func (f fixed[K]) Take(_ context.Context, _ K, cost int) (ratelimit.Decision, error) {
	d := f.decision
	switch {
	case cost < 0:
		return ratelimit.Decision{}, fmt.Errorf("failover: %w: %d", ratelimit.ErrNegativeCost, cost)
	case cost == 0:
		d.Allowed, d.RetryAfter = true, 0
	}
	return d, nil
}

func (f fixed[K]) Reserve(ctx context.Context, key K, cost int, _ time.Duration) (*ratelimit.Reservation, error) {
	d, err := f.Take(ctx, key, cost)
	return ratelimit.NewReservation(d, nil), err
}

// Peek returns what Take returns. Adjust and Reset change nothing.
func (f fixed[K]) Peek(ctx context.Context, key K, cost int) (ratelimit.Decision, error) {
	return f.Take(ctx, key, cost)
}

func (f fixed[K]) Adjust(context.Context, K, int) error { return nil }

func (f fixed[K]) Reset(context.Context, K) error { return nil }
