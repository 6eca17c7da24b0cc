package httplimit

import (
	"context"
	"sync"

	"github.com/weir-go/ratelimit"
)

type costKey struct{}

// declared is the cost that a context declares, and what a request has spent for it.
type declared struct {
	cost int

	mu    sync.Mutex
	spent *ratelimit.Reservation // of the request that was sent last
}

// WithCost returns a context for one request of a client that declares what the request
// will cost, or an estimate, such as the tokens of a call to a language model. By it a
// [Transport] charges its limiter, and keeps within the tokens that the server leaves. A cost
// below 0 is an error of the limiter's. When the real cost is known, settle it with
// [SettleCost].
func WithCost(ctx context.Context, cost int) context.Context {
	return context.WithValue(ctx, costKey{}, &declared{cost: cost})
}

// SettleCost says what the request of a context that [WithCost] has made has really cost: the
// usage in its answer, for example. What it has charged the limiter of the [Transport] is
// corrected, as [ratelimit.Reservation.Settle] has it. Of requests that were sent again, the
// last one is settled. It does nothing if none was sent. The error is that of Settle.
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

// declaredCost returns the cost that a context declares, else 1.
func declaredCost(ctx context.Context) int {
	if d, ok := ctx.Value(costKey{}).(*declared); ok {
		return d.cost
	}
	return 1
}

// declare takes note of what a request of the context has spent.
func declare(ctx context.Context, spent *ratelimit.Reservation) {
	if d, ok := ctx.Value(costKey{}).(*declared); ok {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.spent = spent
	}
}
