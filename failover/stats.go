package failover

import (
	"sync/atomic"

	"github.com/weir-go/ratelimit/stats"
)

// Stats tell how a [Limiter] stands, and count what it has done since it was made.
type Stats = stats.Failover

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
