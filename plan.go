package ratelimit

import (
	"github.com/weir-go/ratelimit/internal/meter"
)

// plan is a limit, prepared for decisions. It is immutable, so all keys under the limit share it without a lock.
type plan struct {
	// The fields that every decision reads come first.
	seq      uint64 // the number of its generation, and the bits below
	capacity int64  // the limit's capacity
	takes    int64  // a Take's largest cost: the capacity, or 0 under Concurrent

	meter.Meter // zero for Unlimited and Blocked: they track nothing

	limit Limit
	wall  *wallWindows // a calendar's windows, else nil
	dirty *dirtyList   // lists keys that may be fresh earlier than expected; nil if the table needs no list
}

// newPlan returns the plan for a limit, or an error if the limit is invalid. A valid
// limit without a case here is a bug in this package: its plan would allow every cost.
func newPlan(l Limit, seq uint64, dates *calendars) (*plan, error) {
	if err := l.Validate(); err != nil {
		return nil, err
	}
	p := &plan{seq: seq, limit: l, capacity: int64(l.Capacity())}
	p.takes = p.capacity
	switch l.Algorithm {
	case AlgorithmTokenBucket:
		p.Meter = l.meter(meter.TokenBucket)
	case AlgorithmLeakyBucket:
		p.Meter = l.meter(meter.LeakyBucket)
	case AlgorithmFixedWindow:
		p.Meter = l.meter(meter.FixedWindow)
	case AlgorithmSlidingLog:
		p.Meter = l.meter(meter.SlidingLog)
	case AlgorithmSlidingCounter:
		p.Meter = l.meter(meter.SlidingCounter)
	case AlgorithmConcurrent:
		p.Meter, p.takes = l.meter(meter.Concurrent), 0
	case AlgorithmCalendar:
		wall, err := dates.windows(l.Period)
		if err != nil {
			return nil, err
		}
		p.wall, p.Meter = wall, calendarMeter(l.Rate.Units, wall)
	case AlgorithmUnlimited, AlgorithmBlocked:
		// Nothing is tracked: the capacity alone decides.
	default:
		panic("ratelimit: no plan for " + l.Algorithm.String())
	}
	return p, nil
}

// meter returns the meter of a valid limit, in nanoseconds.
func (l Limit) meter(kind meter.Kind) meter.Meter {
	return meter.New(meter.Limit{
		Kind: kind, Units: int64(l.Rate.Units), Per: int64(l.Rate.Per), Burst: int64(l.Burst),
		Horizon: century, Most: mostCounted, Retry: int64(leastRetry),
	})
}

// calendarMeter returns the meter of a calendar's units.
func calendarMeter(units int, w *wallWindows) meter.Meter {
	return meter.New(meter.Limit{
		Kind: meter.Calendar, Units: int64(units), Per: int64(w.calendar.Longest()), Windows: w,
		Horizon: century, Most: mostCounted,
	})
}

// tracks reports whether keys under this plan have a state. If not, no other method of its meter may be called.
func (p *plan) tracks() bool { return p.Counts() }

// begins returns an untracked key's first state. Under a calendar it gets no window before the calendar's floor.
func (p *plan) begins(s meter.State) meter.State {
	if p.wall != nil {
		s.M = max(s.M, p.wall.floor.Load())
	}
	return s
}

// holds reports whether a plan's units are held by reservations.
func (p *plan) holds() bool { return p.limit.Algorithm == AlgorithmConcurrent }

// exceeds is the error for a cost above the capacity.
func (p *plan) exceeds(cost int64) error { return &exceedsError{p.limit, cost} }

// equals reports whether the plans' limits differ at most in their
// names. Then a state under one means the same under the other.
func (p *plan) equals(q *plan) bool {
	return p.limit.Named("") == q.limit.Named("")
}

// standing fills in how much budget a state leaves.
func (p *plan) standing(s meter.State, m meter.Moment, d *Decision) {
	d.Limit = p.limit
	remaining, debt, regained := p.Standing(s, m.Now)
	d.stands(m, remaining, debt, regained, p.next(&s, m.Now, remaining))
}

// next returns the instant of the next unit of a state if none remains.
func (p *plan) next(s *meter.State, now, remaining int64) int64 {
	if remaining > 0 {
		return now
	}
	return p.Earliest(*s, now, 1)
}

// fits reports whether a cost is from 1 to the capacity.
func (p *plan) fits(cost int) bool { return uint64(int64(cost)-1) < uint64(p.capacity) }

// ordinary reports whether a cost is from 1 to the capacity, as almost all are, and a Take may charge it. One comparison
// does for both bounds: cost - 1, as an unsigned number, is larger than any capacity if the cost is 0 or negative.
func (p *plan) ordinary(cost int) bool { return uint64(int64(cost)-1) < uint64(p.takes) }
