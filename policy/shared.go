package policy

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/held"
	"github.com/weir-go/ratelimit/internal/merge"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/internal/wait"
	"github.com/weir-go/ratelimit/policy/internal/limits"
	"github.com/weir-go/ratelimit/policy/internal/shares"
)

// shares reports whether one of the charges is under keys' common limit.
func (d *decider) shares(c *charges) bool {
	return d.pools && slices.ContainsFunc(c.List, func(ch charge) bool { return ch.Weight > 0 })
}

// holds reports whether the stack's charges hold units until they are settled.
func (c *charges) holds() bool {
	return slices.ContainsFunc(c.List, func(ch charge) bool { return ch.Limit.Algorithm == ratelimit.AlgorithmConcurrent })
}

func (d *decider) takeShared(ctx context.Context, c *charges, cost int) (ratelimit.Decision, error) {
	if c.holds() {
		return d.stack.Take(ctx, c, cost) // Take returns the error
	}
	p := d.newPass(c, cost)
	defer p.abandon()
	p.final = true
	err := p.reserve(p.passing.From(ctx), 0, wait.Forever)
	return p.d, err
}

func (d *decider) reserveShared(ctx context.Context, c *charges, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	p := d.newPass(c, cost)
	defer p.abandon()
	return p.reservation(p.reserve(ctx, maxDelay, maxDelay))
}

// peekAgain is the maximum time until a waiting call tries the rules without
// Share again, and so notices grants, settlements and changes of limits.
const peekAgain = time.Second

func (d *decider) waitShared(ctx context.Context, c *charges, cost int) error {
	if c.holds() {
		return d.stack.Wait(ctx, c, cost) // Wait returns the error
	}
	for {
		left, err := wait.Left(ctx)
		if err != nil {
			return err
		}
		c.denied = c.denied[:0]
		again, err := d.waitOnce(ctx, c, cost, left)
		if err != nil || again == 0 {
			return err
		}
		if err := wait.Sleep(ctx, again); err != nil {
			return err
		}
	}
}

// waitOnce waits in the lines of shared limits, if the other rules allow the cost. Otherwise it returns when to try again.
func (d *decider) waitOnce(ctx context.Context, c *charges, cost int, left time.Duration) (again time.Duration, err error) {
	p := d.newPass(c, cost)
	defer p.abandon()
	res, err := p.reservation(p.reserve(p.passing.From(ctx), wait.Forever, left)) // in the line, the context bounds the wait
	switch {
	case err != nil:
		return 0, err
	case res.Allowed:
		return 0, res.Wait(wait.Charged(ctx))
	case p.byPool: // the call found no place in the line
		return 0, fmt.Errorf("policy: %w: there is no room in the line of %v", ratelimit.ErrLimited, res.Limit)
	case res.RetryAfter > left:
		return 0, &ratelimit.LateError{Package: "policy", Limit: res.Limit, After: res.RetryAfter, Reason: context.DeadlineExceeded}
	case res.RetryAfter <= 0:
		return 0, fmt.Errorf("policy: %w: cost %d is denied under %v, without a time to wait for", ratelimit.ErrLimited, cost, res.Limit)
	}
	return min(res.RetryAfter, peekAgain), nil
}

// sharedPass is one decision of the stack and then, if the stack allows the cost, of the shared limits, one after
// the other. When it ends without being done, for example because a limiter panics, its charges are given back.
type sharedPass struct {
	decider *decider
	c       *charges
	cost    int
	began   time.Time
	final   bool // whether the charges are never settled

	d       ratelimit.Decision
	sum     merge.Sum[ratelimit.Limit]
	stack   *ratelimit.Reservation // the charges of rules whose keys have their own budgets; nil if there are none
	held    []pooled
	byPool  bool             // whether a shared limit has denied it
	passing optional.Passing // the context of a charge without a settlement
	done    bool
}

// pooled is a charge of a shared limit.
type pooled struct {
	charge charge
	pool   *shares.Pool
	real   func() int             // returns the real cost, if the rule settles; else nil
	own    bool                   // whether the cost is the rule's own
	res    *ratelimit.Reservation // nil if the charge is final
}

func (d *decider) newPass(c *charges, cost int) *sharedPass {
	p := &sharedPass{decider: d, c: c, cost: cost, began: time.Now()}
	p.sum = merge.Of((*merge.Decision[ratelimit.Limit])(&p.d), ratelimit.Unlimited())
	return p
}

// reserve charges all rules or none, and fills in the decision. Delay bounds the time in line, and queue the delay of leaky buckets.
func (p *sharedPass) reserve(ctx context.Context, delay, queue time.Duration) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("policy: %w", err)
	}
	if err := p.reserveStack(ctx, queue); err != nil || !p.d.Allowed {
		return err
	}
	for _, i := range p.pooled(false) {
		err := p.reservePooled(ctx, &p.c.List[i], delay)
		if err != nil {
			return errors.Join(err, p.giveBack())
		}
		if !p.d.Allowed {
			p.byPool = true
			_ = p.giveBack() // if a charge stays spent, the denial still has no error
			return nil
		}
	}
	for _, i := range p.pooled(true) {
		p.reserveShadow(ctx, &p.c.List[i])
	}
	p.d.Delay = max(0, p.d.Delay-time.Since(p.began)) // the delay passes while the call stands in line
	p.done = true
	return nil
}

// pooled returns the indices of shared limits' charges: the shadows' or the others'.
func (p *sharedPass) pooled(shadow bool) (which []int) {
	for i := range p.c.List {
		if ch := &p.c.List[i]; ch.Weight > 0 && p.decider.rules[ch.Rule].Shadow == shadow {
			which = append(which, i)
		}
	}
	return which
}

// reserveStack charges the rules whose keys have their own budgets.
func (p *sharedPass) reserveStack(ctx context.Context, queue time.Duration) error {
	if !slices.ContainsFunc(p.c.List, func(ch charge) bool { return ch.Weight == 0 }) {
		return nil
	}
	res, err := p.decider.stack.Reserve(ctx, p.c, p.cost, queue)
	var answer ratelimit.Decision
	if res != nil {
		answer = res.Decision
	}
	if err != nil || !answer.Allowed {
		p.d, p.done = answer, true
		p.d.Allowed = false
		return err
	}
	p.stack = res
	p.sum.Add((*merge.Decision[ratelimit.Limit])(&answer), answer.Remaining)
	return nil
}

// reservePooled charges a shared limit. If the limit denies, its denial is the whole decision.
func (p *sharedPass) reservePooled(ctx context.Context, ch *charge, delay time.Duration) error {
	x, d, err := p.charge(ctx, ch, delay)
	d.Limit = limitOr(d.Limit, *ch.Limit)
	p.c.answer(ch.Rule, &d, d.Allowed && err == nil && ch.Cost > 0, err)
	if err == nil && d.Allowed {
		p.held = append(p.held, x)
		p.sum.Add((*merge.Decision[ratelimit.Limit])(&d), limits.Room(&d, x.own, x.charge.Cost))
		return nil
	}
	if !p.sum.Empty() {
		// The earlier rules have room for the cost given back to them.
		if before := p.d.Remaining; before < d.Remaining-p.cost {
			d.Remaining = before + p.cost
		}
		d.ResetAfter = max(d.ResetAfter, p.d.ResetAfter) // by then the earlier budgets are full, too
		d.Degraded = d.Degraded || p.d.Degraded
	}
	d.Allowed, d.Delay = false, 0
	p.d = d
	return err
}

// charge charges a shared limit.
func (p *sharedPass) charge(ctx context.Context, ch *charge, delay time.Duration) (x pooled, d ratelimit.Decision, err error) {
	r := p.decider.rules[ch.Rule]
	x = pooled{charge: *ch, pool: r.pool, own: ch.Fixed}
	if r.settles() {
		x.real = func() int { return p.c.real(r, ch) }
	}
	if delay != wait.Forever {
		delay = max(0, delay-time.Since(p.began))
	}
	err = r.pool.Call(ch.Key, ch.Tariff, func(l shares.Limiter) error {
		var err error
		if p.final && delay == 0 && p.isLast(ch) { // the charge need not be settled
			d, err = l.Take(ctx, ch.Key, ch.Cost)
			return err
		}
		if x.res, err = l.Reserve(ctx, ch.Key, ch.Cost, delay); x.res != nil {
			d = x.res.Decision
		}
		return err
	})
	return x, d, err
}

// isLast reports whether this is the last charge that may deny. It then need not be given back.
func (p *sharedPass) isLast(ch *charge) bool {
	if p.decider.rules[ch.Rule].Shadow {
		return true
	}
	which := p.pooled(false)
	return &p.c.List[which[len(which)-1]] == ch
}

// reserveShadow charges the shared limit of a shadow rule.
func (p *sharedPass) reserveShadow(ctx context.Context, ch *charge) {
	x, d, err := p.charge(ctx, ch, 0)
	d.Limit = limitOr(d.Limit, *ch.Limit)
	p.c.answer(ch.Rule, &d, d.Allowed && err == nil && ch.Cost > 0, err)
	if err == nil && d.Allowed {
		p.held = append(p.held, x)
	}
}

func limitOr(l, other ratelimit.Limit) ratelimit.Limit {
	if l.Algorithm == 0 {
		return other
	}
	return l
}

// reservation returns all charges' reservation, for the real cost to be settled.
func (p *sharedPass) reservation(err error) (*ratelimit.Reservation, error) {
	if err != nil || !p.d.Allowed {
		return ratelimit.NewReservation(p.d, nil), err
	}
	stack, all := p.stack, p.held
	res := ratelimit.NewReservation(p.d, func(actual int) error { return settleShared(stack, all, actual) })
	if hold := held.Hold(stack); hold > 0 {
		held.Extend(res, hold, stack.Extend)
	}
	return res, nil
}

// settleShared settles all rules' charges. The rule's own cost stays, unless nothing was done.
func settleShared(stack *ratelimit.Reservation, all []pooled, actual int) error {
	var errs []error
	for i := range slices.Backward(all) {
		x := &all[i]
		real := actual
		switch {
		case actual == 0:
		case x.real != nil:
			real = x.real()
		case x.own:
			real = x.charge.Cost
		}
		errs = append(errs, x.pool.Call(x.charge.Key, x.charge.Tariff, func(shares.Limiter) error { return x.res.Settle(real) }))
	}
	return errors.Join(append(errs, stack.Settle(actual))...)
}

// giveBack gives all charges back. It returns an error if a charge stays spent.
func (p *sharedPass) giveBack() error {
	p.done = true
	for i := range p.c.results {
		if r := &p.c.results[i]; r.Spent {
			r.Spent = false
			r.Decision.Remaining = min(r.Decision.Remaining+p.c.List[i].Cost, r.Decision.Limit.Capacity())
		}
	}
	return settleShared(p.stack, p.held, 0)
}

// abandon gives back the charges of a pass after a panic.
func (p *sharedPass) abandon() {
	if !p.done {
		_ = p.giveBack()
	}
}

// peekShared is peek if some charges are of shared limits.
func (d *decider) peekShared(ctx context.Context, c *charges, cost int) (ratelimit.Decision, error) {
	p := d.newPass(c, cost)
	if slices.ContainsFunc(c.List, func(ch charge) bool { return ch.Weight == 0 }) {
		standing, err := d.peekStack(ctx, c, cost)
		if err != nil {
			return standing, err
		}
		p.sum.Add((*merge.Decision[ratelimit.Limit])(&standing), standing.Remaining)
	}
	for i := range c.List {
		ch := &c.List[i]
		r := d.rules[ch.Rule]
		if ch.Weight == 0 || r.Shadow && !c.Bare {
			continue
		}
		x := pooled{charge: *ch, own: ch.Fixed && !c.Bare}
		if !x.own {
			x.charge.Cost = cost
		}
		var standing ratelimit.Decision
		err := r.pool.Call(ch.Key, ch.Tariff, func(l shares.Limiter) (err error) {
			standing, err = ratelimit.Peek(ctx, ratelimit.Limiter[string](l), ch.Key, x.charge.Cost)
			return err
		})
		if err != nil {
			standing.Limit = limitOr(standing.Limit, *ch.Limit)
			return standing, err
		}
		p.sum.Add((*merge.Decision[ratelimit.Limit])(&standing), limits.Room(&standing, x.own, x.charge.Cost))
	}
	if p.d.Remaining == math.MaxInt {
		p.d.Remaining = p.d.Limit.Capacity()
	}
	return p.d, nil
}

// adjustShared is adjust if some charges are under shared limits. If one of those cannot be adjusted, nothing is.
func (d *decider) adjustShared(ctx context.Context, c *charges, delta int) error {
	own := false
	for i := range c.List {
		ch := &c.List[i]
		if own = own || ch.Weight == 0; ch.Weight > 0 && !optional.CanAdjust[string](d.limiters[ch.Rule]) {
			return optional.Unsupported("policy", d.limiters[ch.Rule], "Adjust")
		}
	}
	var errs []error
	if own {
		errs = append(errs, d.of(c).Adjust(ctx, c, delta))
	}
	for i := range c.List {
		ch := &c.List[i]
		if r := d.rules[ch.Rule]; ch.Weight > 0 && (c.Bare || !r.Shadow && !r.ownCost) {
			errs = append(errs, r.pool.Call(ch.Key, ch.Tariff, func(l shares.Limiter) error {
				return ratelimit.Adjust(ctx, ratelimit.Limiter[string](l), ch.Key, delta)
			}))
		}
	}
	return errors.Join(errs...)
}
