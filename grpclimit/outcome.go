package grpclimit

import (
	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/internal/undecided"
)

// Outcome is what the interceptors do with a call or message; in shadow mode, what they
// would have done. It is httplimit's type, so that metrics for both are alike. The zero
// Outcome does not occur.
type Outcome = httplimit.Outcome

const (
	// OutcomeSkipped is left out by [Options.Skip].
	OutcomeSkipped = httplimit.OutcomeSkipped
	// OutcomeAllowed is within the limits. The client may leave while the call is held.
	OutcomeAllowed = httplimit.OutcomeAllowed
	// OutcomeDenied is denied for now, or would be delayed beyond its deadline.
	OutcomeDenied = httplimit.OutcomeDenied
	// OutcomeExceeds costs more than can ever pass.
	OutcomeExceeds = httplimit.OutcomeExceeds
	// OutcomeFailed could not be decided, and is refused.
	OutcomeFailed = httplimit.OutcomeFailed
	// OutcomeFailedOpen could not be decided, and is let through.
	OutcomeFailedOpen = httplimit.OutcomeFailedOpen
)

// Event is one decision. It is valid during the call that gets it.
type Event struct {
	// Call is the call as the interceptor got it; in decisions on messages, with the
	// message in Call.Request.
	Call *Call
	// Cost is what the call or message costs.
	Cost int
	// Decision is the limiter's answer. Its field Degraded reports a decision that was
	// taken without the shared store.
	Decision ratelimit.Decision
	// Err is the limiter's error, nil if the call is allowed or denied.
	Err error
	// Outcome is what the interceptor does with the call.
	Outcome Outcome
}

// ByClient reports whether the call could not be decided because of what the client
// did, or may have done: its key is missing or malformed, the cost is negative, the key
// table is full, or it has gone. Metrics can tell such calls from failures of the
// server: both have [OutcomeFailed].
func (e Event) ByClient() bool {
	return e.Outcome == OutcomeFailed && undecided.Why(e.Call.Context(), e.Err).ByClient()
}

// Stats count calls since the interceptors were made, and the messages that were decided
// about, each under what was done with it. They are httplimit's.
type Stats = httplimit.Stats

// OnOutcome returns a function for [Options].OnDecision that tells the outcomes, such as
// to the function that GRPC of promlimit or otellimit returns.
func OnOutcome(count func(Outcome)) func(Event) { return func(e Event) { count(e.Outcome) } }
