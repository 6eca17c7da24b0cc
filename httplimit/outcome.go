package httplimit

import (
	"net/http"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/edge"
)

// Outcome is what the middleware does with a request; in shadow mode, what it would
// have done. The zero Outcome does not occur.
type Outcome uint8

const (
	// OutcomeAllowed is within the limits. The client may leave while the request is held.
	OutcomeAllowed = Outcome(edge.Allowed)
	// OutcomeDenied is denied for now, or would be delayed for too long: see
	// [Middleware.Wrap].
	OutcomeDenied = Outcome(edge.Denied)
	// OutcomeExceeds costs more than can ever pass.
	OutcomeExceeds = Outcome(edge.Exceeds)
	// OutcomeRejected has no key or a malformed one, or its client has gone. It is refused.
	OutcomeRejected = Outcome(edge.Rejected)
	// OutcomeFailed could not be decided, and is refused.
	OutcomeFailed = Outcome(edge.Failed)
	// OutcomeFailedOpen could not be decided, and is let through.
	OutcomeFailedOpen = Outcome(edge.FailedOpen)
)

// String returns the outcome as a word, such as "denied", for logs and metrics.
func (o Outcome) String() string { return edge.Outcome(o).String() }

// Event is one decision. It is valid during the call that gets it.
type Event struct {
	// Request is the request as the middleware got it.
	Request *http.Request
	// Cost is what the request costs.
	Cost int
	// Decision is the limiter's answer. Its field Degraded reports a decision that was
	// taken without the shared store.
	Decision ratelimit.Decision
	// Err is the limiter's error, nil if the request is allowed or denied.
	Err error
	// Outcome is what the middleware does with the request.
	Outcome Outcome
}

// Stats count requests since the middleware was made, each under what was done with
// it: the sum of the first seven is the number of requests. In shadow mode they count what
// would have been done.
type Stats struct {
	Skipped    uint64 // left out by Options.Skip
	Allowed    uint64 // within the limits
	Denied     uint64 // denied for now
	Exceeds    uint64 // cost more than can ever pass
	Rejected   uint64 // had no key or a malformed one, or the client had gone; refused
	Failed     uint64 // could not be decided, refused
	FailedOpen uint64 // could not be decided, let through by Options.FailOpen

	Degraded  uint64 // of all these, decided without the shared store (Decision.Degraded)
	Unsettled uint64 // of those allowed, whose charge could not be settled
}
