package ratelimit

import (
	"context"
	"math"
	"time"

	"github.com/weir-go/ratelimit/internal/held"
	"github.com/weir-go/ratelimit/internal/meter"
	"github.com/weir-go/ratelimit/internal/optional"
)

// request states how a cost may be spent.
type request struct {
	queue int64 // the maximum delay in a leaky bucket
	book  int64 // how far ahead the other algorithms may book
	keep  meter.Keep
	delay bool // keep counts only if a leaky bucket delays the work
	peek  bool // the request changes nothing: the key keeps its present limit
	brief bool // the caller needs only the yes or no, and no error
	ends  bool // the charge will be settled when the work has ended, as Concurrent requires

	// turn is set by Wait. If the cost is booked for later, *turn receives its turn in the key's line.
	turn **turn

	first  *turn  // a call's turn in a stack, if the call waits in the line of one of its keys
	number uint64 // the number of its arrival; 0 if it has not waited for any key yet
}

// takeRequest is the request of Take and Allow: the cost is spent now, and a leaky bucket may delay the work for any time.
var takeRequest = request{queue: math.MaxInt64}

// peekRequest is Peek's request. Peek returns the same decisions as Take.
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

// keepFor returns which part of a Reserve's spending may still change.
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

// endless returns the error of a call if it charges units but could
// not give them back. It returns nil if the plan allows such calls.
func (p *plan) endless(cost int, q *request) error {
	if q.ends || q.peek || cost <= 0 || !p.holds() {
		return nil
	}
	if q.brief {
		return errDiscarded
	}
	return &held.NoEnd{Name: p.limit.Name, Text: p.limit.String()}
}

// answer fills in the decision on a cost, given a state.
func (p *plan) answer(s meter.State, m meter.Moment, cost int64, d *Decision) {
	o := m.Free()
	if cost > 0 {
		o = p.Offer(s, m, cost, takeRequest.ahead(p))
	}
	d.verdict(m, o)
	p.standing(s, m, d)
}

// decide decides on the cost for one key. The caller holds the lock.
func (a *account) decide(m meter.Moment, cost int64, q request, d *Decision) meter.Offer {
	a.last = m.Now
	a.held = a.held || q.keep != meter.Final
	o := a.plan.Take(&a.State, m, cost, q.ahead(a.plan), q.keep)
	o.Changes = a.changes
	d.verdict(m, o)
	a.use.decided(d.Allowed)
	return o
}

// look fills in the decision on a cost under the plan, and spends nothing. The caller holds the lock.
func (a *account) look(p *plan, reading, cost int64, q request, d *Decision) {
	s, m := a.view(p, reading, q.peek)
	p.answer(s, m, cost, d)
}

// view returns the state under a plan. The times computed from it hold only if the key
// regains under that plan from now on. So every call except Peek puts the key under the
// plan, unless the key is fresh. Peek must change nothing. The caller holds the lock.
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
