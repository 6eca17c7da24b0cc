package ratelimittest

import (
	"errors"
	"math"
	"time"

	"github.com/weir-go/ratelimit"
)

// unsettle brings a key into some state, with whatever the limiter can do.
func (p *party) unsettle() {
	d := p.left()
	for range 1 + p.rng.IntN(8) {
		d = p.stir(d)
		p.pause(d)
	}
}

func (p *party) stir(d ratelimit.Decision) ratelimit.Decision {
	switch cost := p.cost(d.Remaining); {
	case p.chance(6) && p.has.adjust != nil:
		p.adjust(p.correction())
	case p.chance(4) && p.has.reserver != nil:
		p.book(cost)
	case p.chance(4):
		p.allow(cost)
	default:
		d, _ = p.take(cost)
		return d
	}
	return p.left()
}

// correction is a grant or a charge, of which some lead into debt.
func (p *party) correction() int {
	return p.rng.IntN(2*min(p.limit.Capacity(), 1<<20)+1) - min(p.limit.Capacity(), 1<<20)
}

// book reserves, and sometimes settles a part or more than all of it.
func (p *party) book(cost int) {
	r := p.reserve(cost, p.upto(min(2*p.limit.Rate.Per, year)))
	if r.Allowed && p.chance(2) {
		p.settle(r, 1+p.rng.IntN(min(cost, math.MaxInt/3)*3/2+1))
	}
}

// playRetryAfter asks for costs until one is denied, and probes what that denial said.
func playRetryAfter(h *history) {
	p := h.party()
	p.unsettle()
	for range 8 {
		cost := p.cost(p.left().Remaining)
		d, err := p.take(cost)
		p.must(err == nil, chargesNothing, "cost %d is within the capacity: %v", cost, err)
		if !d.Allowed {
			p.probeRetry(cost, d.RetryAfter)
			return
		}
	}
}

func (p *party) probeRetry(cost int, after time.Duration) {
	unit := p.cfg.Resolution
	p.advance(after - unit)
	d, _ := p.take(cost)
	p.must(!d.Allowed, retryAfterIsTrue, "RetryAfter was %v, and cost %d is allowed %v before", after, cost, unit)
	p.must(d.RetryAfter == unit, retryAfterIsTrue, "RetryAfter was %v, and %v before it is %v", after, unit, d.RetryAfter)
	p.advance(unit)
	d, err := p.take(cost)
	p.must(d.Allowed, retryAfterIsTrue, "RetryAfter was %v, and then cost %d is not allowed: %s", after, cost, described(d, err))
}

// playLarger asks for a larger cost after a smaller one was denied often, and the other way
// round: each has a time of its own.
func playLarger(h *history) {
	p := h.party()
	p.unsettle()
	left, capacity := p.left().Remaining, p.limit.Capacity()
	if left == capacity {
		return
	}
	small := left + 1
	large := min(capacity, []int{capacity, small + 1, small + p.rng.IntN(capacity-left)}[p.rng.IntN(3)])
	p.hammer(small)
	d, _ := p.take(large)
	p.must(!d.Allowed, boundHolds, "%d remain, and cost %d is allowed", left, large)
	if left > 0 && h.chance(2) {
		p.hammer(large)
		p.spend(left)
		return
	}
	p.probeRetry(large, d.RetryAfter)
}

// playRemaining asks for what is left, and for one more.
func playRemaining(h *history) {
	p := h.party()
	p.unsettle()
	n := p.left().Remaining
	if n < p.limit.Capacity() {
		d, err := p.take(n + 1)
		p.must(err == nil && !d.Allowed, remainingIsTrue, "Remaining was %d, and cost %d is not denied: %s", n, n+1, described(d, err))
		p.must(d.Remaining == n, remainingIsTrue, "Remaining was %d, and after a denial it is %d", n, d.Remaining)
	}
	d, err := p.take(n)
	p.must(d.Allowed, remainingIsTrue, "Remaining was %d, and that cost is not allowed: %s", n, described(d, err))
	p.must(d.Remaining == 0, remainingIsTrue, "Remaining was %d, that much was spent, and %d remain", n, d.Remaining)
}

// playResetAfter looks for what was spent right before ResetAfter, and at it. Something
// is still held against a key if, and only if, its whole capacity is not free.
func playResetAfter(h *history) {
	p := h.party()
	p.unsettle()
	d := p.left()
	whole, unit := p.limit.Capacity(), p.cfg.Resolution
	if d.ResetAfter > 0 {
		p.advance(d.ResetAfter - unit)
		early, _ := p.take(whole)
		p.must(!early.Allowed, resetAfterIsTrue, "ResetAfter was %v, and the whole capacity is free %v before", d.ResetAfter, unit)
		p.must(early.ResetAfter == unit, resetAfterIsTrue, "ResetAfter was %v, and %v before it is %v", d.ResetAfter, unit, early.ResetAfter)
		p.advance(unit)
	}
	fresh := p.left()
	p.must(fresh.ResetAfter == 0, resetAfterIsTrue, "ResetAfter was %v, and then it is %v", d.ResetAfter, fresh.ResetAfter)
	p.must(fresh.Remaining == whole, resetAfterIsTrue, "ResetAfter was %v, and then %d remain of %d", d.ResetAfter, fresh.Remaining, whole)
	p.alike(resetAfterIsTrue, p, h.party(), "a fresh key beside one never seen")
}

// playCost asks for costs that are no costs, on a key never seen and on one that is in use.
func playCost(h *history) {
	spent, twin, unseen := h.party(), h.party(), h.party()
	cost := h.cost(h.limit.Capacity())
	spent.spend(cost)
	twin.spend(cost)
	for _, p := range []*party{unseen, spent} {
		p.errs(ratelimit.ErrNegativeCost, -1)
		p.errs(ratelimit.ErrNegativeCost, -h.limit.Capacity())
		p.errs(ratelimit.ErrNegativeCost, -1<<31)
		p.tooMuch()
		p.must(p.allow(0), chargesNothing, "a cost of 0 is not allowed")
		p.left()
	}
	h.alike(chargesNothing, spent, twin, "costs that are none were asked of one")
	h.alike(chargesNothing, unseen, h.party(), "costs that are none were asked of one")
}

// tooMuch asks for costs above the capacity, and for those where products have overflowed.
func (p *party) tooMuch() {
	capacity := p.limit.Capacity()
	for _, cost := range []int{capacity + 1, 2*capacity + 1, 213_504, figure(1 << 53), figure(1<<62 + 1), figure(1<<63 - 1)} {
		if cost > capacity {
			p.errs(ratelimit.ErrExceedsLimit, cost)
		}
	}
}

// playDenied has one key denied and another left alone.
func playDenied(h *history) {
	a, b := h.party(), h.party()
	for range 5 {
		cost := h.cost(a.left().Remaining)
		da, _ := a.take(cost)
		db, _ := b.take(cost)
		h.must(da == db, chargesNothing, "%s was denied before, and answers %s; %s was not, and answers %s",
			a.name, described(da, nil), b.name, described(db, nil))
		a.bother()
		h.pause(da)
	}
	h.alike(chargesNothing, a, b, "one was denied, peeked at and asked for nothing")
}

// bother does what charges nothing.
func (p *party) bother() {
	for range 3 {
		if left := p.left().Remaining; left < p.limit.Capacity() {
			d, _ := p.take(left + 1)
			p.must(!d.Allowed, remainingIsTrue, "%d remain, and %d is allowed", left, left+1)
			p.must(!p.allow(p.limit.Capacity()), remainingIsTrue, "%d remain, and Allow allows all", left)
		}
		if p.has.peek != nil {
			p.peekTwice()
		}
	}
}

// peekTwice finds a Peek that changes what it looks at, or tells it wrong.
func (p *party) peekTwice() {
	cost := p.cost(p.left().Remaining)
	first, _ := p.peek(cost)
	second, _ := p.peek(cost)
	p.must(first == second, chargesNothing, "Peek answers %s, and again %s", described(first, nil), described(second, nil))
	left := p.left()
	p.must(left.Remaining == first.Remaining, remainingIsTrue, "Peek says that %d remain, Take %d", first.Remaining, left.Remaining)
	p.must(left.ResetAfter == first.ResetAfter, resetAfterIsTrue, "Peek says reset %v, Take %v", first.ResetAfter, left.ResetAfter)
}

// playPeekTake compares what Peek says that Take would answer with what it does.
func playPeekTake(h *history) {
	p := h.party()
	for range 8 {
		p.unsettle()
		cost := p.cost(p.left().Remaining)
		said, _ := p.peek(cost)
		d, _ := p.take(cost)
		p.must(said.Allowed == d.Allowed && said.RetryAfter == d.RetryAfter && said.Delay == d.Delay, chargesNothing,
			"Peek says %s, and Take answers %s", described(said, nil), described(d, nil))
	}
}

// playUnseen asks what must create no key, where the keys are counted.
func playUnseen(h *history) {
	p := h.party()
	before := h.has.count()
	p.left()
	p.errs(ratelimit.ErrNegativeCost, -1)
	p.errs(ratelimit.ErrExceedsLimit, h.limit.Capacity()+1)
	if canPeek(h) {
		p.peek(1)
	}
	now := h.has.count()
	h.must(now == before, chargesNothing, "nothing was spent, and there are %d keys instead of %d", now, before)
	p.spend(1)
	now = h.has.count()
	h.must(now == before+1, keysAreSeparate, "a key has spent, and there are %d keys instead of %d", now, before+1)
}

// playInvalidKey tries the key that does not equal itself.
func playInvalidKey(h *history) {
	l, err := h.cfg.NewFloat(h.limit)
	h.must(err == nil, exact, "NewFloat refuses a limit that it has to know: %v", err)
	nan := 0.0
	nan /= nan
	for _, cost := range []int{1, h.limit.Capacity()} {
		var d ratelimit.Decision
		err := again(func() (err error) { d, err = l.Take(h.ctx(), nan, cost); return err })
		h.reached(err)
		h.note("Take(NaN, %d): %s", cost, described(d, err))
		h.must(errors.Is(err, ratelimit.ErrInvalidKey) && !d.Allowed, chargesNothing, "the key NaN answers %s", described(d, err))
		h.must(!l.Allow(nan, cost), chargesNothing, "the key NaN is allowed")
	}
	if c, ok := l.(interface{ Len() int }); ok {
		h.must(c.Len() == 0, chargesNothing, "the key NaN is tracked")
	}
}
