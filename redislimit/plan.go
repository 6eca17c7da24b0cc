package redislimit

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/held"
	"github.com/weir-go/ratelimit/internal/meter"
	"github.com/weir-go/ratelimit/internal/micros"
	"github.com/weir-go/ratelimit/internal/outcome"
)

// leastRetry is the minimum estimate of the time until units in use come back, in µs.
const leastRetry = 10_000

// plan is a limit, prepared for decisions. It is immutable, except since.
type plan struct {
	limit ratelimit.Limit
	kind  byte // 0 if nothing is counted: unlimited, blocked
	// buckets: a unit takes per/units µs, in lowest terms; others:
	// units for each per; in a calendar, per identifies the Period
	units, per int64
	capacity   int64
	meter      meter.Meter // counts in microseconds, as the scripts do
	dates      *dates      // a calendar's windows, else nil
	former     *dates      // the limiter's previous calendar; nil if none is known

	// since is the first reading under the limit for keys stored under
	// another limit. If it is 0, the first decision stores its reading here.
	since   atomic.Int64
	current *atomic.Pointer[plan] // the present plan of the limiter's one limit; nil if it has several
}

// always is a since before all readings of the server's clock: the limit applies from the key's last recorded reading.
const always = 1

// decided records a decision under the plan. It stores the reading of the first decision as since.
func (p *plan) decided(reading int64) {
	if p.since.Load() == 0 {
		p.since.CompareAndSwap(0, reading)
	}
}

// latest returns this plan's replacement, if it counts anything.
func (p *plan) latest() *plan {
	if p.current != nil {
		if next := p.current.Load(); next.kind != 0 {
			return next
		}
	}
	return p
}

// sameFigures reports whether a state stored under one plan is valid under the other as it is.
func (p *plan) sameFigures(q *plan) bool {
	return p.kind == q.kind && p.units == q.units && p.per == q.per && p.capacity == q.capacity
}

// newPlan returns the plan for a limit, or an error if the limit cannot be enforced exactly.
func newPlan(l ratelimit.Limit, maxLog int) (*plan, error) {
	units, per, err := micros.Figures(l, maxLog)
	if err != nil {
		return nil, err
	}
	kind, known := kinds[l.Algorithm]
	if !known { // this is a bug in this package: kind 0 would allow all
		return nil, fmt.Errorf("%w: redislimit cannot count %v", ratelimit.ErrInvalidLimit, l)
	}
	p := &plan{limit: l, kind: kind, units: units, per: per, capacity: int64(l.Capacity())}
	switch p.kind {
	case 0:
		return p, nil
	case kindCalendar:
		return p, p.prepareCalendar()
	}
	p.meter = meter.New(meter.Limit{Kind: meters[p.kind], Units: p.units, Per: p.per, Burst: p.capacity, Horizon: century, Most: most, Retry: leastRetry})
	return p, nil
}

func (p *plan) isBucket() bool { return p.kind == kindToken || p.kind == kindLeaky }

// check returns an error if a cost can never be spent under this plan.
func (p *plan) check(cost int64) error {
	switch {
	case cost < 0:
		return fmt.Errorf("%w: %d", ratelimit.ErrNegativeCost, cost)
	case cost <= p.capacity:
		return nil
	}
	return outcome.Exceeding(p.limit, cost)
}

// endless returns the error of a call if it charges units but could
// not give them back. It returns nil if the plan allows such calls.
func (p *plan) endless(cost int) error {
	if cost <= 0 || p.kind != kindHeld {
		return nil
	}
	return &held.NoEnd{Name: p.limit.Name, Text: p.limit.String()}
}

// clampAhead returns how many whole microseconds ahead a cost may be booked.
func (p *plan) clampAhead(maxDelay time.Duration) int64 {
	return min(max(0, int64(maxDelay))/1000, p.meter.MaxAhead(), most)
}

// gaps reports whether a call may look for room before bookings, loose or not. A
// leaky bucket has no such room, and a sliding log would have to be read whole.
func (p *plan) gaps() bool { return p.kind != kindLeaky && p.kind != kindLog && p.kind != kindHeld }

// putDates appends the data of the plan's calendar for a script. It also appends
// the data of the limiter's previous calendar, because a key may still be under it.
func (p *plan) putDates(b []byte, s *store, now int64) ([]byte, int64) {
	if p.dates == nil && p.former == nil {
		return b, now
	}
	since := p.since.Load()
	b, now = p.dates.put(b, s, now, since)
	return p.former.put(b, s, now, since)
}
