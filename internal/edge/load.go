package edge

import (
	"context"

	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/outcome"
	"github.com/weir-go/ratelimit/internal/rpcstatus"
)

// OutcomeOfCall returns a call's outcome, given the server's code. A success has the code 0. ctx is the call's context.
func OutcomeOfCall(ctx context.Context, code rpcstatus.Code, streaming bool) inflight.Outcome {
	if outcome.WasRefused(ctx) {
		return inflight.Ignored
	}
	return OutcomeOfCode(ctx, code, streaming)
}

// OutcomeOfCode returns a call's outcome, given the code with which it ended. A deadline is the caller's
// choice. If it is shorter than calls take, its end shows no load, and many such calls are no reason to serve
// other callers less. If a call has a deadline and ends with DeadlineExceeded, the deadline counts as its
// reason, even before its time. A server on the way may have shortened the deadline, or its clock may be ahead.
func OutcomeOfCode(ctx context.Context, code rpcstatus.Code, streaming bool) inflight.Outcome {
	_, deadline := ctx.Deadline()
	switch gone := ctx.Err() != nil || code == rpcstatus.Canceled || deadline && code == rpcstatus.DeadlineExceeded; {
	case gone && streaming:
		return inflight.Ignored // the caller chooses how long the stream lasts
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
