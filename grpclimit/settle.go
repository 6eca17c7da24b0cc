package grpclimit

import (
	"errors"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-go/ratelimit/internal/edge"
)

// Response is what a handler has answered, for [Options].SettleResponse.
type Response struct {
	// Code is the status code by which the call is judged: see [Options].Settle.
	Code codes.Code
	// Message is the response message of a unary call, nil if there is none, and of a
	// stream the last message that was sent.
	Message any
	// Sent is how many messages the handler has sent.
	Sent int
}

// ChargeOnly is for [Options.Settle]: only calls that end with one of the codes are
// charged, all others are given back. ChargeOnly(codes.Unauthenticated) counts failed
// logins.
func ChargeOnly(charged ...codes.Code) func(c *Call, code codes.Code, cost int) int {
	return func(_ *Call, code codes.Code, cost int) int {
		if slices.Contains(charged, code) {
			return cost
		}
		return 0
	}
}

// RefundServerErrors is for [Options.Settle]: a call that ends with Unavailable, Internal or
// DataLoss is given back, since the client is not to blame.
//
// Codes that a client can provoke are charged: otherwise it could have work done for
// free. A client cancels its call, and sets its deadline, which may be a millisecond. So
// Canceled and DeadlineExceeded are charged, and so is every code once the call's context has
// ended. It closes its connection: a message that could not be sent for that reason makes a
// server error an InvalidArgument, as [Options.Settle] says. That is charged also if it was
// the server that closed the connection: the two cannot be told apart.
//
// Unknown is the code of a plain Go error, also of one that only says what is wrong with the
// request. So it is charged as well. Handlers should answer what is wrong with a request with
// InvalidArgument, and a timeout of their own with Unavailable.
func RefundServerErrors(c *Call, code codes.Code, cost int) int {
	switch code {
	case codes.Unavailable, codes.Internal, codes.DataLoss:
		if c.Context().Err() == nil {
			return 0
		}
	}
	return cost
}

// settled calls next, and settles the charge by the response.
func (i *Interceptor) settled(e *event, charge *edge.Charge[*Call], s *watchedStream, next func() (any, error)) (resp any, err error) {
	code := codes.Internal // of a handler that does not return
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
		return i.opts.SettleResponse(e.Request, got, cost)
	})
	resp, err = next()
	code = codeOf(err)
	return resp, err
}

// codeOf returns the code that a server sends for a handler's error.
func codeOf(err error) codes.Code {
	s, ok := status.FromError(err)
	if !ok {
		s = status.FromContextError(err)
	}
	return s.Code()
}

// serverFault reports whether a code says that the server has failed.
func serverFault(code codes.Code) bool {
	switch code {
	case codes.Unknown, codes.Internal, codes.Unavailable, codes.DataLoss:
		return true
	}
	return false
}

// causedByClient reports whether an Interceptor inside this one has refused the call
// because of what the client did.
func causedByClient(err error) bool {
	var r *refusal
	return errors.As(err, &r) && r.byClient
}
