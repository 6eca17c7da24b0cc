package failover

import (
	"sync/atomic"
	"time"
)

// Stats holds the state of a [Limiter] and its counts.
type Stats struct {
	State         State
	Forced        bool
	DegradedSince time.Time // when the breaker opened; zero while it is closed

	Primary   uint64 // decisions by the primary
	Instead   uint64 // decisions by the stand-in
	Cancelled uint64 // calls whose context was cancelled before an answer

	Unavailable uint64 // failures with ErrUnavailable
	Timeouts    uint64 // failures to answer within Timeout
	Panics      uint64
	Busy        uint64 // decisions by the stand-in because no turn came in time
	Deadlines   uint64 // decisions by the stand-in because the caller's deadline came first
	Opened      uint64 // openings of the breaker

	Settling  int    // settlements waiting for their turn now
	Unsettled uint64 // failed settlements with the primary
}

// counters are the counts for [Stats].
type counters struct {
	primary, instead, cancelled   atomic.Uint64
	unavailable, timeouts, panics atomic.Uint64
	busy, deadlines, unsettled    atomic.Uint64

	settleFailed atomic.Bool // whether the last settlement has failed
}

// count counts a call by its ending.
func (c *counters) count(o ending) {
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

// failed counts a failed call by its ending.
func (c *counters) failed(o ending) {
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
