package redislimit

import (
	"context"

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
		op := byte(opKeep)
		if q.Between && p.gaps() {
			op, r.after = opBetween, q.After
		}
		made.Decision, err = l.decideUnder(ctx, r, p, key, cost, ahead, op)
		made.Life = r.life()
		switch {
		case err != nil:
		case made.Allowed:
			made.Settle = r.settlerFor(max(cost, 1))
			if len(r.charges) > 0 {
				made.At = r.charges[0].offer.At
			}
		case p.dates != nil:
			if in := between(r.reading, r.charges[0].offer.At); in <= ahead { // no booking is later than the next window
				err = &outcome.Beyond{In: in}
			}
		}
		return made, err
	})
}
