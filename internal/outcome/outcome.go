// Package outcome classifies the results of decisions, in the terms of the metrics.
package outcome

import (
	"context"
	"errors"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/keyfunc"
)

// Outcome is the class of a decision's result.
type Outcome uint8

// The outcomes. The zero Outcome is Allowed.
const (
	Allowed     Outcome = iota
	Denied              // not now; also a Wait that gave up because its turn would come too late
	Exceeds             // the cost can never pass: [ratelimit.ErrExceedsLimit], [ratelimit.ErrBlocked]
	Unavailable         // the engine could not decide: [ratelimit.ErrUnavailable]
	Rejected            // the client's request has no valid key: [keyfunc.ErrNoKey], [keyfunc.ErrMalformedKey]
	Failed              // another error: of the call, or the end of the caller's context

	Count = iota // the number of outcomes
)

var names = [Count]string{"allowed", "denied", "exceeds", "unavailable", "rejected", "error"}

// String returns "allowed", "denied", "exceeds", "unavailable", "rejected" or "error".
func (o Outcome) String() string {
	if o >= Count {
		return "error"
	}
	return names[o]
}

// Of returns the outcome of a decision with the result d and err.
//
// The end of the caller's context is a denial only if a limiter has denied: a Wait whose turn would
// come after the deadline, or that was waiting for its turn. A Take that exceeded the caller's own
// deadline has no result, and so it is Failed. A store that exceeded its own timeout
// is Unavailable, although such an error may also wrap [context.DeadlineExceeded].
func Of(d ratelimit.Decision, err error) Outcome {
	switch {
	case err == nil && d.Allowed:
		return Allowed
	case err == nil:
		return Denied
	case errors.Is(err, keyfunc.ErrMisconfigured): // the server's fault, although it is also an ErrNoKey
		return Failed
	case errors.Is(err, keyfunc.ErrNoKey), errors.Is(err, keyfunc.ErrMalformedKey), errors.Is(err, ratelimit.ErrInvalidKey):
		return Rejected
	case errors.Is(err, ratelimit.ErrExceedsLimit):
		return Exceeds
	case errors.Is(err, ratelimit.ErrUnavailable):
		return Unavailable
	case errors.Is(err, ratelimit.ErrLimited):
		return Denied
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		if !d.Allowed && d.RetryAfter > 0 {
			return Denied
		}
	}
	return Failed
}
