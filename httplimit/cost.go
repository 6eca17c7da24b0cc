package httplimit

import (
	"context"

	"github.com/weir-go/ratelimit/internal/pace"
)

// WithCost returns a context for one request of a client that declares what the request
// will cost, or an estimate, such as the tokens of a call to a language model. By it a
// [Transport] charges its limiter, and keeps within the tokens that the server leaves. A cost
// below 0 is an error of the limiter's. When the real cost is known, settle it with
// [SettleCost].
func WithCost(ctx context.Context, cost int) context.Context { return pace.WithCost(ctx, cost) }

// SettleCost says what the request of a context that [WithCost] has made has really cost: the
// usage in its answer, for example. What it has charged the limiter of the [Transport] is
// corrected, as [ratelimit.Reservation.Settle] has it. Of requests that were sent again, the
// last one is settled. It does nothing if none was sent. The error is that of Settle. It is
// safe for concurrent use.
func SettleCost(ctx context.Context, actual int) error { return pace.SettleCost(ctx, actual) }
