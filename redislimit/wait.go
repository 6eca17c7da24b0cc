package redislimit

import (
	"context"
	"errors"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/outcome"
	"github.com/weir-go/ratelimit/internal/tentative"
	"github.com/weir-go/ratelimit/internal/turns"
	"github.com/weir-go/ratelimit/internal/wait"
)

// Wait spends cost of the key's budget and returns nil when its time has come: in one round trip if the cost
// fits now. This process's callers for one key are served in the order of their arrival, even if their costs
// differ. The first few have bookings in Redis, up to a second ahead, and the others wait in this process:
// they follow a refund, a grant, Reset, SetLimit, and leaving callers. Processes take turns. It fails like
// [ratelimit.Keyed.Wait], with ErrLimited also if the key has too many bookings, or with Take's errors.
//
// A failed Wait has spent nothing, unless its error reports otherwise. If the context ends, Wait gives
// its booking back within [Options.Timeout]; if this fails, the booking stays, and the error reports
// it. If Redis has not answered yet, Wait first waits up to 50 ms for the reply; if none has come by
// then, the error wraps [ratelimit.ErrUnanswered]. The call's booking goes to the next caller, or back.
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
		r.instead, _ = q.Instead.(*settlement)
		op := byte(opKeep)
		if q.Between && p.gaps() {
			op, r.after = opBetween, q.After
		}
		d, far, last, err := l.bookAhead(ctx, r, p, key, cost, ahead, op)
		if u, left := err.(*unfinished); left {
			return outcome.Made{Decision: d}, &outcome.Unfinished{Err: u.error, Made: func() (outcome.Made, error) {
				d, err := last.decided(op, ratelimit.Decision{Limit: p.limit}, last.finish(u.call))
				return l.booked(key, far, last, d, cost, ahead, err)
			}}
		}
		return l.booked(key, far, last, d, cost, ahead, err)
	})
}

// made returns what a call to Wait has booked.
func (r *request) made(d ratelimit.Decision, cost int, ahead time.Duration, err error) (outcome.Made, error) {
	made := outcome.Made{Decision: d, Life: r.life()}
	switch {
	case err != nil || len(r.charges) == 0:
	case d.Allowed:
		item := r.settlementOf(&r.charges[0])
		made.Settle, made.At, made.Ref = r.settlerFor(max(cost, 1)), item.At, &item
	case r.charges[0].plan.dates != nil:
		if in := between(r.reading, r.charges[0].offer.At); in <= ahead { // no booking reaches beyond the next window
			err = &outcome.Beyond{In: in}
		}
	}
	return made, err
}

// bookAhead books for a waiting caller. A booking further than a second ahead
// takes a second call, and is tentative. It also returns the last request.
func (l *Limiter) bookAhead(ctx context.Context, r *request, p *plan, key string, cost int, ahead time.Duration, op byte) (d ratelimit.Decision, far *tentative.Booking, last *request, err error) {
	near := min(ahead, turns.Horizon)
	if cost == 0 {
		near = ahead
	}
	d, err = l.decideUnder(ctx, r, p, key, cost, near, op)
	rest := ahead - near
	switch {
	case err != nil, d.Allowed, rest <= 0:
		return d, nil, r, err
	case p.dates == nil && p.kind != kindLeaky && d.RetryAfter > rest: // a leaky bucket may be full
		d.RetryAfter -= rest
		return d, nil, r, nil
	}
	last = &request{after: r.after}
	last.call.undone, last.call.goesOn = true, true
	far, _ = l.store.tentative.Begin(ctx, min(rest, 2*d.RetryAfter)+turns.Horizon)
	if err = ctx.Err(); err != nil {
		if far != nil {
			far.Drop()
		}
		return d, nil, r, ended(err, false)
	}
	if far != nil { // without a beat the booking is a lasting one
		last.tentative = far.Number
	}
	ended := false
	defer func() {
		if !ended && far != nil { // it has panicked
			l.lose(far, p, last)
		}
	}()
	d, err = l.decideUnder(ctx, last, p, key, cost, ahead, op)
	ended = true
	return d, far, last, err
}

// booked returns what a call to Wait has booked. A booking with a record is tentative.
func (l *Limiter) booked(key string, far *tentative.Booking, r *request, d ratelimit.Decision, cost int, ahead time.Duration, err error) (outcome.Made, error) {
	made, err := r.made(d, cost, ahead, err)
	switch settle := made.Settle; {
	case far == nil:
	case errors.Is(err, ratelimit.ErrUnanswered):
		l.lose(far, r.charges[0].plan, r)
	case err != nil || !d.Allowed || r.record == "":
		far.Drop()
	default:
		if r.charges[0].plan.kind == kindLeaky {
			settle = l.keepPlace(far, key, r, d.Delay, made.Ref).settle
		} else {
			l.keep(far, key, r, d.Delay)
		}
		made.Confirm = far.Confirm
		made.Settle = func(actual int) error { return far.Settle(actual, settle) }
	}
	return made, err
}

// lose records a tentative booking as uncertain.
func (l *Limiter) lose(b *tentative.Booking, p *plan, r *request) {
	if len(r.keys) == 0 {
		b.Drop()
		return
	}
	key := r.keys[0]
	b.Lost(func() error { return l.store.find(key, p, b.Number) })
}

// keep records a tentative booking.
func (l *Limiter) keep(b *tentative.Booking, key string, r *request, delay time.Duration) {
	redisKey, record, plan := r.keys[0], r.record, r.charges[0].plan
	made := tentative.Record{
		Confirm: func() (bool, error) {
			reply, err := l.store.small(context.Background(), tentatively.confirm, recordsKey(redisKey), record, time.Time{})
			return reply == "1", err
		},
		Cancel: func() error {
			_, err := l.store.giveBack(context.Background(), redisKey, plan, record)
			return err
		},
	}
	if r.shared {
		made.Advance = func() {
			if p, err := l.planFor(key); err == nil && p.kind != 0 {
				if freed, _ := l.store.free(context.Background(), redisKey, p, time.Time{}, l.store.tentative.Beaten()); freed {
					l.lines.Moved(key)
				}
			}
		}
	}
	b.Made(time.Now().Add(delay), made)
}

// keepPlace records a tentative place in a queue.
func (l *Limiter) keepPlace(b *tentative.Booking, key string, r *request, delay time.Duration, ref any) *place {
	p := &place{store: l.store, key: r.keys[0], plan: r.charges[0].plan, number: b.Number, record: r.record,
		moved: func(by time.Duration) { l.lines.Earlier(key, ref, by) }}
	made := tentative.Record{Confirm: p.confirm, Cancel: p.cancel}
	if r.shared {
		made.Advance = func() { p.follow(l.store.tentative.Beaten()) }
	}
	b.Made(time.Now().Add(delay), made)
	return p
}
