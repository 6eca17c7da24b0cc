package redislimit

import (
	"context"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/outcome"
	"github.com/weir-go/ratelimit/internal/turns"
	"github.com/weir-go/ratelimit/internal/wait"
)

// Wait spends cost of the key's budget and returns nil when its time has come: in one round trip if that is now.
// The callers of this process for one key are served in the order of their arrival, even if their costs differ.
// The first few of them have bookings in Redis, up to a second ahead, and the others wait in this process: they
// follow a refund, a grant, Reset, SetLimit, and callers that leave. Processes take turns. It fails like
// [ratelimit.Keyed.Wait], with ErrLimited also if the key has too many bookings, or with the errors of Take.
//
// A Wait that fails has spent nothing, unless its error says so. If the context ends, Wait gives its booking back
// within [Options.Timeout]; if that fails, the booking stays, and the error says so. If Redis has not answered yet,
// Wait first waits up to 50 ms for the reply; if none has come by then, the error wraps [ratelimit.ErrUnanswered].
// What that call books goes to the next caller, or back.
func (l *Limiter) Wait(ctx context.Context, key string, cost int) error {
	l.check()
	ctx = wait.OrBackground(ctx)
	if l.leases != nil {
		err := l.leases.wait(ctx, leaseKey{key: key}, cost)
		d := ratelimit.Decision{Allowed: err == nil}
		if p, failed := l.planFor(key); failed == nil {
			d.Limit = p.limit
		}
		l.report(ctx, key, cost, d, err)
		return err
	}
	d, err := l.wait(ctx, key, cost)
	if err == nil && d.Limit == (ratelimit.Limit{}) { // without a call the decision has no limit
		if p, failed := l.planFor(key); failed == nil {
			d.Limit = p.limit
		}
	}
	l.report(ctx, key, cost, d, err)
	return err
}

func (l *Limiter) wait(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	if _, err := wait.Left(ctx); err != nil {
		return ratelimit.Decision{}, ended(err, false)
	}
	return outcome.InLine(ctx, &l.lines, key, cost, func(q turns.Request) (made outcome.Made, err error) {
		cost, ahead := q.Cost, q.Ahead
		p, err := l.planOfCost(key, cost)
		if err == nil {
			err = p.endless(cost)
		}
		if err != nil {
			if p != nil {
				made.Limit = p.limit
			}
			return made, err
		}
		r := new(request)
		r.call.undone = true
		r.call.goesOn = cost > 0
		op := byte(opKeep)
		if q.Between && p.gaps() {
			op, r.after = opBetween, q.After
		}
		d, err := l.decideUnder(ctx, r, p, key, cost, ahead, op)
		if u, left := err.(*unfinished); left {
			return outcome.Made{Decision: d}, &outcome.Unfinished{Err: u.error, Made: func() (outcome.Made, error) {
				d, err := r.decided(op, ratelimit.Decision{Limit: p.limit}, r.finish(u.call))
				return r.made(d, cost, ahead, err)
			}}
		}
		return r.made(d, cost, ahead, err)
	})
}

// made returns what a call of Wait has booked.
func (r *request) made(d ratelimit.Decision, cost int, ahead time.Duration, err error) (outcome.Made, error) {
	made := outcome.Made{Decision: d, Life: r.life()}
	switch {
	case err != nil || len(r.charges) == 0:
	case d.Allowed:
		made.Settle, made.At = r.settlerFor(max(cost, 1)), r.charges[0].offer.At
	case r.charges[0].plan.dates != nil:
		if in := between(r.reading, r.charges[0].offer.At); in <= ahead { // no booking reaches beyond the next window
			err = &outcome.Beyond{In: in}
		}
	}
	return made, err
}
