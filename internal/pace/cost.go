package pace

import (
	"context"
	"sync"

	"github.com/weir-go/ratelimit"
)

type costKey struct{}

// declared is a context's declared cost, with its last request's reservation.
type declared struct {
	cost int

	mu    sync.Mutex
	spent *ratelimit.Reservation // the last sent request's reservation
}

// WithCost returns a context that declares one request's cost.
func WithCost(ctx context.Context, cost int) context.Context {
	return context.WithValue(ctx, costKey{}, &declared{cost: cost})
}

// DeclaredCost returns a context's declared cost. It defaults to 1.
func DeclaredCost(ctx context.Context) int {
	if d, ok := ctx.Value(costKey{}).(*declared); ok {
		return d.cost
	}
	return 1
}

// SettleCost replaces the declared cost of the context's last request by the actual cost. Without a request it does nothing.
func SettleCost(ctx context.Context, actual int) error {
	d, ok := ctx.Value(costKey{}).(*declared)
	if !ok {
		return nil
	}
	d.mu.Lock()
	spent := d.spent
	d.mu.Unlock()
	return spent.Settle(actual)
}

// declare records a request's reservation in its context.
func declare(ctx context.Context, spent *ratelimit.Reservation) {
	if d, ok := ctx.Value(costKey{}).(*declared); ok {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.spent = spent
	}
}
