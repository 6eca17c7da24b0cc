package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit/internal/ctxwait"
	"github.com/weir-go/ratelimit/internal/nilcheck"
	"github.com/weir-go/ratelimit/internal/tally"
)

// Chained asks several limiters of any kind in turn. Make one with [Chain]. It is as
// safe for concurrent use as they are. The zero Chained cannot be used: its methods
// panic.
type Chained[R any] struct {
	limiters    []Reserver[R]
	failed      atomic.Uint64 // give-backs that failed
	lastFailure atomic.Pointer[error]
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
// Reserve does the same, and a leaky bucket that comes last may delay by up to maxDelay.
// Nothing is booked ahead: a limiter that is charged now would hold for work that starts
// later, when another limiter has room. Only behind limiters that are [Unlimited] the last
// one books as it does alone.
//
// A limiter gives back what [Reservation.Settle] can give back; the rest stays spent. So each
// request that a slow limiter is about to deny costs a token bucket before it what that regains
// meanwhile: n of them at once cost it up to n times its rate. A
// denial stays a denial if giving back fails, and so does an error about the call: the
// failure is counted and told by [Chained.Stats]. It is joined with an error that wraps
// [ErrUnavailable], which says that nothing was decided.
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
		if nilcheck.IsNil(l) {
			return nil, fmt.Errorf("ratelimit: limiter %d of Chain is nil", i)
		}
	}
	return &Chained[R]{limiters: append([]Reserver[R](nil), limiters...)}, nil
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
		if told := limitsOf(l); told != nil {
			limits = append(limits, told...)
		} else {
			limits = append(limits, Limit{})
		}
	}
	return limits
}

// BooksAhead reports whether Reserve may charge budget that is still to come, as far as is
// known: whether the last limiter may, and those before it are [Unlimited].
func (c *Chained[R]) BooksAhead() bool {
	last := len(c.all()) - 1
	for _, l := range c.limiters[:last] {
		limits := limitsOf(l)
		for _, limit := range limits {
			if limit.Algorithm != AlgorithmUnlimited {
				return false
			}
		}
		if len(limits) == 0 {
			return false
		}
	}
	return booksAhead(c.limiters[last])
}

// booksAhead reports whether a Reserver may book budget that is still to come, as far as it tells.
func booksAhead[R any](l Reserver[R]) bool {
	b, ok := l.(Booker)
	return !ok || b.BooksAhead()
}

// limitsOf returns the limits that a limiter tells, nil if it tells none.
func limitsOf[R any](l Reserver[R]) []Limit {
	if teller, ok := l.(LimitLister); ok {
		return teller.Limits()
	}
	return nil
}

// ChainStats tells what went wrong in a [Chained].
type ChainStats struct {
	// FailedGiveBacks counts the charges that a limiter failed to give back, because
	// another one had denied the request or had failed: they stay spent. What the caller
	// settles is not counted: [Reservation.Settle] returns that error.
	FailedGiveBacks uint64
	// LastFailure says why the last of them failed, nil if none did.
	LastFailure error
}

// Stats returns the counts.
func (c *Chained[R]) Stats() ChainStats {
	s := ChainStats{FailedGiveBacks: c.failed.Load()}
	if err := c.lastFailure.Load(); err != nil {
		s.LastFailure = *err
	}
	return s
}

// Allow charges the cost to all limiters and reports true; or it gives back what it
// charged and reports false.
func (c *Chained[R]) Allow(r R, cost int) bool {
	d, _ := c.Take(context.Background(), r, cost)
	return d.Allowed
}

// Take charges the cost to all limiters, or gives back what it charged. The errors are
// those of the limiters.
func (c *Chained[R]) Take(ctx context.Context, r R, cost int) (Decision, error) {
	limiters := c.all()
	last := len(limiters) - 1
	run := c.newRun(cost)
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

// Reserve is Take with a charge that can be settled, in all limiters. A leaky bucket that
// comes last may delay by up to maxDelay. Settle settles all limiters, and returns the
// errors of those that failed, joined.
func (c *Chained[R]) Reserve(ctx context.Context, r R, cost int, maxDelay time.Duration) (*Reservation, error) {
	limiters := c.all()
	last := len(limiters) - 1
	run := c.newRun(cost)
	defer run.giveBack()
	for i, l := range limiters {
		var res *Reservation
		var err error
		switch {
		case i < last || maxDelay <= 0:
			res, err = l.Reserve(ctx, r, cost, 0)
		case c.BooksAhead():
			res, err = l.Reserve(ctx, r, cost, maxDelay)
		default:
			res, err = reserveQueued(ctx, l, r, cost, maxDelay)
		}
		if !run.add(res, err) {
			d, err := run.denied()
			return NewReservation(d, nil), err
		}
	}
	run.done = true
	return NewReservation(run.d, func(actual int) error { return errors.Join(settleAll(run.charged, actual)...) }), nil
}

// reserveQueued reserves a cost that a leaky bucket may delay by up to maxDelay, and that no
// limiter books ahead. It asks a second time if a leaky bucket has denied the first.
func reserveQueued[R any](ctx context.Context, l Reserver[R], r R, cost int, maxDelay time.Duration) (*Reservation, error) {
	if !booksAhead(l) {
		return l.Reserve(ctx, r, cost, maxDelay)
	}
	res, err := l.Reserve(ctx, r, cost, 0)
	if err == nil && res != nil && !res.Allowed && res.Limit.Algorithm == AlgorithmLeakyBucket {
		return l.Reserve(ctx, r, cost, maxDelay)
	}
	return res, err
}

// Wait charges the cost to all limiters and returns nil when they allow it. It is not
// first come, first served: it books nothing ahead, since the work would start later than
// some limiters were charged, but sleeps [Decision.RetryAfter] and tries again. A leaky
// bucket that comes last holds the work, and the limiters before it are charged meanwhile.
// For a chain of one limiter, Wait is the package's [Wait] on that one.
//
// It fails at once, with an error that wraps [context.DeadlineExceeded], if a limiter
// denies the cost until after the deadline; with the context's error if that ends; with one
// that wraps [ErrLimited] if a limiter denies without a time to wait for; and with the
// errors of the limiters. A Wait that fails has given back what it charged.
func (c *Chained[R]) Wait(ctx context.Context, r R, cost int) error {
	ctx = orBackground(ctx)
	switch {
	case len(c.all()) == 1:
		return Wait(ctx, c.limiters[0], r, cost)
	case c.BooksAhead():
		return waitByReserve(ctx, c, r, cost)
	}
	for {
		left, err := ctxwait.Left(ctx)
		if err != nil {
			return err
		}
		res, err := c.Reserve(ctx, r, cost, left)
		if err != nil {
			return err
		}
		retry := res.RetryAfter
		if !res.Allowed && res.Limit.Algorithm == AlgorithmLeakyBucket && left != ctxwait.Forever {
			// RetryAfter says when the queue would be as long as what is left now, and less is left
			// then. Without a delay it says when the work could leave the queue.
			if res, err = c.Reserve(ctx, r, cost, 0); err != nil {
				return err
			}
		}
		switch {
		case res.Allowed:
			return res.Wait(ctx)
		case left != ctxwait.Forever || res.RetryAfter <= 0:
			if err := inTime(res, cost, left); err != nil {
				return err
			}
		}
		if err := ctxwait.Sleep(ctx, retry); err != nil {
			return err
		}
	}
}

// Peek says what Take would answer. Remaining and ResetAfter are what they are before anything
// is spent. The errors are those of the limiters; of one that has no Peek it wraps
// [errors.ErrUnsupported].
func (c *Chained[R]) Peek(ctx context.Context, r R, cost int) (Decision, error) {
	run := c.newRun(0) // which gives nothing back, since it charges nothing
	for i, l := range c.all() {
		d, err := Peek(ctx, Limiter[R](l), r, cost)
		if err != nil {
			err = fmt.Errorf("ratelimit: limiter %d of Chain: %w", i, err)
		}
		if i < len(c.limiters)-1 && d.Allowed && d.Delay > 0 { // Take asks it by Reserve, without a delay
			d.Allowed, d.RetryAfter, d.Delay = false, d.Delay, 0
		}
		if !run.merge(&d, err) {
			return run.denied()
		}
	}
	return run.d, nil
}

// Adjust adjusts the key in all limiters: see [Keyed.Adjust]. If one of them has no Adjust, nothing
// changes, and the error wraps [errors.ErrUnsupported]. Else it joins the errors of those that
// failed.
func (c *Chained[R]) Adjust(ctx context.Context, r R, delta int) error {
	return c.each("Adjust", canAdjust, func(l Limiter[R]) error { return Adjust(ctx, l, r, delta) })
}

// Reset forgets the key in all limiters: see [Keyed.Reset]. The errors are as those of Adjust.
func (c *Chained[R]) Reset(ctx context.Context, r R) error {
	return c.each("Reset", canReset, func(l Limiter[R]) error { return Reset(ctx, l, r) })
}

// each does something in all limiters, if all of them can.
func (c *Chained[R]) each(what string, can func(Limiter[R]) bool, do func(Limiter[R]) error) error {
	for i, l := range c.all() {
		if !can(l) {
			return fmt.Errorf("ratelimit: limiter %d of Chain: %w", i, unsupported(l, what))
		}
	}
	var errs []error
	for i, l := range c.limiters {
		if err := do(l); err != nil {
			errs = append(errs, fmt.Errorf("ratelimit: limiter %d of Chain: %w", i, err))
		}
	}
	return errors.Join(errs...)
}

// ReplacesCost reports whether one of the limiters may charge another cost than the caller's.
func (c *Chained[R]) ReplacesCost() bool {
	for _, l := range c.all() {
		if replacesCost(l) {
			return true
		}
	}
	return false
}

// chainRun is one pass over the limiters of a chain. What it has charged by the time it
// ends is given back, unless it is done: also if one of the limiters panics.
type chainRun[R any] struct {
	chain   *Chained[R]
	cost    int
	d       Decision         // of all that have allowed the cost
	sum     tally.Sum[Limit] // which adds it up
	end     Decision         // of the one that has not
	err     error            // that came with it
	charged []*Reservation
	few     [4]*Reservation // the memory of charged, for as long as that is enough
	done    bool
}

func (c *Chained[R]) newRun(cost int) *chainRun[R] {
	run := &chainRun[R]{chain: c, cost: cost}
	run.sum, run.charged = sumOf(&run.d), run.few[:0]
	return run
}

// add takes one limiter's reservation in, and reports whether it is allowed.
func (run *chainRun[R]) add(res *Reservation, err error) bool {
	var d Decision
	if res != nil {
		d = res.Decision
		run.charged = append(run.charged, res)
	}
	return run.merge(&d, err)
}

// merge takes one limiter's decision in, and reports whether it allows the cost.
func (run *chainRun[R]) merge(d *Decision, err error) bool {
	if !d.Allowed || err != nil {
		run.end, run.err = *d, err
		return false
	}
	run.sum.Add((*tally.Decision[Limit])(d), d.Remaining)
	return true
}

// denied gives back what was charged, and returns the answer.
func (run *chainRun[R]) denied() (Decision, error) {
	run.done = true
	d := run.end
	d.Allowed, d.Delay = false, 0
	if !run.sum.Empty() {
		// The limiters before it have room for the cost that they get back.
		if before := run.d.Remaining; before < d.Remaining-run.cost {
			d.Remaining = before + run.cost
		}
		d.ResetAfter = max(d.ResetAfter, run.d.ResetAfter)
		d.Degraded = d.Degraded || run.d.Degraded
	}
	failures := run.undo()
	if errors.Is(run.err, ErrUnavailable) {
		run.err = errors.Join(append([]error{run.err}, failures...)...)
	}
	return d, run.err
}

// giveBack gives back what was charged if a limiter has panicked.
func (run *chainRun[R]) giveBack() {
	if !run.done {
		run.undo()
	}
}

// undo gives back what was charged, and returns what has failed.
func (run *chainRun[R]) undo() []error {
	failures := settleAll(run.charged, 0)
	for _, err := range failures {
		run.chain.lastFailure.Store(&err)
		run.chain.failed.Add(1)
	}
	return failures
}

// settleAll settles what the limiters of a chain have charged, the last first, and each
// of them whatever becomes of the others. It returns what has failed.
func settleAll(charged []*Reservation, actual int) (failures []error) {
	for i := len(charged) - 1; i >= 0; i-- {
		if err := charged[i].Settle(actual); err != nil {
			failures = append(failures, fmt.Errorf("ratelimit: limiter %d of Chain could not settle: %w", i, err))
		}
	}
	return failures
}
