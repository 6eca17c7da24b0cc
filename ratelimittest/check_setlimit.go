package ratelimittest

import (
	"errors"
	"math"
	"time"

	"github.com/weir-go/ratelimit"
)

// playSettleChanged reserves, changes the limit and cancels. At most
// the reserved units may come back, whatever the figures are by then.
func playSettleChanged(h *history) {
	p, capacity := h.newKey(), h.limit.Capacity()
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

// playSettlePast cancels a reservation under another limit, when it no
// longer counts. The cancellation must not give back others' later spending.
func playSettlePast(h *history) {
	p := h.newKey()
	r := p.reserve(h.cost(h.limit.Capacity()), 0)
	h.advance(r.ResetAfter + h.upto(h.per()))
	p.spend(h.cost(h.limit.Capacity()))
	if h.chance(2) {
		h.advance(h.per() + h.upto(h.per()/2)) // the reservation was in the window before the present one
	}
	p.change(h.longer())
	p.take(1)
	was := p.left()
	p.settle(r, 0)
	got := p.left()
	h.must(got == was, settleIsTrue, "what was regained long ago is cancelled after the limit has changed; before, the key answers %s, and after that %s",
		described(was, nil), described(got, nil))
}

// longer returns the limit over a time several times as long, or a calendar with another period.
func (h *history) longer() ratelimit.Limit {
	l := h.limit
	if isCalendar(l) {
		return h.overAnother(l)
	}
	l.Rate.Per *= time.Duration(2 + h.rng.IntN(20))
	return l
}

// similar returns the limit with another rate, another capacity, or both.
func (h *history) similar() ratelimit.Limit {
	l := h.limit
	if h.chance(2) {
		l = h.resized(1 + h.rng.IntN(times(2, h.limit.Capacity())))
	}
	if isCalendar(l) && (l == h.limit || h.chance(2)) {
		return h.overAnother(l)
	}
	if l == h.limit || h.chance(2) {
		l.Rate.Per = max(h.cfg.Resolution, h.up(time.Duration(float64(l.Rate.Per)*(0.25+4*h.rng.Float64()))))
	}
	return l
}

// playPeekChanged peeks at a key after a change of its limit, often when
// its bookings have come due. The next Take must return the same decision.
func playPeekChanged(h *history) {
	for range 6 {
		p := h.newKey()
		p.spend(1 + h.rng.IntN(max(1, p.left().Remaining)))
		var due time.Duration
		for range 1 + h.rng.IntN(3) {
			if r := p.reserve(p.cost(1), min(2*p.per(), year)); r.Allowed {
				due = r.Delay
			}
		}
		p.change(h.similar())
		h.advance([]time.Duration{due, due + h.cfg.Resolution, h.upto(due), h.upto(2 * due), 0}[h.rng.IntN(5)])
		cost := p.cost(p.limit.Capacity())
		peeked, err := p.peek(cost)
		h.must(err == nil, chargesNothing, "cost %d is within the capacity: %v", cost, err)
		d, _ := p.take(cost)
		p.must(peeked.Allowed == d.Allowed && peeked.RetryAfter == d.RetryAfter && peeked.Delay == d.Delay, chargesNothing,
			"the limit was changed; Peek says %s, and Take answers %s", described(peeked, nil), described(d, nil))
	}
}

// playSetLimit raises and lowers a limit in use, at the same rate or over the same
// windows. Spending stays spent and keeps its age, also while the clock is behind.
func playSetLimit(h *history) {
	p := h.newKey()
	capacity := h.limit.Capacity()
	p.spend(h.cost(capacity))
	h.pause(p.left())
	if canSetBack(h) && h.chance(3) {
		h.back(min(h.per(), year))
	}
	was := p.left()
	spent := capacity - was.Remaining
	for range 4 {
		p.change(h.resized(1 + h.rng.IntN(times(2, capacity))))
		if h.beyond(spent) {
			return
		}
		want := max(0, p.limit.Capacity()-spent)
		got := p.left()
		p.must(got.Remaining == want, spentStays, "%d were spent, the capacity is %d now, and %d remain", spent, p.limit.Capacity(), got.Remaining)
		if spent > p.limit.Capacity() {
			return // in windows, the excess moves into the next ones
		}
		p.must(got.ResetAfter == was.ResetAfter, spentStays, "the capacity is %d now, and ResetAfter is %v instead of %v", p.limit.Capacity(), got.ResetAfter, was.ResetAfter)
	}
}

// playLowered lowers the capacity below the spending. The key must wait no longer than if it spent
// the whole lower capacity at this instant. An immediate raise must restore the former budget.
func playLowered(h *history) {
	p := h.newKey()
	before := h.limit
	if before.Capacity() < 2 {
		return
	}
	spent := 2 + h.rng.IntN(int(min(int64(before.Capacity()), 1<<40))-1)
	p.spend(spent)
	lower := h.resized(1 + h.rng.IntN(spent-1))
	p.change(lower)
	if h.beyond(spent) {
		return
	}
	q := h.newKey()
	q.spend(lower.Capacity())
	got, most := p.left(), q.left()
	h.must(got.Remaining == 0 && got.ResetAfter <= most.ResetAfter, spentStays,
		"%d were spent, the capacity is %d now, and %d remain, with a ResetAfter of %v; that of a key that has spent the whole capacity is %v",
		spent, lower.Capacity(), got.Remaining, got.ResetAfter, most.ResetAfter)
	if h.chance(2) {
		p.change(before)
		got = p.left()
		h.must(got.Remaining == before.Capacity()-spent, spentStays, "%d of %d were spent, the limit was lowered and raised at once, and %d remain",
			spent, before.Capacity(), got.Remaining)
		return
	}
	h.advance(got.ResetAfter)
	p.spend(lower.Capacity())
}

// playSetBooked changes the limit of a key with a booking. Bookings keep their instants.
// Their cost counts from then on, even if other calls are allowed before them.
func playSetBooked(h *history) {
	if h.limit.Algorithm == ratelimit.AlgorithmLeakyBucket {
		return
	}
	p := h.newKey()
	d := p.spend(h.limit.Capacity())
	cost := h.cost(1)
	r := p.reserve(cost, min(2*d.ResetAfter, 10*year))
	if !r.Allowed || r.Delay == 0 {
		return
	}
	p.change(h.similar())
	if cost > p.limit.Capacity() || h.beyond(times(2, h.limit.Capacity())) {
		return
	}
	at := p.upto(r.Delay)
	p.advance(at)
	_, _ = p.take(1)
	p.advance(r.Delay - at)
	left := p.left()
	p.must(left.Remaining <= p.limit.Capacity()-cost, reserveIsTrue, "a later caller gets in before what is booked: %d is due, and does not count: %s", cost, described(left, nil))
}

// playSetOften changes a limit several times at one instant: it tightens and raises it, also
// across algorithms, and makes calls in between. Spending stays spent, and does not grow.
func playSetOften(h *history) {
	p := h.newKey()
	first, spent := h.limit, h.cost(int(min(int64(h.limit.Capacity()), 1<<40)))
	p.spend(spent)
	for range 5 {
		l := h.other()
		if h.chance(2) {
			l = h.newLimit(l.Algorithm, ratelimit.Per(1+h.rng.IntN(times(2, spent)), per(first)), 1+h.rng.IntN(times(2, spent)))
		}
		p.set(l)
		if h.beyond(spent) {
			return
		}
		for range h.rng.IntN(3) {
			cost := p.cost(max(0, l.Capacity()-spent))
			if d, _ := p.take(cost); d.Allowed {
				spent += cost
			}
		}
		got, want := p.left().Remaining, max(0, l.Capacity()-spent)
		p.must(got == want, spentStays, "%d were spent at this instant, under several limits; of %d now, %d remain, want %d", spent, l.Capacity(), got, want)
	}
}

// playSetUnpaid changes the limit, and then makes only uncharged calls. The returned times must be true.
func playSetUnpaid(h *history) {
	p := h.newKey()
	p.spend(h.cost(h.limit.Capacity()))
	h.advance(h.upto(p.left().ResetAfter))
	p.set(h.anyOther())
	d := p.unpaid(false)
	for range h.rng.IntN(3) {
		wait := h.upto(d.ResetAfter)
		h.advance(wait)
		next := p.unpaid(true)
		p.must(next.ResetAfter == d.ResetAfter-wait, resetAfterIsTrue, "after SetLimit, ResetAfter was %v, and %v later it is %v", d.ResetAfter, wait, next.ResetAfter)
		d = next
	}
	h.advance(d.ResetAfter)
	fresh := p.unpaid(true)
	p.must(fresh.ResetAfter == 0 && fresh.Remaining == p.limit.Capacity(), resetAfterIsTrue,
		"after SetLimit, ResetAfter was %v, and then the key answers %s", d.ResetAfter, described(fresh, nil))
	p.spend(p.limit.Capacity())
}

// unpaid returns a key's decision by a random uncharged call. It calls
// Peek only if peek is true: a Peek leaves the key under its former limit.
func (p *testedKey) unpaid(peek bool) ratelimit.Decision {
	capacity := p.limit.Capacity()
	switch n := p.rng.IntN(4); {
	case n == 0 && peek && p.has.peek != nil:
		d, _ := p.peek(p.cost(1))
		return d
	case n == 1 && p.has.reserver != nil:
		return p.reserve(0, 0).Decision
	case n == 2 && capacity < math.MaxInt:
		if d, _ := p.take(capacity + 1); d.Remaining > 0 || d.ResetAfter > 0 { // otherwise the error has no figures
			return d
		}
	}
	return p.left()
}

// playTighten sets a limit under which the key becomes fresh much later. A denial's
// RetryAfter and ResetAfter must be true, even after the key has been idle for so long.
func playTighten(h *history) {
	p := h.newKey()
	p.spend(h.cost(h.limit.Capacity()))
	p.set(h.tighter())
	left := p.left().Remaining
	cost := min(p.limit.Capacity(), left+1+h.rng.IntN(3))
	d, err := p.take(cost)
	p.must(err == nil && !d.Allowed, spentStays, "%d remain after SetLimit, and cost %d answers %s", left, cost, described(d, err))
	if h.chance(2) {
		p.probeRetry(cost, d.RetryAfter)
		return
	}
	h.advance(d.ResetAfter - h.cfg.Resolution)
	early, _ := p.take(p.limit.Capacity())
	p.must(!early.Allowed, resetAfterIsTrue, "after SetLimit, ResetAfter was %v, and the whole capacity is free %v before", d.ResetAfter, h.cfg.Resolution)
}

// tighter returns the limit over a time up to 100,000 times as long.
func (h *history) tighter() ratelimit.Limit {
	for longer := time.Duration(100_000); longer > 1; longer /= 10 {
		l := h.limit
		if l.Rate.Per < year/longer {
			l.Rate.Per *= longer
		}
		if l.Rate.Per > h.per() && h.cfg.accepts(l) && h.chance(3) {
			return l
		}
	}
	return h.longer()
}

// anyOther returns another limit, of any kind.
func (h *history) anyOther() ratelimit.Limit {
	if h.chance(3) {
		return h.tighter()
	}
	return h.other()
}

// resized returns the limit with another capacity.
func (h *history) resized(capacity int) ratelimit.Limit {
	l := h.limit
	if h.isBucket() {
		l.Burst = capacity
	} else {
		l.Rate.Units = capacity
	}
	return l
}

// change sets another limit, and checks that the key's next decision contains it.
func (p *testedKey) change(l ratelimit.Limit) {
	p.set(l)
	var d ratelimit.Decision
	err := again(func() (err error) { d, err = p.lim.Take(p.ctx(), p.key, 0); return err })
	p.reached(err)
	p.must(err == nil && d.Limit == l, spentStays, "%v was set, and the key answers for %v (%v)", l, d.Limit, err)
}

// playSameLimit sets the limit in force again. Nothing must change.
func playSameLimit(h *history) {
	a, b := h.newKey(), h.keyOfAnother()
	for range 12 {
		cost := h.cost(a.left().Remaining)
		a.change(h.limit)
		da, _ := a.take(cost)
		db, _ := b.take(cost)
		h.must(da == db, spentStays, "an equal limit was set, and the key answers %s instead of %s", described(da, nil), described(db, nil))
		h.pause(da)
	}
}

// playSetOther sets a limit with another rate or another algorithm. Spending stays spent, and is regained at the new rate.
func playSetOther(h *history) {
	p := h.newKey()
	capacity := h.limit.Capacity()
	spent := h.cost(capacity)
	p.spend(spent)
	p.change(h.other())
	book := h.newBook()
	got := p.left().Remaining
	want := max(0, p.limit.Capacity()-spent)
	h.must(got == want, spentStays, "%d were spent, and now the limit is %v: %d remain, want %d", spent, p.limit, got, want)
	if h.beyond(spent) {
		return
	}
	if spent > p.limit.Capacity() {
		p.probe(p.cost(1))
		return
	}
	book.model.spend(h.now, spent)
	for range 5 {
		p.compareChanged(book, p.cost(p.left().Remaining))
		h.pause(p.left())
	}
}

// compareChanged makes a call under a changed limit, and compares it with the book.
func (p *testedKey) compareChanged(book *book, cost int) {
	got, err := p.take(cost)
	book.guess = got
	want := book.decide(p.now, cost)
	p.must(err == nil && got == want, spentStays, "what was spent under the limit before counts under this one as if it was spent under it; Take answers %s, want %s",
		described(got, err), described(want, nil))
}

// probe takes a cost, which must be denied, and checks the denial's RetryAfter.
func (p *testedKey) probe(cost int) {
	d, err := p.take(cost)
	p.must(err == nil && !d.Allowed, spentStays, "more is spent than the limit holds, and cost %d answers %s", cost, described(d, err))
	p.probeRetry(cost, d.RetryAfter)
}

// other returns a limit with another rate, of the same algorithm or another one.
func (h *history) other() ratelimit.Limit {
	if h.chance(3) {
		return h.similar()
	}
	tried := algorithms
	if h.cfg.noCalendars != "" {
		tried = tried[:len(tried)-1]
	}
	l := h.cfg.randomLimit(tried[h.rng.IntN(len(tried))], h.rng)
	if h.chance(2) && l.Algorithm != h.limit.Algorithm {
		l = h.newLimit(l.Algorithm, ratelimit.Per(h.limit.Rate.Units, h.per()), h.limit.Capacity())
	}
	return l
}

// playSetLater sets another limit some time after the spending. The part
// regained by then was regained at the old rate, and the rest stays spent.
func playSetLater(h *history) {
	p, old := h.newKey(), h.newModel(h.limit)
	spent := h.cost(h.limit.Capacity())
	p.spend(spent)
	old.spend(h.now, spent)
	l := h.other()
	if h.isBucket() {
		h.advance(h.upto(p.left().ResetAfter))
	} else {
		h.advance(h.upto(min(h.per(), per(l)) - h.cfg.Resolution)) // spending keeps its age
	}
	rest := old.used(h.now)
	p.change(l)
	want, got := max(0, l.Capacity()-rest), p.left().Remaining
	h.must(got == want, spentStays, "%d were still spent when the limit became %v, and %d remain, want %d", rest, l, got, want)
	p.take(1)
	if want == 0 && !h.beyond(rest) {
		p.probe(p.cost(1))
	}
}

// playSetInvalid sets invalid limits. SetLimit must return an error, and change nothing.
func playSetInvalid(h *history) {
	a, b := h.newKey(), h.keyOfAnother()
	cost := h.cost(h.limit.Capacity())
	a.spend(cost)
	b.spend(cost)
	for _, l := range append(h.invalidLimits(), ratelimit.Limit{}) {
		err := again(func() error { return a.has.setLimit(h.ctx(), l) })
		h.note("SetLimit(%+v): %v", l, err)
		h.reached(err)
		h.must(errors.Is(err, ratelimit.ErrInvalidLimit), spentStays, "SetLimit(%+v) answers %v", l, err)
	}
	h.alike(spentStays, a, b, "one has been refused limits")
}

// playSetNothing changes a limit to Blocked and Unlimited, which count nothing, and back. Spending stays spent.
func playSetNothing(h *history) {
	p := h.newKey()
	limit, spent := h.limit, h.cost(h.limit.Capacity())
	p.spend(spent)
	if h.cfg.accepts(ratelimit.Blocked()) {
		p.change(ratelimit.Blocked())
		p.errs(ratelimit.ErrExceedsLimit, 1)
	}
	if h.cfg.accepts(ratelimit.Unlimited()) {
		p.change(ratelimit.Unlimited())
		p.spend(limit.Capacity())
	}
	p.change(limit)
	got := p.left().Remaining
	h.must(got == limit.Capacity()-spent, spentStays, "%d were spent of %d, then for an instant the limit counted nothing, and %d remain", spent, limit.Capacity(), got)
}
