package edge

import (
	"context"

	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/outcome"
	"github.com/weir-go/ratelimit/internal/rpcstatus"
)

// OutcomeOfCall is the outcome of a call that a server has answered with a code, which is 0 for success. ctx is the call's.
func OutcomeOfCall(ctx context.Context, code rpcstatus.Code, streaming bool) inflight.Outcome {
	if outcome.WasRefused(ctx) {
		return inflight.Ignored
	}
	return OutcomeOfCode(ctx, code, streaming)
}

// OutcomeOfCode returns the outcome of a call that ended with a code. The caller has chosen the deadline of the call: if it is shorter than
// calls take, that is no evidence of load, and many such calls are no reason to serve other callers less. A call that has a deadline and
// ends with DeadlineExceeded counts as such before the deadline, too: a server on the way may have subtracted a margin from the deadline,
// or have an earlier clock.
func OutcomeOfCode(ctx context.Context, code rpcstatus.Code, streaming bool) inflight.Outcome {
	_, deadline := ctx.Deadline()
	switch gone := ctx.Err() != nil || code == rpcstatus.Canceled || deadline && code == rpcstatus.DeadlineExceeded; {
	case gone && streaming:
		return inflight.Ignored // the caller has chosen how long it lasts
	case gone:
		return inflight.Cancelled
	}
	switch code {
	case rpcstatus.DeadlineExceeded, rpcstatus.Unavailable, rpcstatus.ResourceExhausted:
		return inflight.Dropped
	case rpcstatus.Internal, rpcstatus.Unknown, rpcstatus.DataLoss:
		return inflight.Cancelled
	}
	if streaming {
		return inflight.Ignored
	}
	return inflight.Success
}
