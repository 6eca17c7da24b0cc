package grpclimit

import (
	"context"
	"errors"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-go/ratelimit/internal/edge"
)

// Response is a handler's response, for [Options].SettleResponse.
type Response struct {
	// Code is the code for [Options].Settle.
	Code codes.Code
	// Message is a unary call's response, or a stream's last message. It may be nil.
	Message any
	// Sent counts the sent messages.
	Sent int
}

// ChargeOnly returns a function for [Options].Settle that charges only calls with these codes. For example,
// ChargeOnly(codes.Unauthenticated) counts failed logins. A call is also charged if its client left or its deadline passed
// before the answer: it could have ended with any code. If a stream's client leaves after a message, the stream counts as OK.
func ChargeOnly(charged ...codes.Code) func(c *Call, code codes.Code, cost int) int {
	return func(c *Call, code codes.Code, cost int) int {
		if code != codes.OK && !slices.Contains(charged, code) && c != nil && c.Context().Err() != nil {
			if !c.answered {
				return cost
			}
			code = codes.OK
		}
		if slices.Contains(charged, code) {
			return cost
		}
		return 0
	}
}

// RefundServerErrors is a function for [Options].Settle. It does not charge a call that ends with
// Unavailable, Internal or DataLoss, unless the call's context has ended. Nor does it charge a call
// refused by an inner interceptor. It charges Unknown, the code of any Go error without a status.
func RefundServerErrors(c *Call, code codes.Code, cost int) int {
	if c.refused {
		return 0
	}
	switch code {
	case codes.Unavailable, codes.Internal, codes.DataLoss:
		if c.Context().Err() == nil {
			return 0
		}
	}
	return cost
}

// settled calls next, and settles the charge according to the response.
func (i *Interceptor) settled(
	ctx context.Context, e *event, charge *edge.Charge[*Call], s *watchedStream, next func(context.Context) (any, error),
) (resp any, err error) {
	code := codes.Internal // the code after a panic or an exit
	defer charge.Settle(func(cost int) int {
		got := Response{Code: s.blame(code, err), Message: resp}
		switch {
		case s != nil:
			got.Sent, got.Message = s.sent()
		case err != nil:
			got.Message = nil
		case resp != nil:
			got.Sent = 1
		}
		e.Request.answered, e.Request.refused = got.Sent > 0, refusedInside(err)
		return i.opts.SettleResponse(e.Request, got, cost)
	})
	resp, err = next(ctx)
	code = codeOf(err)
	return resp, err
}

// codeOf returns gRPC's code for a handler's error.
func codeOf(err error) codes.Code {
	s, ok := status.FromError(err)
	if !ok {
		s = status.FromContextError(err)
	}
	return s.Code()
}

// serverFault reports whether a code stands for a failure of the server.
func serverFault(code codes.Code) bool {
	switch code {
	case codes.Unknown, codes.Internal, codes.Unavailable, codes.DataLoss:
		return true
	}
	return false
}

// causedByClient reports whether an inner Interceptor has refused the call because of the client.
func causedByClient(err error) bool {
	var r *refusal
	return errors.As(err, &r) && r.byClient
}
