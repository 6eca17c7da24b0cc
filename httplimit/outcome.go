package httplimit

import (
	"net/http"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/edge"
)

// Outcome states how the middleware treated a request, or would have
// treated it without shadow mode. The zero Outcome does not occur.
type Outcome uint8

const (
	OutcomeAllowed    = Outcome(edge.Allowed)    // within the limits
	OutcomeDenied     = Outcome(edge.Denied)     // denied for now, or not served in time
	OutcomeExceeds    = Outcome(edge.Exceeds)    // can never pass
	OutcomeRejected   = Outcome(edge.Rejected)   // refused without a valid key or with a cost below 0, or the client has gone
	OutcomeFailed     = Outcome(edge.Failed)     // refused, because no decision was possible
	OutcomeFailedOpen = Outcome(edge.FailedOpen) // passed, although no decision was possible
)

// String returns the outcome's name, such as "denied".
func (o Outcome) String() string { return edge.Outcome(o).String() }

// Event describes one decision. It is valid only during the call that passes it.
type Event struct {
	Request  *http.Request
	Cost     int
	Decision ratelimit.Decision
	// Err is the limiter's error, or nil if the request is allowed or denied. If
	// the client has left while its request was held, Err is the context's error.
	Err     error
	Outcome Outcome
}

// Stats count requests. Each request counts in one of the first seven fields.
type Stats struct {
	Skipped    uint64 // requests exempt by Options.Skip
	Allowed    uint64 // served requests within the limits
	Denied     uint64 // requests denied for now, at once or after a hold
	Exceeds    uint64 // requests above a limit's capacity
	Rejected   uint64 // requests without a valid key, with a cost below 0, or from a client already gone
	Failed     uint64 // requests refused because no decision was possible
	FailedOpen uint64 // requests let through by FailOpen, because no decision was possible

	Degraded  uint64 // requests decided by a stand-in
	Unsettled uint64 // requests whose charge could not be settled
}
