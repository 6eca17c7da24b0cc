package failover

import "sync/atomic"

// Stats count what a [Limiter] has done since it was made. Each count is exact; they
// are not read at one instant.
type Stats struct {
	// Primary counts decisions by the primary, errors about the call included.
	Primary uint64
	// Instead counts decisions by what stands in: after a failure, because the breaker
	// was open, or because too many calls were under way.
	Instead uint64

	// Unavailable, Timeouts and Panics count failures of the primary by kind: it said
	// that it could not decide, it did not answer within [Options.Timeout], it
	// panicked.
	Unavailable uint64
	Timeouts    uint64
	Panics      uint64
	// Busy counts decisions for which the primary was not called since 128 calls were
	// under way. They are not failures.
	Busy uint64
	// Opened counts how often the breaker has opened.
	Opened uint64
}

// counters are behind [Stats].
type counters struct {
	primary, instead                    atomic.Uint64
	unavailable, timeouts, panics, busy atomic.Uint64
}

// count counts what a call has come to.
func (c *counters) count(o outcome) {
	switch o {
	case answered, refused:
		c.primary.Add(1)
	case unavailable:
		c.unavailable.Add(1)
	case overdue:
		c.timeouts.Add(1)
	case panicked:
		c.panics.Add(1)
	case busy:
		c.busy.Add(1)
	}
}

// report returns the counts.
func (c *counters) report(opened uint64) Stats {
	return Stats{
		Primary:     c.primary.Load(),
		Instead:     c.instead.Load(),
		Unavailable: c.unavailable.Load(),
		Timeouts:    c.timeouts.Load(),
		Panics:      c.panics.Load(),
		Busy:        c.busy.Load(),
		Opened:      opened,
	}
}
