package httplimit

import (
	"net/http"

	"github.com/weir-go/ratelimit/internal/edge"
	"github.com/weir-go/ratelimit/internal/told"
)

// Middleware holds handlers to a limiter. Make one with [New] or [PerIP]. It is safe for
// concurrent use, and may wrap any number of handlers, which then share its limits.
// The zero Middleware cannot be used: Wrap panics.
type Middleware struct {
	core   *edge.Core[*http.Request]
	opts   Options
	views  told.Views
	badKey *problem
}

// event is an [Event] as package edge has it.
type event = edge.Event[*http.Request]

// public returns an event as functions of users get it.
func public(e event) Event {
	return Event{Request: e.Request, Cost: e.Cost, Decision: e.Decision, Err: e.Err, Outcome: Outcome(e.Outcome)}
}

// Stats returns the counters. Each is exact; they are not read at one instant.
func (m *Middleware) Stats() Stats {
	if m.core == nil {
		return Stats{}
	}
	return Stats(m.core.Stats())
}
