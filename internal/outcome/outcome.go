// Package outcome classifies decisions' results, in the metrics' terms.
package outcome

import "github.com/weir-go/ratelimit"

// Outcome is the class of a decision's result.
type Outcome uint8

// The outcomes. The zero Outcome is Allowed.
const (
	Allowed     Outcome = iota
	Denied              // not now; also a Wait that gave up because its turn would come too late
	Exceeds             // the cost can never pass: [ratelimit.ErrExceedsLimit], [ratelimit.ErrBlocked]
	Unavailable         // the engine could not decide: [ratelimit.ErrUnavailable]
	Rejected            // the client's request has no valid key
	Failed              // another error: the call's, or the end of the caller's context

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

// Of returns a decision's outcome, given its results d and err.
//
// The end of the caller's context is a denial only if a limiter has denied: a Wait was waiting for its turn, or its turn
// would come after the deadline. If a Take exceeded the caller's own deadline, it has no result, and so it is Failed. If
// a store exceeded its own timeout, it is Unavailable, although such an error may also wrap [context.DeadlineExceeded].
func Of(d ratelimit.Decision, err error) Outcome {
	switch cause := CauseOf(err); {
	case cause == CauseNone && d.Allowed:
		return Allowed
	case cause == CauseNone, cause == CauseLimited, cause == CauseEnded && !d.Allowed && d.RetryAfter > 0:
		return Denied
	case cause == CauseExceeds, cause == CauseBlocked:
		return Exceeds
	case cause == CauseUnavailable:
		return Unavailable
	case cause == CauseKey:
		return Rejected
	}
	return Failed
}

// Denies reports whether a limit has denied the request, now or for ever.
func (o Outcome) Denies() bool { return o == Denied || o == Exceeds }
