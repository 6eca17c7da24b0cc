package grpclimit

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/undecided"
)

// unsentError is the error of a call that was not sent. It has a status, as all errors of
// gRPC have, and wraps the reason.
type unsentError struct {
	status *status.Status
	reason error
}

func (e *unsentError) Error() string              { return e.status.Err().Error() }
func (e *unsentError) Unwrap() error              { return e.reason }
func (e *unsentError) GRPCStatus() *status.Status { return e.status }

// unsent gives a reason the status that gRPC has for it.
func unsent(call *ClientCall, reason error) error {
	return &unsentError{status.New(unsentCode(call.Context(), reason), reason.Error()), reason}
}

func unsentCode(ctx context.Context, reason error) codes.Code {
	var own interface{ GRPCStatus() *status.Status }
	switch {
	case errors.As(reason, &own):
		return own.GRPCStatus().Code()
	case errors.Is(reason, ratelimit.ErrLimited), errors.Is(reason, ratelimit.ErrExceedsLimit):
		return codes.ResourceExhausted
	}
	switch undecided.Why(ctx, reason) {
	case undecided.Gone:
		return status.FromContextError(ctx.Err()).Code()
	case undecided.Key:
		return codes.InvalidArgument
	case undecided.Cost, undecided.Misconfigured:
		return codes.Internal
	case undecided.Other:
		if errors.Is(reason, context.DeadlineExceeded) {
			return codes.DeadlineExceeded
		}
	}
	return codes.Unavailable
}
