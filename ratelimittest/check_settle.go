package ratelimittest

import (
	"math"
	"time"

	"github.com/weir-go/ratelimit"
)

// playCancel cancels the last booking before its instant. The key must then equal one that has never booked.
func playCancel(h *history) {
	a, b := h.newKey(), h.newKey()
	for range 1 + h.rng.IntN(4) { // spending before the booking begins a window
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

func (h *history) cancelled(p *testedKey) {
	r := p.reserve(p.cost(p.left().Remaining), p.upto(2*p.per()))
	if r.Allowed {
		p.settle(r, 0)
		p.settle(r, 5) // only the first settlement counts
	}
}

// playCancelFirst cancels the first of two bookings. The second keeps its instant, and no caller is allowed before it.
func playCancelFirst(h *history) {
	if h.limit.Algorithm == ratelimit.AlgorithmLeakyBucket {
		return // playSettleTogether covers this
	}
	p := h.newKey()
	d := p.spend(h.limit.Capacity())
	first := p.reserve(p.cost(1), min(2*d.ResetAfter, 10*year))
	second := p.reserve(p.cost(1), min(4*d.ResetAfter, 20*year))
	if first.Delay == 0 || second.Delay == 0 {
		return // the engine does not book so far ahead
	}
	p.settle(first, 0)
	p.queued(second.Delay)
}

// playLateSettle settles a reservation after its cost has been regained.
func playLateSettle(h *history) {
	a, b := h.newKey(), h.newKey()
	cost := h.cost(h.limit.Capacity())
	r := a.reserve(cost, 0)
	h.must(r.Allowed, reserveIsTrue, "cost %d of a fresh key is not allowed", cost)
	h.advance(r.ResetAfter + h.upto(h.per()))
	a.spend(h.limit.Capacity())
	b.spend(h.limit.Capacity())
	a.settle(r, 0)
	h.alike(settleIsTrue, a, b, "one was given back what had been regained long ago")
}

// playSettle settles a fresh key's only reservation some time after it was made. The part of
// the excess that still counts comes back, as if the lower cost had been charged at first.
func playSettle(h *history) {
	a, b := h.newKey(), h.newKey()
	cost := h.cost(h.limit.Capacity())
	actual := 1 + h.rng.IntN(cost)
	r := a.reserve(cost, 0)
	b.spend(actual)
	h.advance(h.upto(r.ResetAfter / 4 * 3))
	a.settle(r, actual)
	h.alike(settleIsTrue, a, b, "one has reserved more than the other has spent, and settled at that")
}

// playSettleBeside settles a reservation after others have spent. Under a token bucket the result is as if the
// real cost had been charged at the beginning, although the key has regained a part of the reserved cost since.
func playSettleBeside(h *history) {
	if h.limit.Algorithm != ratelimit.AlgorithmTokenBucket {
		return
	}
	a, b := h.newKey(), h.newKey()
	cost := h.cost(h.limit.Capacity())
	actual := 1 + h.rng.IntN(cost)
	r := a.reserve(cost, 0)
	b.spend(actual)
	for range 1 + h.rng.IntN(3) {
		h.advance(h.upto(b.left().ResetAfter / 4 * 3))
		if left := a.left().Remaining; left > 0 {
			others := min(left, h.cost(left))
			a.spend(others)
			b.spend(others)
		}
	}
	a.settle(r, actual)
	const settled = "one has reserved more than the other has spent, others have spent as much of both, and the one has settled at the other's cost"
	if h.cfg.Resolution == 1 {
		h.alike(settleIsTrue, a, b, settled)
		return
	}
	got, want := a.left(), b.left()
	regained := int(float64(h.limit.Rate.Units)*float64(h.cfg.Resolution)/float64(h.per())) + 1
	h.must(got.Remaining <= want.Remaining && got.Remaining >= want.Remaining-regained &&
		got.ResetAfter >= want.ResetAfter && got.ResetAfter <= want.ResetAfter+h.cfg.Resolution,
		settleIsTrue, "%s: a answers %s and b %s", settled, described(got, nil), described(want, nil))
}

// playSettleGranted settles a booking ahead after a grant has given it back. Others' later spending stays spent.
func playSettleGranted(h *history) {
	if h.limit.Algorithm == ratelimit.AlgorithmLeakyBucket {
		return // the engine did not book ahead
	}
	a, b := h.newKey(), h.newKey()
	capacity := h.limit.Capacity()
	d := a.spend(capacity)
	cost := h.cost(capacity)
	r := a.reserve(cost, min(2*d.ResetAfter, 10*year))
	if !r.Allowed || r.Delay == 0 {
		return
	}
	a.adjust(math.MinInt)
	if a.left().ResetAfter > 0 {
		return // the engine keeps a booking despite the grant
	}
	h.advance(h.upto(r.Delay / 3))
	others := h.cost(capacity)
	a.spend(others)
	b.spend(others)
	h.advance(h.upto(r.Delay / 3))
	a.settle(r, h.rng.IntN(cost))
	h.alike(settleIsTrue, a, b, "all was given back to one, and then a booking of before was settled below what it had reserved")
}

// playSettleAbove settles at a cost above the estimate.
func playSettleAbove(h *history) {
	a, b := h.newKey(), h.newKey()
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

// playResetBooked settles a reservation after Reset. The settlement must change nothing.
func playResetBooked(h *history) {
	a, b := h.newKey(), h.newKey()
	r := a.reserve(h.cost(h.limit.Capacity()), 0)
	a.reset()
	cost := h.cost(h.limit.Capacity())
	a.spend(cost)
	b.spend(cost)
	a.settle(r, 0)
	h.alike(settleIsTrue, a, b, "one was reset, and what it had reserved before was cancelled")
}

// playSettleNothing reserves a cost of 0 and settles at a higher cost. The settlement charges it as Adjust does.
func playSettleNothing(h *history) {
	a, b := h.twins()
	left := a.left().Remaining
	if left == 0 && b.has.adjust == nil {
		return
	}
	actual := 1 + h.rng.IntN(max(1, left))
	if b.has.adjust != nil && h.chance(3) {
		actual = 1 + h.rng.IntN(2*min(h.limit.Capacity(), 1<<20))
	}
	r := a.reserve(0, 0)
	a.settle(r, actual)
	a.settle(r, actual)
	if b.has.adjust != nil {
		b.adjust(actual)
	} else {
		b.spend(actual)
	}
	h.alike(settleIsTrue, a, b, "one has reserved a cost of 0 and settled it above, the other was charged that")
}

// playSettleTogether settles, at one instant, several reservations made at one instant.
func playSettleTogether(h *history) {
	a, b := h.newKey(), h.newKey()
	leaky := h.limit.Algorithm == ratelimit.AlgorithmLeakyBucket
	left := h.limit.Capacity()
	var made []*ratelimit.Reservation
	var costs []int
	for len(made) < 5 && left > 0 {
		cost := 1 + h.rng.IntN(min(left, max(1, h.limit.Capacity()/3)))
		r := a.reserve(cost, centuries)
		h.must(r.Allowed, reserveIsTrue, "%d are left, and cost %d is not allowed", left, cost)
		made, costs, left = append(made, r), append(costs, cost), left-cost
	}
	for i := len(made) - 1; i >= 0; i-- {
		actual := 0 // a leaky bucket gives back only its queue's end
		if !leaky {
			actual = h.rng.IntN(costs[i] + 1)
		}
		a.settle(made[i], actual)
		if actual > 0 {
			b.spend(actual)
		}
	}
	h.alike(settleIsTrue, a, b, "one has settled all it had reserved at one instant, the other has spent that much")
}

// playSettleBooked books several costs for one instant, and cancels some.
func playSettleBooked(h *history) {
	switch h.limit.Algorithm {
	case ratelimit.AlgorithmFixedWindow, ratelimit.AlgorithmSlidingLog, ratelimit.AlgorithmCalendar:
	default:
		return
	}
	if h.limit.Capacity() < 2 {
		return
	}
	p, capacity := h.newKey(), h.limit.Capacity()
	p.spend(capacity)
	kept, left := 0, capacity
	var due time.Duration
	for range 4 {
		if left == 0 {
			break
		}
		cost := 1 + h.rng.IntN(min(left, max(1, capacity/3)))
		r := p.reserve(cost, h.per())
		if !r.Allowed {
			return // the engine does not book so far ahead
		}
		due, left = r.Delay, left-cost
		if h.chance(2) {
			p.settle(r, 0)
			left += cost
		} else {
			kept += cost
		}
	}
	h.advance(due)
	got := p.left().Remaining
	h.must(got == capacity-kept, settleIsTrue, "%d were booked for this instant, and not cancelled, and %d remain of %d", kept, got, capacity)
}

// playSettleDebt settles a fresh key's reservation far above the capacity. The debt must be regained like one made by Adjust.
func playSettleDebt(h *history) {
	capacity := h.limit.Capacity()
	cost := h.cost(capacity)
	if h.has.adjust == nil {
		if h.limit.Algorithm != ratelimit.AlgorithmSlidingLog { // under a log, the order of the charges matters
			h.debt(func(p *testedKey, owed int) { p.settle(p.reserve(cost, 0), max(owed, cost)) })
		}
		return
	}
	a, b := h.newKey(), h.newKey()
	over := 1 + h.rng.IntN(min(times(3, capacity), figure(1<<40)))
	a.settle(a.reserve(cost, 0), capacity+over)
	b.spend(cost)
	b.adjust(capacity + over - cost)
	d := a.left()
	h.must(d.Remaining == 0, saturates, "a reservation was settled %d above the capacity, and %d remain", over, d.Remaining)
	h.alike(settleIsTrue, a, b, "one has settled above the capacity, the other was charged that by Adjust")
}

// playSettleBehind settles and adjusts while the clock is behind the
// key's highest reading. The result must be the same as at that reading.
func playSettleBehind(h *history) {
	a, b := h.newKey(), h.newKey()
	capacity := h.limit.Capacity()
	cost := h.cost(capacity)
	actual := 1 + h.rng.IntN(cost)
	h.advance(h.upto(min(h.per(), year)))
	r := a.reserve(cost, 0)
	b.spend(actual)
	gap := h.back(min(h.per(), year))
	a.settle(r, actual)
	if a.has.adjust != nil && h.chance(2) {
		delta := a.correction()
		a.adjust(delta)
		h.move(gap)
		b.adjust(delta)
	} else {
		h.move(gap)
	}
	h.alike(timeIsMonotonic, a, b, "one has settled while the clock was behind, the other has spent that at first")
}

// playReset resets a key in any state.
func playReset(h *history) {
	p, other := h.newKey(), h.newKey()
	other.spend(h.limit.Capacity())
	p.useAtRandom()
	was := other.left()
	p.reset()
	h.must(other.left() == was, keysAreSeparate, "another key was reset, and this one answers differently")
	h.alike(resetForgets, p, h.newKey(), "a key that was reset beside one never seen")
}
