package ratelimittest

import (
	"math"
	"time"

	"github.com/weir-go/ratelimit"
)

// playReserveNow has Reserve without a delay answer as Take does.
func playReserveNow(h *history) {
	a, b := h.party(), h.party()
	for range 10 {
		cost := h.cost(a.left().Remaining)
		if h.limit.Algorithm == ratelimit.AlgorithmLeakyBucket && a.left().ResetAfter > 0 {
			return // its Reserve denies what it would have to delay
		}
		d, _ := a.take(cost)
		r := b.reserve(cost, 0)
		h.must(r.Decision == d, reserveIsTrue, "Take answers %s, and Reserve without a delay %s", described(d, nil), described(r.Decision, nil))
		h.pause(d)
	}
}

// playReserveAhead books ahead what is denied now, exactly as far as Take says.
func playReserveAhead(h *history) {
	if h.limit.Algorithm == ratelimit.AlgorithmLeakyBucket {
		return
	}
	p := h.party()
	p.unsettle()
	if setBack(h) && h.chance(3) {
		h.back(min(h.limit.Rate.Per, year))
	}
	cost := p.cost(p.left().Remaining)
	d, _ := p.take(cost)
	if d.Allowed || d.RetryAfter > 99*year-whole(h.limit) || d.RetryAfter > h.countable() {
		return // together with the capacity, that takes a hundred years to regain
	}
	early := p.reserve(cost, d.RetryAfter-p.cfg.Resolution)
	p.must(!early.Allowed, reserveIsTrue, "RetryAfter was %v, and less delay than that is enough", d.RetryAfter)
	r := p.reserve(cost, d.RetryAfter)
	p.must(r.Allowed && r.Delay == d.RetryAfter, reserveIsTrue, "RetryAfter was %v, and a booking at it answers %s",
		d.RetryAfter, described(r.Decision, nil))
	p.queued(r.Delay)
}

// queued checks that nobody gets in before what is booked.
func (p *party) queued(delay time.Duration) {
	p.advance(p.upto(delay - p.cfg.Resolution))
	d, _ := p.take(1)
	p.must(!d.Allowed && d.Remaining == 0, reserveIsTrue, "a later caller gets in before what is booked: %s", described(d, nil))
	p.must(!p.allow(1), reserveIsTrue, "a later caller of Allow gets in before what is booked")
}

// playReserveRetry probes what a denied Reserve says: the same call passes at RetryAfter.
func playReserveRetry(h *history) {
	p := h.party()
	p.unsettle()
	for range 8 {
		cost, most := p.cost(p.left().Remaining), p.upto(p.limit.Rate.Per)
		r := p.reserve(cost, most)
		if r.Allowed {
			continue
		}
		p.advance(r.RetryAfter - p.cfg.Resolution)
		early := p.reserve(cost, most)
		p.must(!early.Allowed, retryAfterIsTrue, "Reserve's RetryAfter was %v, and the same passes earlier", r.RetryAfter)
		p.advance(p.cfg.Resolution)
		again := p.reserve(cost, most)
		p.must(again.Allowed, retryAfterIsTrue, "Reserve's RetryAfter was %v, and then the same answers %s", r.RetryAfter, described(again.Decision, nil))
		return
	}
}

// playCancel cancels the last booking before its time, beside a key that never booked.
func playCancel(h *history) {
	a, b := h.party(), h.party()
	for range 1 + h.rng.IntN(4) { // what the booking stands on, and a window's phase
		cost := h.cost(a.left().Remaining)
		da, _ := a.take(cost)
		b.take(cost)
		h.pause(da)
	}
	if da := a.left(); da.ResetAfter == 0 {
		a.take(1)
		b.take(1)
	}
	h.cancelled(a)
	h.alike(settleIsTrue, a, b, "one has booked, and cancelled before its time")
}

func (h *history) cancelled(p *party) {
	r := p.reserve(p.cost(p.left().Remaining), p.upto(2*p.limit.Rate.Per))
	if r.Allowed {
		p.settle(r, 0)
		p.settle(r, 5) // only the first call counts
	}
}

// playCancelFirst cancels the first of two bookings. The second keeps its instant, and nobody
// gets in before it.
func playCancelFirst(h *history) {
	if h.limit.Algorithm == ratelimit.AlgorithmLeakyBucket {
		return // see playSettleTogether
	}
	p := h.party()
	d := p.spend(h.limit.Capacity())
	first := p.reserve(p.cost(1), min(2*d.ResetAfter, 10*year))
	second := p.reserve(p.cost(1), min(4*d.ResetAfter, 20*year))
	if first.Delay == 0 || second.Delay == 0 {
		return // it lies further ahead than the engine books
	}
	p.settle(first, 0)
	p.queued(second.Delay)
}

// playLateSettle settles what does not count any more.
func playLateSettle(h *history) {
	a, b := h.party(), h.party()
	cost := h.cost(h.limit.Capacity())
	r := a.reserve(cost, 0)
	h.must(r.Allowed, reserveIsTrue, "cost %d of a fresh key is not allowed", cost)
	h.advance(r.ResetAfter + h.upto(h.limit.Rate.Per))
	a.spend(h.limit.Capacity())
	b.spend(h.limit.Capacity())
	a.settle(r, 0)
	h.alike(settleIsTrue, a, b, "one was given back what had been regained long ago")
}

// playSettle settles a fresh key's only reservation some time after it was made. What it did
// not cost comes back, as far as it still counts: as if it had cost no more at first.
func playSettle(h *history) {
	a, b := h.party(), h.party()
	cost := h.cost(h.limit.Capacity())
	actual := 1 + h.rng.IntN(cost)
	r := a.reserve(cost, 0)
	b.spend(actual)
	h.advance(h.upto(r.ResetAfter / 4 * 3))
	a.settle(r, actual)
	h.alike(settleIsTrue, a, b, "one has reserved more than the other has spent, and settled at that")
}

// playSettleGranted settles a booking ahead that a grant has given back already: what others
// have spent since stays spent.
func playSettleGranted(h *history) {
	if h.limit.Algorithm == ratelimit.AlgorithmLeakyBucket {
		return // it books nothing ahead
	}
	a, b := h.party(), h.party()
	capacity := h.limit.Capacity()
	d := a.spend(capacity)
	cost := h.cost(capacity)
	r := a.reserve(cost, min(2*d.ResetAfter, 10*year))
	if !r.Allowed || r.Delay == 0 {
		return
	}
	a.adjust(math.MinInt)
	if a.left().ResetAfter > 0 {
		return // the engine lets a booking stand
	}
	h.advance(h.upto(r.Delay / 3))
	others := h.cost(capacity)
	a.spend(others)
	b.spend(others)
	h.advance(h.upto(r.Delay / 3))
	a.settle(r, h.rng.IntN(cost))
	h.alike(settleIsTrue, a, b, "all was given back to one, and then a booking of before was settled below what it had reserved")
}

// playDenialEnds gives back, in every way, to a key that has been denied often: the next call is
// allowed again.
func playDenialEnds(h *history) {
	for way := range 5 {
		p := h.party()
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
			p.hammer(p.cost(1))
			give()
			p.freed()
		}
	}
}

// hammer asks for a cost that has to be denied, again and again, by every call.
func (p *party) hammer(cost int) {
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

// freed checks that every call allows what remains of a key that was denied before.
func (p *party) freed() {
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
			r := p.reserve(1, left.ResetAfter) // which a leaky bucket's delay is
			p.must(r.Allowed, remainingIsTrue, "a key was denied, then it was given back some of what was spent; %d remain, and Reserve denies cost 1", left.Remaining)
		}
	}
}

// playSettleAbove charges what the work has cost beyond its estimate.
func playSettleAbove(h *history) {
	a, b := h.party(), h.party()
	capacity := h.limit.Capacity()
	if capacity < 2 {
		return
	}
	cost := 1 + h.rng.IntN(min(capacity-1, 1<<20))
	actual := cost + 1 + h.rng.IntN(min(capacity-cost, 1<<20))
	r := a.reserve(cost, 0)
	a.settle(r, actual)
	a.settle(r, 0)
	b.spend(actual)
	h.alike(settleIsTrue, a, b, "one has settled above its estimate, the other has spent that at once")
}

// playResetBooked settles after Reset: there is nothing to settle.
func playResetBooked(h *history) {
	a, b := h.party(), h.party()
	r := a.reserve(h.cost(h.limit.Capacity()), 0)
	a.reset()
	cost := h.cost(h.limit.Capacity())
	a.spend(cost)
	b.spend(cost)
	a.settle(r, 0)
	h.alike(settleIsTrue, a, b, "one was reset, and what it had reserved before was cancelled")
}

func (p *party) reset() {
	err := again(func() error { return p.has.reset(p.ctx(), p.key) })
	p.note("Reset(%s): %v", p.name, err)
	p.reached(err)
	p.must(err == nil, resetForgets, "Reset fails: %v", err)
}

// playReset forgets a key in any state.
func playReset(h *history) {
	p, other := h.party(), h.party()
	other.spend(h.limit.Capacity())
	p.unsettle()
	was := other.left()
	p.reset()
	h.must(other.left() == was, keysAreSeparate, "another key was reset, and this one answers differently")
	h.alike(resetForgets, p, h.party(), "a key that was reset beside one never seen")
}
