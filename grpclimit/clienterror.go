package grpclimit

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-go/ratelimit/internal/outcome"
)

// unsentError is an unsent call's error. It wraps the reason and has a status, as all errors of gRPC have.
type unsentError struct {
	status *status.Status
	reason error
}

func (e *unsentError) Error() string              { return e.status.Err().Error() }
func (e *unsentError) Unwrap() error              { return e.reason }
func (e *unsentError) GRPCStatus() *status.Status { return e.status }

// unsent adds gRPC's status for a reason to the reason.
func unsent(call *Call, reason error) error {
	if st := ownStatus(reason); st != nil {
		return &unsentError{st, reason}
	}
	return &unsentError{status.New(unsentCode(call.Context(), reason), reason.Error()), reason}
}

// ownStatus returns a reason's wrapped status, with its details and the reason's
// text. It returns nil if there is none, or if its code is OK: OK is not an error.
func ownStatus(reason error) *status.Status {
	var own interface{ GRPCStatus() *status.Status }
	if !errors.As(reason, &own) {
		return nil
	}
	st := own.GRPCStatus()
	if st.Code() == codes.OK { // a nil status has this code, too
		return nil
	}
	p := st.Proto() // a copy
	// Error adds the code again, so the text must not contain it.
	p.Message = strings.Replace(reason.Error(), st.Err().Error(), st.Message(), 1)
	return status.FromProto(p)
}

// unsentCode returns the code for a reason without a status.
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
