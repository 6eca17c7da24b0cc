// Package chain combines several limiters, such as one in memory and one on a server. It calls one
// after the other, and charges all or none. Within one process [ratelimit.All] is exact and faster.
//
//	limiter, err := chain.New[string](local, remote)
package chain

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/follow"
	"github.com/weir-go/ratelimit/internal/held"
	"github.com/weir-go/ratelimit/internal/merge"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/internal/turns"
)

// Limiter calls several limiters in turn. Make one with [New]. It is safe for concurrent use if they are. Methods of the zero Limiter
// panic.
type Limiter[R any] struct {
	limiters    []ratelimit.Reserver[R]
	lines       turns.Lines[any]
	failed      atomic.Uint64 // charges not given back because of errors
	lastFailure atomic.Pointer[error]
}

var _ ratelimit.Reserver[string] = (*Limiter[string])(nil)

// New returns a limiter that calls limiters in order until one denies or fails. It then gives back the earlier ones'
// charges. Until then these charges may deny other requests. It is an error if there are no limiters, or one is nil.
//
// A leaky bucket belongs last: elsewhere it denies requests instead
// of delaying them. Decisions are merged as in [ratelimit.Layered].
func New[R any](limiters ...ratelimit.Reserver[R]) (*Limiter[R], error) {
	if len(limiters) == 0 {
		return nil, errors.New("chain: New needs at least one limiter")
	}
	for i, l := range limiters {
		if optional.IsNil(l) {
			return nil, optional.Nil(fmt.Sprintf("chain: New: limiters[%d]", i))
		}
	}
	return &Limiter[R]{limiters: append([]ratelimit.Reserver[R](nil), limiters...)}, nil
}

// all returns the limiters, and panics for the zero Limiter.
func (c *Limiter[R]) all() []ratelimit.Reserver[R] {
	if c == nil || len(c.limiters) == 0 {
		panic(optional.Zero("chain", "Limiter", "New"))
	}
	return c.limiters
}

// Describe returns all limiters' limits in order, with the zero Limit for a limiter whose
// limits are unknown. BooksAhead is the last limiter's if all others are [ratelimit.Unlimited];
// otherwise it is false. ReplacesCost is true if it is true for any limiter.
func (c *Limiter[R]) Describe() ratelimit.Description {
	d := ratelimit.Description{BooksAhead: c.booksAhead()}
	for _, l := range c.all() {
		of := ratelimit.Describe(l)
		d.Limits = optional.AppendLimits(d.Limits, of.Limits)
		d.ReplacesCost, d.Holds = d.ReplacesCost || of.ReplacesCost, d.Holds || of.Holds
	}
	return d
}

// booksAhead reports whether the last limiter may book ahead, and all before it are [ratelimit.Unlimited].
func (c *Limiter[R]) booksAhead() bool {
	last := len(c.all()) - 1
	for _, l := range c.limiters[:last] {
		limits := ratelimit.Describe(l).Limits
		for _, limit := range limits {
			if limit.Algorithm != ratelimit.AlgorithmUnlimited {
				return false
			}
		}
		if len(limits) == 0 {
			return false
		}
	}
	return ratelimit.Describe(c.limiters[last]).BooksAhead
}

// Stats counts failures since New.
type Stats struct {
	FailedGiveBacks uint64 // charges not given back because of errors: they stay spent
	LastFailure     error  // the latest failure
}

// Stats returns the counts.
func (c *Limiter[R]) Stats() Stats {
	c.all() // all panics for the zero Limiter
	s := Stats{FailedGiveBacks: c.failed.Load()}
	if err := c.lastFailure.Load(); err != nil {
		s.LastFailure = *err
	}
	return s
}

// Allow is Take without details. An error counts as a denial.
func (c *Limiter[R]) Allow(r R, cost int) bool {
	d, _ := c.Take(context.Background(), r, cost)
	return d.Allowed
}

// Take charges the cost to all limiters, or to none. It returns their errors.
func (c *Limiter[R]) Take(ctx context.Context, r R, cost int) (ratelimit.Decision, error) {
	limiters := c.all()
	last := len(limiters) - 1
	p := c.newPass(cost)
	defer p.giveBack()
	passing := p.passing.From(ctx)
	for _, l := range limiters[:last] {
		res, err := l.Reserve(passing, r, cost, 0)
		if !p.add(res, err) {
			return p.denied(ctx, r)
		}
		if held.Hold(res) > 0 {
			return ratelimit.Decision{Limit: res.Limit}, &held.NoEnd{}
		}
	}
	if d, err := limiters[last].Take(ctx, r, cost); !p.merge(&d, err) {
		return p.denied(ctx, r)
	}
	p.done = true
	return p.d, nil
}

// Reserve is Take with a charge that can be settled. A settlement settles all limiters. If the
// last limiter is a leaky bucket, it may delay the work by up to maxDelay; 0 permits no delay.
func (c *Limiter[R]) Reserve(ctx context.Context, r R, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	limiters := c.all()
	last := len(limiters) - 1
	p := c.newPass(cost)
	defer p.giveBack()
	for i, l := range limiters {
		var res *ratelimit.Reservation
		var err error
		switch {
		case i < last || maxDelay <= 0:
			res, err = l.Reserve(ctx, r, cost, 0)
		case c.booksAhead():
			res, err = l.Reserve(ctx, r, cost, maxDelay)
		default:
			res, err = reserveQueued(ctx, l, r, cost, maxDelay)
		}
		if !p.add(res, err) {
			d, err := p.denied(ctx, r)
			return ratelimit.NewReservation(d, nil), err
		}
	}
	p.done = true
	res := ratelimit.NewReservation(p.d, func(actual int) error {
		defer c.moved(r)
		return errors.Join(settleAll(p.charged, actual)...)
	})
	follow.Inner(res, p.charged[len(p.charged)-1]) // only the last limiter may delay the work
	held.Follow(res, func(ctx context.Context, r *ratelimit.Reservation) error { return r.Extend(ctx) }, p.charged...)
	return res, nil
}

// reserveQueued reserves a cost. A leaky bucket may delay it by up to maxDelay, but no limiter may book it ahead.
// So if a limiter could book, it is first called without a delay, and again with maxDelay if a leaky bucket denies.
func reserveQueued[R any](ctx context.Context, l ratelimit.Reserver[R], r R, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	if !ratelimit.Describe(l).BooksAhead {
		return l.Reserve(ctx, r, cost, maxDelay)
	}
	res, err := l.Reserve(ctx, r, cost, 0)
	if err == nil && queueDenies(res) {
		return l.Reserve(ctx, r, cost, maxDelay)
	}
	return res, err
}

// queueDenies reports whether a leaky bucket has denied a reservation.
func queueDenies(res *ratelimit.Reservation) bool {
	return res != nil && !res.Allowed && res.Limit.Algorithm == ratelimit.AlgorithmLeakyBucket
}

func (c *Limiter[R]) Peek(ctx context.Context, r R, cost int) (ratelimit.Decision, error) {
	p := c.newPass(0) // a peeking pass has no charges to give back
	for i, l := range c.all() {
		d, err := ratelimit.Peek(ctx, ratelimit.Limiter[R](l), r, cost)
		if err != nil {
			err = fmt.Errorf("chain: limiter %d: %w", i, err)
		}
		if i < len(c.limiters)-1 && d.Allowed && d.Delay > 0 { // Take would deny, because it permits no delay
			d.Allowed, d.RetryAfter, d.Delay = false, d.Delay, 0
		}
		if !p.merge(&d, err) {
			return p.denied(ctx, r)
		}
	}
	return p.d, nil
}

// Adjust adjusts the key's spending in all limiters. If one has no
// Adjust, nothing changes, and the error wraps [errors.ErrUnsupported].
func (c *Limiter[R]) Adjust(ctx context.Context, r R, delta int) error {
	defer c.moved(r)
	return c.each("Adjust", optional.CanAdjust[R], func(l ratelimit.Limiter[R]) error { return ratelimit.Adjust(ctx, l, r, delta) })
}

// Reset forgets the key in all limiters. If one has no Reset, nothing changes, and the error wraps [errors.ErrUnsupported].
func (c *Limiter[R]) Reset(ctx context.Context, r R) error {
	defer c.moved(r)
	return c.each("Reset", optional.CanReset[R], func(l ratelimit.Limiter[R]) error { return ratelimit.Reset(ctx, l, r) })
}

// each calls do for all limiters, if can is true for each.
func (c *Limiter[R]) each(what string, can func(any) bool, do func(ratelimit.Limiter[R]) error) error {
	for i, l := range c.all() {
		if !can(l) {
			return optional.Unsupported(fmt.Sprintf("chain: limiter %d", i), l, what)
		}
	}
	var errs []error
	for i, l := range c.limiters {
		if err := do(l); err != nil {
			errs = append(errs, fmt.Errorf("chain: limiter %d: %w", i, err))
		}
	}
	return errors.Join(errs...)
}

// pass is one pass over a chain's limiters. giveBack gives its charges back unless done is set, so also if a limiter panics.
type pass[R any] struct {
	chain   *Limiter[R]
	cost    int
	d       ratelimit.Decision         // the merged decision of the limiters allowing the cost
	sum     merge.Sum[ratelimit.Limit] // computes d
	end     ratelimit.Decision         // the decision of the denying or failed limiter
	err     error                      // the error returned with end
	charged []*ratelimit.Reservation
	resets  []time.Duration           // the ResetAfter of each limiter allowing the cost
	few     [4]*ratelimit.Reservation // room for charged without an allocation
	times   [4]time.Duration          // room for resets without an allocation
	passing optional.Passing          // the context of the Reserves: this pass gives their reservations back, or never settles them
	done    bool
}

func (c *Limiter[R]) newPass(cost int) *pass[R] {
	p := &pass[R]{chain: c, cost: cost}
	p.sum, p.charged = merge.Of((*merge.Decision[ratelimit.Limit])(&p.d), ratelimit.Unlimited()), p.few[:0]
	p.resets = p.times[:0]
	return p
}

// add adds one limiter's reservation, and reports whether the limiter allows the cost.
func (p *pass[R]) add(res *ratelimit.Reservation, err error) bool {
	var d ratelimit.Decision
	if res != nil {
		d = res.Decision
		p.charged = append(p.charged, res)
	}
	return p.merge(&d, err)
}

// merge adds one limiter's decision, and reports whether it allows the cost.
func (p *pass[R]) merge(d *ratelimit.Decision, err error) bool {
	if !d.Allowed || err != nil {
		p.end, p.err = *d, err
		return false
	}
	p.sum.Add((*merge.Decision[ratelimit.Limit])(d), d.Remaining)
	p.resets = append(p.resets, d.ResetAfter)
	return true
}

// denied gives the charges back, and returns the decision and the error for the caller.
func (p *pass[R]) denied(ctx context.Context, r R) (ratelimit.Decision, error) {
	p.done = true
	d := p.end
	d.Allowed, d.Delay = false, 0
	failures := p.undo()
	if !p.sum.Empty() {
		// The limiters before the denying one have room for the cost given back to them.
		if before := p.d.Remaining; before < d.Remaining-p.cost {
			d.Remaining = before + p.cost
		}
		if d.Remaining > 0 {
			d.NextAfter = 0
		}
		d.ResetAfter = p.resetAfter(ctx, r)
		d.Degraded = d.Degraded || p.d.Degraded
	}
	if errors.Is(p.err, ratelimit.ErrUnavailable) {
		p.err = errors.Join(append([]error{p.err}, failures...)...)
	}
	return d, p.err
}

// resetAfter returns the time until the budgets of all limiters up to the denying one are full.
// The earlier limiters' answers still count the charge given back. Where it may matter, resetAfter
// calls them again. If a limiter cannot decide, its answer stays: it is at or after the real time.
func (p *pass[R]) resetAfter(ctx context.Context, r R) time.Duration {
	reset := p.end.ResetAfter
	for i, with := range p.resets {
		if with > reset && len(p.charged) > 0 {
			if d, err := ratelimit.Peek(ctx, ratelimit.Limiter[R](p.chain.limiters[i]), r, 0); err == nil {
				with = min(with, d.ResetAfter)
			}
		}
		reset = max(reset, with)
	}
	return reset
}

// giveBack gives the charges back unless the pass is done, for example if a limiter has panicked.
func (p *pass[R]) giveBack() {
	if !p.done {
		p.undo()
	}
}

// undo gives the charges back, and returns the errors.
func (p *pass[R]) undo() []error {
	failures := settleAll(p.charged, 0)
	for _, err := range failures {
		p.chain.lastFailure.Store(&err)
		p.chain.failed.Add(1)
	}
	return failures
}

// settleAll settles the charges of a chain's limiters, the last one
// first. It settles all, even if one panics, and returns the errors.
func settleAll(charged []*ratelimit.Reservation, actual int) (failures []error) {
	last := len(charged) - 1
	if last < 0 {
		return nil
	}
	defer func() { failures = append(failures, settleAll(charged[:last], actual)...) }()
	if err := charged[last].Settle(actual); err != nil {
		failures = append(failures, fmt.Errorf("chain: limiter %d could not settle: %w", last, err))
	}
	return failures
}
