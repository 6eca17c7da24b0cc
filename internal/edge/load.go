package edge

import (
	"context"
	"errors"

	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/refused"
	"github.com/weir-go/ratelimit/internal/rpcstatus"
)

// OutcomeOfCall is how a call has ended for an adaptive limit of its server. The context is the call's,
// and the code 0 if it went well.
func OutcomeOfCall(ctx context.Context, code rpcstatus.Code, streaming bool) inflight.Outcome {
	switch err := ctx.Err(); {
	case refused.Is(ctx):
		return inflight.Ignored
	case errors.Is(err, context.DeadlineExceeded):
		return inflight.Dropped
	case (err != nil || code == rpcstatus.Canceled) && streaming:
		return inflight.Ignored // it has lasted for as long as the client liked
	case err != nil, code == rpcstatus.Canceled:
		return inflight.Cancelled
	}
	return OutcomeOfCode(code, streaming)
}

// OutcomeOfCode is what a status code says about load.
func OutcomeOfCode(code rpcstatus.Code, streaming bool) inflight.Outcome {
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
