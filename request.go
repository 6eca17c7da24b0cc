package ratelimit

import (
	"context"
	"math"
	"time"

	"github.com/weir-go/ratelimit/internal/held"
	"github.com/weir-go/ratelimit/internal/meter"
	"github.com/weir-go/ratelimit/internal/optional"
)

// request is how a cost may be spent.
type request struct {
	queue int64 // the maximum time for which a leaky bucket may delay the work
	book  int64 // how far ahead the other algorithms may book
	keep  meter.Keep
	delay bool // keep counts only if a leaky bucket delays the work
	peek  bool // to change nothing: the key stays under the limit that it is under
	brief bool // the caller needs only the yes or no, and no error
	ends  bool // the charge will be settled when the work has ended, as Concurrent needs it

	// turn is set by Wait. If the cost is booked for later, its turn in the key's line is stored there.
	turn **turn

	first  *turn  // of a call in a stack that waits in one of its keys' lines
	number uint64 // of its arrival; 0 if it has waited for no key yet
}

// takeRequest is the request of Take and Allow: now, or whenever a leaky bucket lets it out.
var takeRequest = request{queue: math.MaxInt64}

// peekRequest is the request of Peek, which answers as Take does.
var peekRequest = request{queue: math.MaxInt64, peek: true}

// reserveRequest is the request of Reserve and Wait.
func reserveRequest(ahead time.Duration, keep meter.Keep) request {
	d := max(0, int64(ahead))
	return request{queue: d, book: d, keep: keep}
}

// queueRequest is the request of a stack's Reserve and Wait: only leaky buckets may delay it.
func queueRequest(maxDelay time.Duration, keep meter.Keep) request {
	return request{queue: max(0, int64(maxDelay)), keep: keep}
}

// keepFor returns the part of a Reserve's spending that may still change.
func keepFor(ctx context.Context) meter.Keep {
	if optional.IsPassing(ctx) {
		return meter.Booked
	}
	return meter.Open
}

// ahead returns how long after now the cost may be spent under a plan.
func (q request) ahead(p *plan) int64 {
	if p.Delays() {
		return q.queue
	}
	return q.book
}

// endless returns the error of a call that charges units and could not give them back, nil if the plan allows such calls.
func (p *plan) endless(cost int, q *request) error {
	if q.ends || q.peek || cost <= 0 || !p.holds() {
		return nil
	}
	if q.brief {
		return errDiscarded
	}
	return &held.NoEnd{Name: p.limit.Name, Text: p.limit.String()}
}

// answer fills in the decision of a state on a cost.
func (p *plan) answer(s meter.State, m meter.Moment, cost int64, d *Decision) {
	o := m.Free()
	if cost > 0 {
		o = p.Offer(s, m, cost, takeRequest.ahead(p))
	}
	d.verdict(m, o)
	p.standing(s, m, d)
}

// decide decides one key's cost. The caller holds the lock.
func (a *account) decide(m meter.Moment, cost int64, q request, d *Decision) meter.Offer {
	a.last = m.Now
	a.held = a.held || q.keep != meter.Final
	o := a.plan.Take(&a.State, m, cost, q.ahead(a.plan), q.keep)
	o.Changes = a.changes
	d.verdict(m, o)
	a.use.decided(d.Allowed)
	return o
}

// look answers a cost under the plan, and spends nothing. The caller holds the lock.
func (a *account) look(p *plan, reading, cost int64, q request, d *Decision) {
	s, m := a.view(p, reading, q.peek)
	p.answer(s, m, cost, d)
}

// view returns the state under a plan. The times computed from it hold only if the key regains under that plan from now on. So
// every call except Peek, which must change nothing, puts the key under the plan. A fresh key has no such times. The caller
// holds the lock.
func (a *account) view(p *plan, reading int64, peek bool) (meter.State, meter.Moment) {
	m := a.at(reading)
	if a.plan.Refresh(&a.State); !peek && (a.waitedFor() || a.plan.Forgotten(a.State) > m.Now) {
		a.adopt(p, reading)
	}
	if a.plan.equals(p) {
		return a.State, m
	}
	return p.MigrateView(&a.plan.Meter, a.State, m.Now), m
}
