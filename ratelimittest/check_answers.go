package ratelimittest

import (
	"errors"
	"math"
	"time"

	"github.com/weir-go/ratelimit"
)

// useAtRandom brings a key into a random state by Take and Allow, and by Adjust and Reserve if the limiter has them.
func (p *testedKey) useAtRandom() {
	d := p.left()
	for range 1 + p.rng.IntN(8) {
		d = p.useOnce(d)
		p.pause(d)
	}
}

func (p *testedKey) useOnce(d ratelimit.Decision) ratelimit.Decision {
	switch cost := p.cost(d.Remaining); {
	case p.chance(6) && p.has.adjust != nil:
		p.adjust(p.correction())
	case p.chance(4) && p.has.reserver != nil:
		p.reserveSome(cost)
	case p.chance(4):
		p.allow(cost)
	default:
		d, _ = p.take(cost)
		return d
	}
	return p.left()
}

// correction returns a random delta for Adjust. Some charges lead into debt.
func (p *testedKey) correction() int {
	return p.rng.IntN(2*min(p.limit.Capacity(), 1<<20)+1) - min(p.limit.Capacity(), 1<<20)
}

// reserveSome makes a reservation, and sometimes settles it, below or above its cost.
func (p *testedKey) reserveSome(cost int) {
	r := p.reserve(cost, p.upto(min(2*p.per(), year)))
	if r.Allowed && p.chance(2) {
		p.settle(r, 1+p.rng.IntN(min(cost, math.MaxInt/3)*3/2+1))
	}
}

// playRetryAfter takes costs until one is denied, and checks the denial's RetryAfter.
func playRetryAfter(h *history) {
	p := h.newKey()
	p.useAtRandom()
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

func (p *testedKey) probeRetry(cost int, after time.Duration) {
	p.probeAt(retryAfterIsTrue, "RetryAfter", cost, after)
}

// probeAt takes a cost just before a promised instant, where it must be denied, and then at the instant.
func (p *testedKey) probeAt(promise promise, field string, cost int, after time.Duration) {
	unit := p.cfg.Resolution
	p.advance(after - unit)
	d, _ := p.take(cost)
	p.must(!d.Allowed, promise, "%s was %v, and cost %d is allowed %v before", field, after, cost, unit)
	p.must(d.RetryAfter == unit, retryAfterIsTrue, "%s was %v, and %v before RetryAfter is %v", field, after, unit, d.RetryAfter)
	p.advance(unit)
	d, err := p.take(cost)
	p.must(d.Allowed, promise, "%s was %v, and then cost %d is not allowed: %s", field, after, cost, described(d, err))
}

// playLarger takes a larger cost after a smaller one was denied often,
// and a smaller one after a larger. Each has its own RetryAfter.
func playLarger(h *history) {
	p := h.newKey()
	p.useAtRandom()
	left, capacity := p.left().Remaining, p.limit.Capacity()
	if left == capacity {
		return
	}
	small := left + 1
	large := min(capacity, []int{capacity, small + 1, small + p.rng.IntN(capacity-left)}[p.rng.IntN(3)])
	p.denyOften(small)
	d, _ := p.take(large)
	p.must(!d.Allowed, boundHolds, "%d remain, and cost %d is allowed", left, large)
	if left > 0 && h.chance(2) {
		p.denyOften(large)
		p.spend(left)
		return
	}
	p.probeRetry(large, d.RetryAfter)
}

// playRemaining takes the remaining budget, and then one more unit.
func playRemaining(h *history) {
	p := h.newKey()
	p.useAtRandom()
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

// playResetAfter checks that the whole capacity is denied just before ResetAfter, and that the key is fresh at it.
func playResetAfter(h *history) {
	p := h.newKey()
	p.useAtRandom()
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
	p.alike(resetAfterIsTrue, p, h.newKey(), "a fresh key beside one never seen")
}

// playNextAfter takes one unit just before NextAfter, and at it. An engine may ignore NextAfter and leave it 0.
func playNextAfter(h *history) {
	p := h.newKey()
	p.useAtRandom()
	d := p.left()
	if d.Remaining > 0 && h.chance(2) {
		d, _ = p.take(d.Remaining)
	}
	if d.NextAfter > 0 {
		p.probeAt(nextAfterIsTrue, "NextAfter", 1, d.NextAfter)
	}
}

// playCost takes invalid costs, from a new key and from one in use.
func playCost(h *history) {
	spent, twin, unseen := h.newKey(), h.newKey(), h.newKey()
	cost := h.cost(h.limit.Capacity())
	spent.spend(cost)
	twin.spend(cost)
	for _, p := range []*testedKey{unseen, spent} {
		p.errs(ratelimit.ErrNegativeCost, -1)
		p.errs(ratelimit.ErrNegativeCost, -h.limit.Capacity())
		p.errs(ratelimit.ErrNegativeCost, -1<<31)
		p.tooMuch()
		p.must(p.allow(0), chargesNothing, "a cost of 0 is not allowed")
		p.left()
	}
	h.alike(chargesNothing, spent, twin, "costs that are none were asked of one")
	h.alike(chargesNothing, unseen, h.newKey(), "costs that are none were asked of one")
}

// tooMuch takes costs above the capacity, including some so large that products overflow.
func (p *testedKey) tooMuch() {
	capacity := p.limit.Capacity()
	for _, cost := range []int{capacity + 1, 2*capacity + 1, 213_504, figure(1 << 53), figure(1<<62 + 1), figure(1<<63 - 1)} {
		if cost > capacity {
			p.errs(ratelimit.ErrExceedsLimit, cost)
		}
	}
}

// playDenied makes the same calls on two keys, and denied ones on the first, too. Both keys must return the same decisions.
func playDenied(h *history) {
	a, b := h.newKey(), h.newKey()
	for range 5 {
		cost := h.cost(a.left().Remaining)
		da, _ := a.take(cost)
		db, _ := b.take(cost)
		h.must(da == db, chargesNothing, "%s was denied before, and answers %s; %s was not, and answers %s",
			a.name, described(da, nil), b.name, described(db, nil))
		a.chargeNothing()
		h.pause(da)
	}
	h.alike(chargesNothing, a, b, "one was denied, peeked at and asked for nothing")
}

// chargeNothing makes denied calls, and calls to Peek.
func (p *testedKey) chargeNothing() {
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

// peekTwice checks that Peek does not change the key and returns the right decision.
func (p *testedKey) peekTwice() {
	cost := p.cost(p.left().Remaining)
	first, _ := p.peek(cost)
	second, _ := p.peek(cost)
	p.must(first == second, chargesNothing, "Peek answers %s, and again %s", described(first, nil), described(second, nil))
	left := p.left()
	p.must(left.Remaining == first.Remaining, remainingIsTrue, "Peek says that %d remain, Take %d", first.Remaining, left.Remaining)
	p.must(left.ResetAfter == first.ResetAfter, resetAfterIsTrue, "Peek says reset %v, Take %v", first.ResetAfter, left.ResetAfter)
}

// playPeekTake compares the decisions of Peek and Take.
func playPeekTake(h *history) {
	p := h.newKey()
	for range 8 {
		p.useAtRandom()
		cost := p.cost(p.left().Remaining)
		peeked, _ := p.peek(cost)
		d, _ := p.take(cost)
		p.must(peeked.Allowed == d.Allowed && peeked.RetryAfter == d.RetryAfter && peeked.Delay == d.Delay, chargesNothing,
			"Peek says %s, and Take answers %s", described(peeked, nil), described(d, nil))
	}
}

// playUnseen checks that uncharged calls create no key, if the limiter counts its keys.
func playUnseen(h *history) {
	p := h.newKey()
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

// playDenialEnds gives units back to a key denied often: by Settle, Adjust, Reset or SetLimit. The next call must be allowed.
func playDenialEnds(h *history) {
	for way := range 5 {
		p := h.newKey()
		capacity := p.limit.Capacity()
		var give func()
		switch way {
		case 0:
			if p.has.reserver != nil {
				r := p.reserve(capacity, 0)
				give = func() { p.settle(r, h.rng.IntN(capacity)) }
			}
		case 1:
			if p.has.adjust != nil {
				p.spend(capacity)
				give = func() { p.adjust(-1 - h.rng.IntN(capacity)) }
			}
		case 2:
			if p.has.reset != nil {
				p.spend(capacity)
				give = p.reset
			}
		case 3:
			if l := h.resized(times(2, capacity)); p.has.setLimit != nil && h.cfg.accepts(l) && l.Capacity() > capacity {
				p.spend(capacity)
				give = func() { p.set(l) }
			}
		}
		if give != nil {
			p.denyOften(p.cost(1))
			give()
			p.allowAgain()
		}
	}
}

// denyOften takes a cost repeatedly, with every method. Each call must be denied.
func (p *testedKey) denyOften(cost int) {
	for range 4 {
		d, err := p.take(cost)
		p.must(err == nil && !d.Allowed, boundHolds, "all was spent, and cost %d answers %s", cost, described(d, err))
		p.must(!p.allow(cost), boundHolds, "all was spent, and Allow allows cost %d", cost)
		if p.has.peek != nil {
			p.peek(cost)
		}
		if p.has.reserver != nil {
			p.reserve(cost, 0)
		}
	}
}

// allowAgain checks that every method allows the remaining budget of a key denied before.
func (p *testedKey) allowAgain() {
	d, _ := p.take(1)
	p.must(d.Allowed, remainingIsTrue, "a key was denied, then it was given back some of what was spent, and cost 1 answers %s", described(d, nil))
	for _, call := range []string{"Allow", "Reserve"} {
		left := p.left()
		if left.Remaining == 0 {
			return
		}
		if call == "Allow" {
			p.must(p.allow(1), remainingIsTrue, "a key was denied, then it was given back some of what was spent; %d remain, and Allow denies cost 1", left.Remaining)
		} else if p.has.reserver != nil {
			r := p.reserve(1, left.ResetAfter) // the delay of a leaky bucket
			p.must(r.Allowed, remainingIsTrue, "a key was denied, then it was given back some of what was spent; %d remain, and Reserve denies cost 1", left.Remaining)
		}
	}
}

// playPeekErrors peeks at impossible costs and at a cost of 0.
func playPeekErrors(h *history) {
	p := h.newKey()
	p.useAtRandom()
	was := p.left()
	for _, cost := range []int{-1, math.MinInt} {
		_, err := p.peek(cost)
		h.must(errors.Is(err, ratelimit.ErrNegativeCost), chargesNothing, "Peek at cost %d: the error is %v", cost, err)
	}
	if capacity := h.limit.Capacity(); capacity < math.MaxInt {
		for _, cost := range []int{capacity + 1, math.MaxInt} {
			_, err := p.peek(cost)
			h.must(errors.Is(err, ratelimit.ErrExceedsLimit), chargesNothing, "Peek at cost %d: the error is %v", cost, err)
		}
	}
	none, err := p.peek(0)
	h.must(err == nil && none == was, chargesNothing, "Take of cost 0 answers %s, and Peek at cost 0 %s", described(was, nil), described(none, err))
}

// playNothingFirst makes uncharged calls on a fresh key, some time
// before the key spends. These calls must not begin its window.
func playNothingFirst(h *history) {
	a, b := h.newKey(), h.newKey()
	if h.chance(2) { // the keys were used before, and are fresh again
		a.spend(1)
		b.spend(1)
		h.advance(max(a.left().ResetAfter, b.left().ResetAfter))
	}
	h.advance(h.upto(h.per()))
	a.left()
	a.allow(0)
	switch h.rng.IntN(4) {
	case 0:
		a.errs(ratelimit.ErrNegativeCost, -1)
	case 1:
		a.tooMuch()
	case 2:
		if a.has.peek != nil {
			a.peek(h.limit.Capacity())
		}
	default:
		if a.has.reserver != nil {
			a.settle(a.reserve(0, 0), 0)
		}
	}
	h.advance(h.cfg.Resolution + h.upto(h.per()))
	h.alike(chargesNothing, a, b, "one of the two got a Take of 0 some time ago, when it was fresh")
}
