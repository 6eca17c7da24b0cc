package grpclimit

import (
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/internal/edge"
	"github.com/weir-go/ratelimit/internal/told"
)

// Interceptor holds the calls of servers to a limiter. Make one with [New] or [PerIP]. It
// is safe for concurrent use, and may serve any number of servers, which then share its
// limits. The zero Interceptor cannot be used: its interceptors panic.
type Interceptor struct {
	core  *edge.Core[*Call]
	opts  Options
	views told.Views // of Options.LimitTrailers
}

// event is an [Event] as package edge has it.
type event = edge.Event[*Call]

// public returns an event as functions of users get it.
func public(e event) Event {
	return Event{Call: e.Request, Cost: e.Cost, Decision: e.Decision, Err: e.Err, Outcome: httplimit.Outcome(e.Outcome)}
}

// Stats returns the counters. Each is exact; they are not read at one instant.
func (i *Interceptor) Stats() httplimit.Stats {
	if i.core == nil {
		return httplimit.Stats{}
	}
	return httplimit.Stats(i.core.Stats())
}
