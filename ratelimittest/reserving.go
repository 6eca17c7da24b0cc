package ratelimittest

import (
	"errors"
	"math"
	"time"

	"github.com/weir-go/ratelimit"
)

// What is asked of Reserve and Settle at their edges: costs that are none, errors, delays to
// the unit, several settlements at one instant, and a limit that changes in between.

// twins returns two keys with the same random spending.
func (h *history) twins() (a, b *party) {
	a, b = h.party(), h.party()
	for range h.rng.IntN(3) {
		cost := h.cost(a.left().Remaining)
		da, _ := a.take(cost)
		b.take(cost)
		h.pause(da)
	}
	return a, b
}

// playReserveNothing reserves a cost of 0, and cancels that: nothing is charged, and nothing is
// given back of what others have spent.
func playReserveNothing(h *history) {
	a, b := h.twins()
	for range 3 {
		cost := h.cost(a.left().Remaining)
		da, _ := a.take(cost)
		b.take(cost)
		want := a.left()
		r := a.reserve(0, h.upto(h.limit.Rate.Per))
		h.must(r.Decision == want, reserveIsTrue, "Take of cost 0 answers %s, and Reserve of cost 0 %s",
			described(want, nil), described(r.Decision, nil))
		a.settle(r, -h.rng.IntN(2))
		h.pause(da)
	}
	h.alike(settleIsTrue, a, b, "one has reserved a cost of 0, and cancelled that")
}

// playSettleNothing reserves a cost of 0, and settles it above: that is charged as Adjust charges.
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

// playReserveErrors reserves what can never be, and settles it all the same.
func playReserveErrors(h *history) {
	a, b := h.twins()
	capacity := h.limit.Capacity()
	for _, cost := range []int{-1, -capacity, math.MinInt, capacity + 1, math.MaxInt} {
		want := ratelimit.ErrNegativeCost
		if cost > capacity {
			want = ratelimit.ErrExceedsLimit
		} else if cost >= 0 {
			continue // the capacity is the largest figure that there is
		}
		var r *ratelimit.Reservation
		most := h.upto(h.limit.Rate.Per)
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

// playReserveDenied is denied, and settles that: nothing was charged, and nothing is given back.
func playReserveDenied(h *history) {
	a, b := h.twins()
	for _, p := range []*party{a, b} {
		if left := p.left().Remaining; left > 0 {
			p.spend(left)
		}
	}
	for _, actual := range []int{0, 1, 5} {
		if r := a.reserve(h.cost(1), 0); !r.Allowed {
			a.settle(r, actual)
		} else {
			return // the rest that Remaining rounds down
		}
	}
	h.alike(reserveIsTrue, a, b, "one was denied by Reserve, and has settled that")
}

// playPeekErrors looks at what can never be, and at nothing.
func playPeekErrors(h *history) {
	p := h.party()
	p.unsettle()
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

// playReserveExactly reserves in a leaky bucket with a maxDelay of what the queue takes, and
// with one unit less.
func playReserveExactly(h *history) {
	if h.limit.Algorithm != ratelimit.AlgorithmLeakyBucket || h.limit.Capacity() < 2 {
		return
	}
	a, b := h.party(), h.party()
	cost := 1 + h.rng.IntN(h.limit.Capacity()-1)
	a.spend(cost)
	b.spend(cost)
	if setBack(h) && h.chance(2) {
		h.back(h.limit.Rate.Per)
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

// playReserveNegative reserves with a delay below zero, which counts as none.
func playReserveNegative(h *history) {
	a, b := h.twins()
	if h.limit.Algorithm == ratelimit.AlgorithmLeakyBucket && a.left().ResetAfter > 0 {
		return // see playReserveExactly
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

// playSettleTogether settles several reservations of one instant at one instant.
func playSettleTogether(h *history) {
	a, b := h.party(), h.party()
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
		actual := 0 // in a queue, only its end can be given back
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

// playSettleBooked books several costs for one instant, and cancels some of them.
func playSettleBooked(h *history) {
	a := h.limit.Algorithm
	if a != ratelimit.AlgorithmFixedWindow && a != ratelimit.AlgorithmSlidingLog || h.limit.Capacity() < 2 {
		return
	}
	p, capacity := h.party(), h.limit.Capacity()
	p.spend(capacity)
	kept, left := 0, capacity
	var due time.Duration
	for range 4 {
		if left == 0 {
			break
		}
		cost := 1 + h.rng.IntN(min(left, max(1, capacity/3)))
		r := p.reserve(cost, h.limit.Rate.Per)
		if !r.Allowed {
			return // it lies further ahead than the engine books
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

// playSettleDebt settles a fresh key's reservation far above the capacity: that is a debt, and is
// regained like one that Adjust has made.
func playSettleDebt(h *history) {
	capacity := h.limit.Capacity()
	cost := h.cost(capacity)
	if h.has.adjust == nil {
		if h.limit.Algorithm != ratelimit.AlgorithmSlidingLog { // in which it matters what comes first
			h.debt(func(p *party, owed int) { p.settle(p.reserve(cost, 0), max(owed, cost)) })
		}
		return
	}
	a, b := h.party(), h.party()
	over := 1 + h.rng.IntN(min(times(3, capacity), figure(1<<40)))
	a.settle(a.reserve(cost, 0), capacity+over)
	b.spend(cost)
	b.adjust(capacity + over - cost)
	d := a.left()
	h.must(d.Remaining == 0, saturates, "a reservation was settled %d above the capacity, and %d remain", over, d.Remaining)
	h.alike(settleIsTrue, a, b, "one has settled above the capacity, the other was charged that by Adjust")
}

// playSettleBehind settles and adjusts while the clock is behind what the key has seen: that
// is as if it was still there.
func playSettleBehind(h *history) {
	a, b := h.party(), h.party()
	capacity := h.limit.Capacity()
	cost := h.cost(capacity)
	actual := 1 + h.rng.IntN(cost)
	h.advance(h.upto(min(h.limit.Rate.Per, year)))
	r := a.reserve(cost, 0)
	b.spend(actual)
	gap := h.back(min(h.limit.Rate.Per, year))
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

// playSettleChanged reserves, has the limit changed, and cancels: no more than was reserved
// comes back, whatever the figures are now.
func playSettleChanged(h *history) {
	p, capacity := h.party(), h.limit.Capacity()
	if capacity < 2 {
		return
	}
	cost := 1 + h.rng.IntN(capacity-1)
	others := 1 + h.rng.IntN(capacity-cost)
	r := p.reserve(cost, 0)
	p.spend(others)
	p.change(h.similar())
	if h.beyond(cost + others) {
		return
	}
	if h.chance(2) {
		p.take(p.limit.Capacity())
	}
	was := p.left().Remaining
	p.settle(r, 0)
	got, most := p.left().Remaining, max(0, p.limit.Capacity()-others)
	h.must(got >= was && got <= max(was, most), settleIsTrue,
		"%d were spent beside what is cancelled, of %d now; %d remained before, and %d do after that", others, p.limit.Capacity(), was, got)
}

// playSettlePast reserves, and cancels when that counts no longer and the limit is another: what
// somebody else has spent since is not given back.
func playSettlePast(h *history) {
	p := h.party()
	r := p.reserve(h.cost(h.limit.Capacity()), 0)
	h.advance(r.ResetAfter + h.upto(h.limit.Rate.Per))
	p.spend(h.cost(h.limit.Capacity()))
	if h.chance(2) {
		h.advance(h.limit.Rate.Per + h.upto(h.limit.Rate.Per/2)) // it is the window before now
	}
	p.change(h.longer())
	p.take(1)
	was := p.left()
	p.settle(r, 0)
	got := p.left()
	h.must(got == was, settleIsTrue, "what was regained long ago is cancelled after the limit has changed; before, the key answers %s, and after that %s",
		described(was, nil), described(got, nil))
}

// longer is the limit over a time that is several times as long.
func (h *history) longer() ratelimit.Limit {
	l := h.limit
	l.Rate.Per *= time.Duration(2 + h.rng.IntN(20))
	return l
}

// similar is the limit with another rate, another capacity, or both.
func (h *history) similar() ratelimit.Limit {
	l := h.limit
	if h.chance(2) {
		l = h.resized(1 + h.rng.IntN(times(2, h.limit.Capacity())))
	}
	if l == h.limit || h.chance(2) {
		l.Rate.Per = max(h.cfg.Resolution, h.up(time.Duration(float64(l.Rate.Per)*(0.25+4*h.rng.Float64()))))
	}
	return l
}

// playPeekChanged looks at a key whose limit was changed since its last decision, and whose
// bookings have come due since: Peek says what Take then answers.
func playPeekChanged(h *history) {
	for range 6 {
		p := h.party()
		p.spend(1 + h.rng.IntN(max(1, p.left().Remaining)))
		var due time.Duration
		for range 1 + h.rng.IntN(3) {
			if r := p.reserve(p.cost(1), min(2*p.limit.Rate.Per, year)); r.Allowed {
				due = r.Delay
			}
		}
		p.change(h.similar())
		h.advance([]time.Duration{due, due + h.cfg.Resolution, h.upto(due), h.upto(2 * due), 0}[h.rng.IntN(5)])
		cost := p.cost(p.limit.Capacity())
		said, err := p.peek(cost)
		h.must(err == nil, chargesNothing, "cost %d is within the capacity: %v", cost, err)
		d, _ := p.take(cost)
		p.must(said.Allowed == d.Allowed && said.RetryAfter == d.RetryAfter && said.Delay == d.Delay, chargesNothing,
			"the limit was changed; Peek says %s, and Take answers %s", described(said, nil), described(d, nil))
	}
}
