package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"
)

// Chained asks several limiters of any kind in turn. Make one with [Chain]. It is as
// safe for concurrent use as they are. The zero Chained cannot be used: its methods
// panic.
type Chained[R any] struct {
	limiters []Reserver[R]
}

var _ Reserver[string] = (*Chained[string])(nil)

// Chain returns a limiter that asks each of several limiters in turn, of any kind. The
// first denial ends it, and what the limiters before it charged is given back. So does
// the first error.
//
// [All] is one decision under all locks, in one process. Chain is for limiters that
// cannot share a lock: a local one before a remote one, or two servers. It never admits
// more than each of them would. There is a price: until the last limiter has answered, a
// request that is about to be denied holds budget of the limiters before it, so another
// request may be denied because of that. Put the cheapest limiter first.
//
// Take asks the last limiter by Take, and those before it by Reserve with a maxDelay of
// 0. A leaky bucket therefore belongs last: elsewhere it denies what it would delay.
// Reserve asks all of them with the caller's maxDelay. A limiter gives back what
// [Reservation.Settle] can give back; the rest stays spent. If giving back fails, that
// error is returned, joined with the one that led to it, if there was one.
//
// The Decision is that of [Layered]: if denied, Limit and RetryAfter are the denying
// limiter's; if allowed, Limit is that of the limiter that leaves the least. Remaining
// is the least of those asked, ResetAfter and Delay are the longest. In a denial the
// limiters that were charged tell their ResetAfter from before they gave it back.
// Degraded is true if one of them is. A limiter may be in several chains.
//
// It is an error if there are no limiters, or if one is nil.
func Chain[R any](limiters ...Reserver[R]) (*Chained[R], error) {
	if len(limiters) == 0 {
		return nil, errors.New("ratelimit: Chain needs at least one limiter")
	}
	for i, l := range limiters {
		if isNil(l) {
			return nil, fmt.Errorf("ratelimit: limiter %d of Chain is nil", i)
		}
	}
	return &Chained[R]{append([]Reserver[R](nil), limiters...)}, nil
}

// isNil reports whether an interface holds nothing, or a nil pointer.
func isNil(x any) bool {
	v := reflect.ValueOf(x)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}

// all returns the limiters, and panics for the zero Chained.
func (c *Chained[R]) all() []Reserver[R] {
	if c == nil || len(c.limiters) == 0 {
		panic("ratelimit: a Chained that was not made by Chain")
	}
	return c.limiters
}

// Limits returns the limits of all limiters in order: for one with a method
// Limits() []Limit what that returns, for any other the zero Limit.
func (c *Chained[R]) Limits() (limits []Limit) {
	for _, l := range c.all() {
		if teller, ok := l.(interface{ Limits() []Limit }); ok {
			limits = append(limits, teller.Limits()...)
		} else {
			limits = append(limits, Limit{})
		}
	}
	return limits
}

// Allow charges the cost to all limiters and reports true; or it gives back what it
// charged and reports false.
func (c *Chained[R]) Allow(r R, cost int) bool {
	d, _ := c.Take(context.Background(), r, cost)
	return d.Allowed
}

// Take charges the cost to all limiters, or gives back what it charged. The errors are
// those of the limiters. If a give-back fails, the Decision is denied and the error says
// why; that limiter keeps the charge.
func (c *Chained[R]) Take(ctx context.Context, r R, cost int) (Decision, error) {
	limiters := c.all()
	last := len(limiters) - 1
	run := newChainRun(cost)
	defer run.giveBack()
	for _, l := range limiters[:last] {
		if res, err := l.Reserve(ctx, r, cost, 0); !run.add(res, err) {
			return run.denied()
		}
	}
	if d, err := limiters[last].Take(ctx, r, cost); !run.merge(&d, err) {
		return run.denied()
	}
	run.done = true
	return run.d, nil
}

// Reserve is Take with a charge that can be settled, in all limiters. Each of them may
// book ahead by up to maxDelay. Settle settles all of them, and returns the errors of
// those that failed, joined.
func (c *Chained[R]) Reserve(ctx context.Context, r R, cost int, maxDelay time.Duration) (*Reservation, error) {
	run := newChainRun(cost)
	defer run.giveBack()
	for _, l := range c.all() {
		if res, err := l.Reserve(ctx, r, cost, maxDelay); !run.add(res, err) {
			d, err := run.denied()
			return NewReservation(d, nil), err
		}
	}
	run.done = true
	return NewReservation(run.d, func(actual int) error { return settleAll(run.charged, actual) }), nil
}

// Wait charges the cost to all limiters and returns nil when its time has come, as the
// package's [Wait] does for a limiter without a Wait of its own.
func (c *Chained[R]) Wait(ctx context.Context, r R, cost int) error {
	if ctx == nil {
		ctx = context.Background()
	}
	c.all()
	return waitByReserve(ctx, c, r, cost)
}

// chainRun is one pass over the limiters of a chain. What it has charged by the time it
// ends is given back, unless it is done: also if one of the limiters panics.
type chainRun struct {
	cost    int
	d       Decision // of all that have allowed the cost
	sum     tally    // which adds it up
	end     Decision // of the one that has not
	err     error    // that came with it
	charged []*Reservation
	done    bool
}

func newChainRun(cost int) *chainRun {
	run := &chainRun{cost: cost}
	run.sum.d = &run.d
	run.sum.none()
	return run
}

// add takes one limiter's reservation in, and reports whether it is allowed.
func (run *chainRun) add(res *Reservation, err error) bool {
	var d Decision
	if res != nil {
		d = res.Decision
		run.charged = append(run.charged, res)
	}
	return run.merge(&d, err)
}

// merge takes one limiter's decision in, and reports whether it allows the cost.
func (run *chainRun) merge(d *Decision, err error) bool {
	if !d.Allowed || err != nil {
		run.end, run.err = *d, err
		return false
	}
	run.sum.add(d, d.Remaining)
	return true
}

// denied gives back what was charged, and returns the answer.
func (run *chainRun) denied() (Decision, error) {
	run.done = true
	d := run.end
	d.Allowed, d.Delay = false, 0
	if run.sum.n > 0 {
		// The limiters before it have room for the cost that they get back.
		if before := run.d.Remaining; before < d.Remaining-run.cost {
			d.Remaining = before + run.cost
		}
		d.ResetAfter = max(d.ResetAfter, run.d.ResetAfter)
		d.Degraded = d.Degraded || run.d.Degraded
	}
	if err := settleAll(run.charged, 0); err != nil {
		return d, errors.Join(run.err, err)
	}
	return d, run.err
}

// giveBack gives back what was charged if a limiter has panicked. An error of that
// cannot be returned, because the panic goes on.
func (run *chainRun) giveBack() {
	if !run.done {
		_ = settleAll(run.charged, 0)
	}
}

// settleAll settles what the limiters of a chain have charged, the last first, and each
// of them whatever becomes of the others.
func settleAll(charged []*Reservation, actual int) error {
	var errs []error
	for i := len(charged) - 1; i >= 0; i-- {
		if err := charged[i].Settle(actual); err != nil {
			errs = append(errs, fmt.Errorf("ratelimit: limiter %d of Chain could not settle: %w", i, err))
		}
	}
	return errors.Join(errs...)
}
