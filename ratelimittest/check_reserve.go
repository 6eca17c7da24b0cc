package ratelimittest

import (
	"errors"
	"math"
	"time"

	"github.com/weir-go/ratelimit"
)

// playReserveNow compares a Reserve without a delay with Take.
func playReserveNow(h *history) {
	a, b := h.newKey(), h.newKey()
	for range 10 {
		cost := h.cost(a.left().Remaining)
		if h.limit.Algorithm == ratelimit.AlgorithmLeakyBucket && a.left().ResetAfter > 0 {
			return // Reserve denies a cost if the bucket would delay it
		}
		d, _ := a.take(cost)
		r := b.reserve(cost, 0)
		h.must(r.Decision == d, reserveIsTrue, "Take answers %s, and Reserve without a delay %s", described(d, nil), described(r.Decision, nil))
		h.pause(d)
	}
}

// playReserveAhead books a cost denied by Take. The booking's delay must equal Take's RetryAfter.
func playReserveAhead(h *history) {
	if h.limit.Algorithm == ratelimit.AlgorithmLeakyBucket {
		return
	}
	p := h.newKey()
	p.useAtRandom()
	if canSetBack(h) && h.chance(3) {
		h.back(min(h.per(), year))
	}
	cost := p.cost(p.left().Remaining)
	d, _ := p.take(cost)
	if d.Allowed || d.RetryAfter > 99*year-whole(h.limit) || d.RetryAfter > h.countable() {
		return // the cost and the capacity together take a hundred years to regain
	}
	early := p.reserve(cost, d.RetryAfter-p.cfg.Resolution)
	p.must(!early.Allowed, reserveIsTrue, "RetryAfter was %v, and less delay than that is enough", d.RetryAfter)
	r := p.reserve(cost, d.RetryAfter)
	if !r.Allowed && isCalendar(h.limit) && d.RetryAfter > h.untilNext() {
		return // the engine does not book beyond the next window
	}
	p.must(r.Allowed && r.Delay == d.RetryAfter, reserveIsTrue, "RetryAfter was %v, and a booking at it answers %s",
		d.RetryAfter, described(r.Decision, nil))
	p.queued(r.Delay)
}

// queued checks that no caller is allowed before the bookings.
func (p *testedKey) queued(delay time.Duration) {
	p.advance(p.upto(delay - p.cfg.Resolution))
	d, _ := p.take(1)
	p.must(!d.Allowed && d.Remaining == 0, reserveIsTrue, "a later caller gets in before what is booked: %s", described(d, nil))
	p.must(!p.allow(1), reserveIsTrue, "a later caller of Allow gets in before what is booked")
}

// playReserveRetry waits for the RetryAfter of a denied Reserve. The same call must pass then.
func playReserveRetry(h *history) {
	p := h.newKey()
	p.useAtRandom()
	for range 8 {
		cost, most := p.cost(p.left().Remaining), p.upto(p.per())
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

// playReserveNothing reserves a cost of 0 and cancels it. Nothing
// may be charged, and none of the others' spending given back.
func playReserveNothing(h *history) {
	a, b := h.twins()
	for range 3 {
		cost := h.cost(a.left().Remaining)
		da, _ := a.take(cost)
		b.take(cost)
		want := a.left()
		r := a.reserve(0, h.upto(h.per()))
		h.must(r.Decision == want, reserveIsTrue, "Take of cost 0 answers %s, and Reserve of cost 0 %s",
			described(want, nil), described(r.Decision, nil))
		a.settle(r, -h.rng.IntN(2))
		h.pause(da)
	}
	h.alike(settleIsTrue, a, b, "one has reserved a cost of 0, and cancelled that")
}

// playReserveErrors reserves impossible costs, and settles the results nevertheless.
func playReserveErrors(h *history) {
	a, b := h.twins()
	capacity := h.limit.Capacity()
	for _, cost := range []int{-1, -capacity, math.MinInt, capacity + 1, math.MaxInt} {
		want := ratelimit.ErrNegativeCost
		if cost > capacity {
			want = ratelimit.ErrExceedsLimit
		} else if cost >= 0 {
			continue // the capacity is the largest int
		}
		var r *ratelimit.Reservation
		most := h.upto(h.per())
		err := again(func() (err error) { r, err = a.has.reserver.Reserve(h.ctx(), a.key, cost, most); return err })
		h.must(r != nil, reserveIsTrue, "Reserve of cost %d returns nil, with the error %v", cost, err)
		h.note("Reserve(%s, %d): %s", a.name, cost, described(r.Decision, err))
		h.reached(err)
		h.must(errors.Is(err, want), reserveIsTrue, "Reserve of cost %d: the error is %v, want %q", cost, err, want)
		a.wellFormed("Reserve", cost, r.Decision, err)
		a.settle(r, 0)
		a.settle(r, 1)
	}
	h.alike(reserveIsTrue, a, b, "one has reserved costs that are none, and settled them")
}

// playReserveDenied settles a denied reservation. Nothing was charged, so nothing may be given back.
func playReserveDenied(h *history) {
	a, b := h.twins()
	for _, p := range []*testedKey{a, b} {
		if left := p.left().Remaining; left > 0 {
			p.spend(left)
		}
	}
	for _, actual := range []int{0, 1, 5} {
		if r := a.reserve(h.cost(1), 0); !r.Allowed {
			a.settle(r, actual)
		} else {
			return // the fraction of a unit that Remaining rounds down
		}
	}
	h.alike(reserveIsTrue, a, b, "one was denied by Reserve, and has settled that")
}

// playReserveExactly reserves in a leaky bucket with a maxDelay as long as the queue, and with one unit less.
func playReserveExactly(h *history) {
	if h.limit.Algorithm != ratelimit.AlgorithmLeakyBucket || h.limit.Capacity() < 2 {
		return
	}
	a, b := h.newKey(), h.newKey()
	cost := 1 + h.rng.IntN(h.limit.Capacity()-1)
	a.spend(cost)
	b.spend(cost)
	if canSetBack(h) && h.chance(2) {
		h.back(h.per())
	}
	delay, unit := a.left().ResetAfter, h.cfg.Resolution
	for _, most := range []time.Duration{delay - unit, 0, -h.cfg.Resolution} {
		early := a.reserve(1, most)
		h.must(!early.Allowed && early.RetryAfter == delay-max(0, most), reserveIsTrue,
			"the queue takes %v, and Reserve with a maxDelay of %v answers %s", delay, most, described(early.Decision, nil))
	}
	r := a.reserve(1, delay)
	h.must(r.Allowed && r.Delay == delay, reserveIsTrue, "the queue takes %v, and Reserve with that maxDelay answers %s", delay, described(r.Decision, nil))
	b.spend(1)
	h.alike(reserveIsTrue, a, b, "one was denied for its maxDelay at first")
}

// playReserveNegative reserves with a negative delay. It must count as 0.
func playReserveNegative(h *history) {
	a, b := h.twins()
	if h.limit.Algorithm == ratelimit.AlgorithmLeakyBucket && a.left().ResetAfter > 0 {
		return // playReserveExactly shows why
	}
	for _, most := range []time.Duration{-h.cfg.Resolution, math.MinInt64} {
		cost := h.cost(a.left().Remaining)
		d, _ := b.take(cost)
		r := a.reserve(cost, most)
		h.must(r.Decision == d, reserveIsTrue, "Take answers %s, and Reserve with a maxDelay of %v %s", described(d, nil), most, described(r.Decision, nil))
		if h.limit.Algorithm == ratelimit.AlgorithmLeakyBucket {
			return
		}
	}
}
