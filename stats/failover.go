package stats

import "time"

// State says whether a failover limiter asks its primary.
type State uint8

// The states of a breaker. The zero State is StateClosed.
const (
	StateClosed   State = iota // the primary is asked for each decision
	StateHalfOpen              // one decision at a time is a probe of the primary
	StateOpen                  // the primary is not asked
)

// String returns "closed", "half-open" or "open".
func (s State) String() string {
	switch s {
	case StateClosed:
		return "closed"
	case StateHalfOpen:
		return "half-open"
	}
	return "open"
}

// Failover tells how a limiter of package failover stands, and counts what it has done since it was made. Each count
// is exact; they are not read at one instant.
type Failover struct {
	// State is the breaker's, or the one that it is forced into.
	State State
	// Forced reports that the limiter's Force has set the state.
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

// OfFailover returns the figures of a failover limiter. read is its method Stats.
func OfFailover(read func() Failover) Group {
	return Group{
		Figures: []Figure{
			{Name: "breaker.state", Unit: "1", Gauge: true, Help: "The breaker's state: 0 closed, 1 half open, 2 open."},
			{Name: "breaker.opened", Unit: "{time}", Help: "How often the breaker has opened."},
			{Name: "failover.decisions", Unit: "{decision}", By: []string{"by"}, Help: "Decisions, by who took them."},
			{Name: "failover.failures", Unit: "{failure}", By: []string{"kind"}, Help: "Calls of the primary that failed, by kind."},
			{Name: "breaker.forced", Unit: "1", Gauge: true, Help: "Whether an operator has forced the breaker's state: 1 if so."},
			{Name: "failover.degraded_since", Unit: "s", Gauge: true, Help: "When the breaker opened, in seconds since 1970; 0 while it is closed."},
			{Name: "failover.unsettled", Unit: "{settlement}", Help: "Settlements of the primary's reservations that failed."},
		},
		Read: func(add func(int, float64, ...string)) {
			s := read()
			add(0, float64(s.State))
			add(1, float64(s.Opened))
			add(2, float64(s.Primary), "primary")
			add(2, float64(s.Instead), "instead")
			add(3, float64(s.Unavailable), "unavailable")
			add(3, float64(s.Timeouts), "timeout")
			add(3, float64(s.Panics), "panic")
			forced, since := 0.0, 0.0
			if s.Forced {
				forced = 1
			}
			if !s.DegradedSince.IsZero() {
				since = float64(s.DegradedSince.UnixMilli()) / 1000
			}
			add(4, forced)
			add(5, since)
			add(6, float64(s.Unsettled))
		},
	}
}
