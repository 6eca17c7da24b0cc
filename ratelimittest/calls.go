package ratelimittest

import (
	"context"
	"errors"
	"time"

	"github.com/weir-go/ratelimit"
)

// If the engine could not decide on a call, the call may have charged its cost or not. If Config.Retries permits such
// calls, the suite reads the key's state before each possible charge and after each failed call. The difference shows
// whether the call has charged, or must be repeated. If it shows neither, the history ends and is played again.

// before returns a key's state before a possible charge. It makes no call, and
// known is false, if Config.Retries is 0 or the check counts readings of the clock.
func (p *testedKey) before() (d ratelimit.Decision, known bool) {
	if p.cfg.Retries == 0 || p.counting {
		return d, false
	}
	return p.left(), true
}

// unanswered returns a key's state after a failed call. If the state before the call is unknown, it ends the history.
func (p *testedKey) unanswered(err error, known bool) ratelimit.Decision {
	if !known {
		panic(unavailable{err})
	}
	return p.left()
}

// mayCharge reports whether a cost is above 0 and at most the limit's capacity.
func (p *testedKey) mayCharge(cost int) bool { return cost > 0 && cost <= p.limit.Capacity() }

func (p *testedKey) take(cost int) (d ratelimit.Decision, err error) {
	if !p.mayCharge(cost) {
		d, err = p.repeated("Take", cost, p.lim.Take)
	} else {
		d, err = p.decided(cost)
	}
	p.noteCall("Take", cost, d, err)
	p.reached(err)
	return d, err
}

// decided calls Take with a cost within the capacity, and again if the call fails without a charge.
func (p *testedKey) decided(cost int) (ratelimit.Decision, error) {
	before, known := p.before()
	for try := 1; ; try++ {
		d, err := p.lim.Take(p.ctx(), p.key, cost)
		p.wellFormed("Take", cost, d, err)
		if !errors.Is(err, ratelimit.ErrUnavailable) || try == maxUnavailable {
			return d, err
		}
		p.noteCall("Take", cost, d, err)
		if after := p.unanswered(err, known); p.charged(cost, before, after) {
			after.Delay = p.queue(before)
			return after, nil
		}
	}
}

// charged reports whether a failed call has charged its cost. The call must have
// charged the whole cost or nothing. If it has charged, it counts as allowed.
func (p *testedKey) charged(cost int, before, after ratelimit.Decision) bool {
	all := after.Remaining == before.Remaining-cost
	p.must(all || after == before, chargesNothing, "a call for cost %d was not answered; before, the key answers %s, and after that %s",
		cost, described(before, nil), described(after, nil))
	return all
}

// queue returns the delay of a request entering a leaky bucket in the given state.
func (p *testedKey) queue(before ratelimit.Decision) time.Duration {
	if p.limit.Algorithm != ratelimit.AlgorithmLeakyBucket || before.Remaining == p.limit.Capacity() {
		return 0
	}
	return before.ResetAfter
}

// allow calls Allow. If Config.Retries permits failures and the cost fits,
// it calls again after false, because Allow cannot return the reason.
func (p *testedKey) allow(cost int) bool {
	var before ratelimit.Decision
	known := false
	if p.mayCharge(cost) {
		before, known = p.before()
	}
	fits := cost == 0 && p.cfg.Retries > 0 || known && cost <= before.Remaining
	ok := p.lim.Allow(p.key, cost)
	for try := 1; !ok && fits && try < maxUnavailable; try++ {
		p.note("Allow(%s, %d): %v, though it fits", p.shown(), cost, ok)
		ok = known && p.charged(cost, before, p.left()) || p.lim.Allow(p.key, cost)
	}
	p.note("Allow(%s, %d): %v", p.shown(), cost, ok)
	return ok
}

func (p *testedKey) peek(cost int) (ratelimit.Decision, error) {
	d, err := p.repeated("Peek", cost, p.has.peek)
	p.noteCall("Peek", cost, d, err)
	p.reached(err)
	return d, err
}

// repeated makes an uncharged call, and repeats it until the engine can decide.
func (p *testedKey) repeated(name string, cost int, call func(context.Context, string, int) (ratelimit.Decision, error)) (d ratelimit.Decision, err error) {
	err = again(func() (err error) {
		d, err = call(p.ctx(), p.key, cost)
		p.wellFormed(name, cost, d, err)
		return err
	})
	return d, err
}

// again repeats a call until the engine can decide, up to maxUnavailable times. Repeating it must have no further effect.
func again(call func() error) (err error) {
	for range maxUnavailable {
		if err = call(); !errors.Is(err, ratelimit.ErrUnavailable) {
			break
		}
	}
	return err
}

// reserve makes a reservation. The context is for this call only: it has ended when the reservation is settled.
func (p *testedKey) reserve(cost int, maxDelay time.Duration) *ratelimit.Reservation {
	ctx, end := context.WithCancel(p.ctx())
	defer end()
	before, known := p.before()
	known = known && (before.Remaining > 0 || maxDelay <= 0) // otherwise a booking would not change the figures
	for try := 1; ; try++ {
		r, err := p.has.reserver.Reserve(ctx, p.key, cost, maxDelay)
		p.must(r != nil, reserveIsTrue, "Reserve returns nil")
		p.note("Reserve(%s, %d, %v): %s", p.name, cost, maxDelay, described(r.Decision, err))
		p.wellFormed("Reserve", cost, r.Decision, err)
		if errors.Is(err, ratelimit.ErrUnavailable) && try < maxUnavailable && (cost == 0 || p.unanswered(err, known) == before) {
			continue
		}
		p.reached(err)
		p.must(err == nil, reserveIsTrue, "Reserve of cost %d fails: %v", cost, err)
		p.must(!r.Allowed || r.Delay <= max(0, maxDelay), reserveIsTrue, "Delay is %v, above maxDelay %v", r.Delay, maxDelay)
		return r
	}
}

func (p *testedKey) settle(r *ratelimit.Reservation, actual int) {
	err := r.Settle(actual)
	p.note("Settle(%s, %d): %v", p.name, actual, err)
	p.reached(err)
	p.must(err == nil, settleIsTrue, "Settle at %d fails: %v", actual, err)
}

func (p *testedKey) adjust(delta int) {
	before, known := p.before()
	known = known && before.Remaining > 0 // otherwise a change of the debt might not change the figures
	for try := 1; ; try++ {
		err := p.has.adjust(p.ctx(), p.key, delta)
		p.note("Adjust(%s, %+d): %v", p.name, delta, err)
		if errors.Is(err, ratelimit.ErrUnavailable) && try < maxUnavailable {
			if p.unanswered(err, known) == before {
				continue
			}
			return
		}
		p.reached(err)
		p.must(err == nil, adjustIsTrue, "Adjust by %d fails: %v", delta, err)
		return
	}
}

// spend calls Take with a cost that must be allowed.
func (p *testedKey) spend(cost int) ratelimit.Decision {
	d, err := p.take(cost)
	if err != nil || !d.Allowed {
		p.fail(exact, "cost %d fits and is not allowed: %s", cost, described(d, err))
	}
	return d
}

// left returns the key's state, and spends nothing.
func (p *testedKey) left() ratelimit.Decision {
	d, err := p.take(0)
	if err != nil || !d.Allowed {
		p.fail(chargesNothing, "a cost of 0 is not allowed: %s", described(d, err))
	}
	return d
}

// wellFormed checks the rules for all results, whatever the key's state.
func (p *testedKey) wellFormed(call string, cost int, d ratelimit.Decision, err error) {
	switch {
	case err != nil && d.Allowed:
		p.fail(chargesNothing, "%s allows cost %d with the error %v", call, cost, err)
	case err != nil && d.RetryAfter != 0:
		p.fail(retryAfterIsTrue, "%s says %v, but RetryAfter is %v", call, err, d.RetryAfter)
	case err != nil:
	case d.Limit != p.limit:
		p.fail(namesItsLimit, "%s answers for the limit %q", call, d.Limit)
	case d.Allowed != (d.RetryAfter <= 0):
		p.fail(retryAfterIsTrue, "%s of cost %d: Allowed is %v and RetryAfter %v", call, cost, d.Allowed, d.RetryAfter)
	case d.Remaining < 0 || d.Remaining > p.limit.Capacity():
		p.fail(remainingIsTrue, "Remaining is %d, of a capacity of %d", d.Remaining, p.limit.Capacity())
	case !p.isSpan(d.RetryAfter):
		p.fail(retryAfterIsTrue, "RetryAfter is %v", d.RetryAfter)
	case !p.isSpan(d.ResetAfter):
		p.fail(resetAfterIsTrue, "ResetAfter is %v", d.ResetAfter)
	case !p.isSpan(d.NextAfter) || d.Remaining > 0 && d.NextAfter > 0:
		p.fail(nextAfterIsTrue, "NextAfter is %v, and Remaining %d", d.NextAfter, d.Remaining)
	case !p.isSpan(d.Delay) || !d.Allowed && d.Delay != 0:
		p.fail(boundHolds, "Delay is %v, Allowed %v", d.Delay, d.Allowed)
	}
}

// isSpan reports whether the engine can represent d.
func (h *history) isSpan(d time.Duration) bool { return d >= 0 && d%h.cfg.Resolution == 0 }

// errs checks that Take returns the error and Allow returns false.
func (p *testedKey) errs(target error, cost int) {
	_, err := p.take(cost)
	p.must(errors.Is(err, target), chargesNothing, "cost %d: the error is %v, want %q", cost, err, target)
	p.must(!p.allow(cost), chargesNothing, "cost %d is allowed", cost)
}

func (p *testedKey) reset() {
	err := again(func() error { return p.has.reset(p.ctx(), p.key) })
	p.note("Reset(%s): %v", p.name, err)
	p.reached(err)
	p.must(err == nil, resetForgets, "Reset fails: %v", err)
}

// set sets another limit, without a decision on the key. If the engine does not support the limit, the history ends.
func (p *testedKey) set(l ratelimit.Limit) {
	if !p.cfg.accepts(l) {
		panic(enough{})
	}
	err := again(func() error { return p.has.setLimit(p.ctx(), l) })
	p.note("SetLimit(%v): %v", l, err)
	p.reached(err)
	p.must(err == nil, spentStays, "SetLimit(%v) fails: %v", l, err)
	p.limit = l
}

func (p *testedKey) sweep() {
	p.note("Sweep(%s): %d", p.name, p.has.sweep())
}
