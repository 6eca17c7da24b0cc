package ratelimittest

import (
	"time"

	"github.com/weir-go/ratelimit"
)

// back sets the clock back by a random span, and returns it.
func (h *history) back(most time.Duration) time.Duration {
	d := h.upto(most)
	h.move(-d)
	h.note("the clock steps back by %v", d)
	return d
}

// playBack sets the clock back just after a spending. The key must regain nothing, and the figures must include the step.
func playBack(h *history) {
	p, book := h.newKey(), h.newBook()
	for range 8 {
		h.pause(p.left())
		p.gap(book, 1+h.rng.IntN(min(3, h.limit.Capacity())))
	}
}

// gap spends, sets the clock back, and compares every figure with the book's at the highest reading.
func (p *testedKey) gap(book *book, cost int) {
	seen := p.now
	if d, _ := p.take(cost); !d.Allowed {
		book.decide(seen, cost)
		return
	}
	book.decide(seen, cost)
	gap := p.back(p.per())
	second := p.cost(1)
	want := book.decide(seen, second)
	got, err := p.take(second)
	if got.NextAfter == 0 { // an engine may ignore NextAfter and leave it 0
		want.NextAfter = 0
	}
	if want.RetryAfter > 0 {
		want.RetryAfter += gap
	}
	want.ResetAfter += gap
	if want.NextAfter > 0 {
		want.NextAfter += gap
	}
	if want.Delay > 0 {
		want.Delay += gap
	}
	p.must(err == nil && got == want, timeIsMonotonic, "the clock was %v ahead; Take answers %s; want %s",
		gap, described(got, err), described(want, nil))
	p.behind(second, want)
	p.move(gap)
}

// behind compares Peek's figures after a Take with the expected ones, while the clock is behind the highest reading.
func (p *testedKey) behind(second int, want ratelimit.Decision) {
	if p.has.peek == nil {
		return
	}
	got, err := p.peek(second)
	p.must(err == nil && got.Remaining == want.Remaining && got.ResetAfter == want.ResetAfter, timeIsMonotonic,
		"the clock is behind; Take answers %s, and Peek %s", described(want, nil), described(got, err))
}

// playReserveBehind compares Reserve with Take while the clock is behind the key's highest reading.
func playReserveBehind(h *history) {
	if h.limit.Algorithm == ratelimit.AlgorithmLeakyBucket {
		return // playReserveExactly shows why
	}
	a, b := h.newKey(), h.newKey()
	h.advance(h.upto(min(h.per(), year)))
	cost := h.cost(h.limit.Capacity())
	a.spend(cost)
	b.spend(cost)
	gap := h.back(min(h.per(), year))
	for range 4 {
		cost := h.cost(a.left().Remaining)
		d, _ := a.take(cost)
		r := b.reserve(cost, 0)
		h.must(r.Decision == d, timeIsMonotonic, "the clock is behind; Take answers %s, and Reserve without a delay %s", described(d, nil), described(r.Decision, nil))
	}
	h.move(gap)
	h.alike(timeIsMonotonic, a, b, "one has spent by Take, the other by Reserve, while the clock was behind")
}

// playSwing alternates between two readings of the clock, as happens if callers read it
// before they get the lock. The total spending stays within the bound at the higher reading.
func playSwing(h *history) {
	p, model := h.newKey(), h.newModel(h.limit)
	ahead := h.cfg.Resolution + h.upto(h.per()/10)
	h.advance(ahead)
	high := h.now
	for i := range 60 {
		fits := model.used(high) < h.limit.Capacity()
		if fits {
			model.spend(high, 1)
		}
		h.must(p.allow(1) == fits, timeIsMonotonic, "the clock has swung %d times by %v, and cost 1 is allowed: %v", i, ahead, !fits)
		h.move(ahead * time.Duration(i%2*2-1)) // down, up, down
	}
}

// playFarLook peeks at a key from the far future. The key must not record this time.
func playFarLook(h *history) {
	a, b := h.newKey(), h.newKey()
	a.spend(h.limit.Capacity())
	b.spend(h.limit.Capacity())
	ahead := h.upto(span)
	h.move(ahead)
	a.peek(1)
	h.move(-ahead)
	h.alike(timeIsMonotonic, a, b, "one was looked at in the future")
}

// playReads checks that a decision reads the clock once. It leaves out
// calendars: for these, engines may read the clock again to find a window's end.
func playReads(h *history) {
	if isCalendar(h.limit) {
		return
	}
	p := h.newKey()
	d := p.left()
	for range 10 {
		cost := h.cost(d.Remaining)
		h.reads("Take", func() { d, _ = p.take(cost) })
		h.reads("Allow", func() { p.allow(cost) })
		if p.has.peek != nil {
			h.reads("Peek", func() { p.peek(cost) })
		}
		if p.has.reserver != nil {
			h.reads("Reserve", func() { p.reserve(cost, 0) })
		}
		h.pause(d)
	}
	h.reads("Take of cost 0", func() { p.left() })
	h.reads("Take of a key never seen", func() { h.newKey().take(1) })
	if p.has.reserver != nil {
		h.reads("Reserve of cost 0", func() { p.reserve(0, 0) })
		h.reads("Reserve of a key never seen", func() { h.newKey().reserve(1, 0) })
	}
	if p.has.wait != nil {
		h.reads("Wait", func() { h.newKey().waiting(h.ctx(), 1) })
	}
}

// reads checks that a call reads the clock once. A failed call may read it more often or not at all, and is repeated.
func (h *history) reads(what string, call func()) {
	h.counting = true
	defer func() { h.counting = false }()
	var n int64
	for range 1 + h.cfg.Retries {
		before := h.cfg.Clock.reads.Load()
		call()
		if n = h.cfg.Clock.reads.Load() - before; n == 1 {
			return
		}
	}
	h.fail(timeIsMonotonic, "%s reads the clock %d times", what, n)
}
