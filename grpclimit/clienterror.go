package grpclimit

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-go/ratelimit/internal/outcome"
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
func unsent(call *Call, reason error) error {
	if st := ownStatus(reason); st != nil {
		return &unsentError{st, reason}
	}
	return &unsentError{status.New(unsentCode(call.Context(), reason), reason.Error()), reason}
}

// ownStatus returns the status in a reason, with its details and the reason's text. It returns nil if there is none, or if its code is OK,
// which is no error's.
func ownStatus(reason error) *status.Status {
	var own interface{ GRPCStatus() *status.Status }
	if !errors.As(reason, &own) {
		return nil
	}
	st := own.GRPCStatus()
	if st.Code() == codes.OK { // also of a nil status
		return nil
	}
	p := st.Proto() // a copy
	// The status's text within the reason's has the code, which Error adds again.
	p.Message = strings.Replace(reason.Error(), st.Err().Error(), st.Message(), 1)
	return status.FromProto(p)
}

// unsentCode returns the code of a reason that brings no status.
func unsentCode(ctx context.Context, reason error) codes.Code {
	switch outcome.CauseFor(ctx, reason) {
	case outcome.CauseLimited, outcome.CauseExceeds, outcome.CauseBlocked:
		return codes.ResourceExhausted
	case outcome.CauseGone:
		return status.FromContextError(ctx.Err()).Code()
	case outcome.CauseKey:
		return codes.InvalidArgument
	case outcome.CauseCost, outcome.CauseMisconfigured:
		return codes.Internal
	case outcome.CauseEnded:
		if errors.Is(reason, context.DeadlineExceeded) {
			return codes.DeadlineExceeded
		}
	}
	return codes.Unavailable
}
