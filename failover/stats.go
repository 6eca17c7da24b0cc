package failover

import (
	"sync/atomic"
	"time"
)

// Stats tells how a [Limiter] stands, and counts what it has done since it was made. Each count
// is exact; they are not read at one instant.
type Stats struct {
	// State is the breaker's, or the one that it is forced into.
	State State
	// Forced reports that [Limiter.Force] has set the state.
	Forced bool
	// DegradedSince is when the breaker opened; the zero Time while it is closed.
	DegradedSince time.Time

	// Primary counts decisions by the primary, errors about the call included.
	Primary uint64
	// Instead counts decisions by what stands in: after a failure, because the breaker
	// was open, because the turn did not come in time, or because the caller's deadline came first.
	Instead uint64
	// Cancelled counts callers whose context was cancelled before there was a decision.
	Cancelled uint64

	// Unavailable, Timeouts and Panics count failures of the primary by kind, of decisions and
	// settlements: it said that it could not decide, it did not answer within
	// Options.Timeout, it panicked.
	Unavailable uint64
	Timeouts    uint64
	Panics      uint64
	// Busy counts decisions by what stands in because Options.MaxCalls were under way, and the
	// caller's turn did not come in time. They are not failures.
	Busy uint64
	// Deadlines counts decisions by what stands in because the caller's own deadline came
	// first. They are not failures; what the call has come to is counted when it ends.
	Deadlines uint64
	// Opened counts how often the breaker has opened, or was forced open.
	Opened uint64

	// Settling is how many settlements wait for their turn now.
	Settling int
	// Unsettled counts settlements of the primary's reservations that returned an error.
	Unsettled uint64
}

// counters are behind [Stats].
type counters struct {
	primary, instead, cancelled   atomic.Uint64
	unavailable, timeouts, panics atomic.Uint64
	busy, deadlines, unsettled    atomic.Uint64

	settleFailed atomic.Bool // the last settlement that was tried
}

// count counts what a caller was told.
func (c *counters) count(o outcome) {
	switch o {
	case answered, refused:
		c.primary.Add(1)
	case busy:
		c.busy.Add(1)
	case deadline:
		c.deadlines.Add(1)
	case gone:
		c.cancelled.Add(1)
	}
}

// failed counts what a call has come to that has failed.
func (c *counters) failed(o outcome) {
	switch o {
	case unavailable:
		c.unavailable.Add(1)
	case overdue:
		c.timeouts.Add(1)
	case panicked:
		c.panics.Add(1)
	}
}

// report returns the counts.
func (c *counters) report(s standing) Stats {
	return Stats{
		State:         s.state,
		Forced:        s.forced,
		DegradedSince: s.since,
		Primary:       c.primary.Load(),
		Instead:       c.instead.Load(),
		Cancelled:     c.cancelled.Load(),
		Unavailable:   c.unavailable.Load(),
		Timeouts:      c.timeouts.Load(),
		Panics:        c.panics.Load(),
		Busy:          c.busy.Load(),
		Deadlines:     c.deadlines.Load(),
		Opened:        s.opened,
		Unsettled:     c.unsettled.Load(),
	}
}
