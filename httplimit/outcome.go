package httplimit

import (
	"net/http"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/edge"
)

// Outcome is the treatment of a request by the middleware, or in shadow mode the treatment that it would have had. The zero Outcome does
// not occur.
type Outcome uint8

const (
	OutcomeAllowed    = Outcome(edge.Allowed)    // within the limits
	OutcomeDenied     = Outcome(edge.Denied)     // denied for now, or held for too long
	OutcomeExceeds    = Outcome(edge.Exceeds)    // can never pass
	OutcomeRejected   = Outcome(edge.Rejected)   // refused without a valid key or with a cost below 0, or the client has gone
	OutcomeFailed     = Outcome(edge.Failed)     // could not be decided, refused
	OutcomeFailedOpen = Outcome(edge.FailedOpen) // could not be decided, passes
)

// String returns the outcome as a word, such as "denied".
func (o Outcome) String() string { return edge.Outcome(o).String() }

// Event is one decision. It is valid only during the call that gets it.
type Event struct {
	Request  *http.Request
	Cost     int
	Decision ratelimit.Decision
	// Err is the limiter's error, nil if the request is allowed or denied. If the client has left while its request was held, it is the
	// context's.
	Err     error
	Outcome Outcome
}

// Stats count requests. Each counts in one of the first seven.
type Stats struct {
	Skipped    uint64 // by Options.Skip
	Allowed    uint64 // within the limits, and served
	Denied     uint64 // denied for now, at once or after it was held
	Exceeds    uint64 // can never pass
	Rejected   uint64 // without a valid key, with a cost below 0, or the client had gone
	Failed     uint64 // could not be decided
	FailedOpen uint64 // could not be decided, passed by FailOpen

	Degraded  uint64 // of these, decided without the shared store
	Unsettled uint64 // of these, with a charge that could not be settled
}
