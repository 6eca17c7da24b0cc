package grpclimit

import (
	"context"

	"github.com/weir-go/ratelimit/internal/pace"
)

// WithCost returns a context for one call of a client that declares what the call will cost, or
// an estimate, such as the tokens of a call to a language model. By it a [Client] charges its
// limiter. A cost below 0 is an error of the limiter's. When the real cost is known, settle it
// with [SettleCost]. It is [httplimit.WithCost]: either will do.
func WithCost(ctx context.Context, cost int) context.Context { return pace.WithCost(ctx, cost) }

// SettleCost says what the call of a context that [WithCost] has made has really cost: the usage
// in its answer, for example. What it has charged the limiter of the [Client] is corrected, as
// [ratelimit.Reservation.Settle] has it. Of calls that were sent again, the last one is settled.
// It does nothing if none was sent. The error is that of Settle. It is safe for concurrent use.
func SettleCost(ctx context.Context, actual int) error { return pace.SettleCost(ctx, actual) }
