package ratelimittest

import "time"

// back sets the clock back by a random span, and returns it.
func (h *history) back(most time.Duration) time.Duration {
	d := h.upto(most)
	h.move(-d)
	h.note("the clock steps back by %v", d)
	return d
}

// playBack sets the clock back right after a spending: nothing is minted, and the figures
// include the gap.
func playBack(h *history) {
	p, book := h.party(), h.newBook()
	for range 8 {
		h.pause(p.left())
		p.gap(book, 1+h.rng.IntN(min(3, h.limit.Capacity())))
	}
}

// gap spends, steps back and compares every figure with that of the highest reading.
func (p *party) gap(book *book, cost int) {
	seen := p.now
	if d, _ := p.take(cost); !d.Allowed {
		book.decide(seen, cost)
		return
	}
	book.decide(seen, cost)
	gap := p.back(p.limit.Rate.Per)
	ask := p.cost(1)
	want := book.decide(seen, ask)
	got, err := p.take(ask)
	if want.RetryAfter > 0 {
		want.RetryAfter += gap
	}
	want.ResetAfter += gap
	if want.Delay > 0 {
		want.Delay += gap
	}
	p.must(err == nil && got == want, timeIsMonotonic, "the clock was %v ahead; Take answers %s; want %s",
		gap, described(got, err), described(want, nil))
	p.move(gap)
}

// playSwing lets the clock swing between two readings, as it does for callers that have read
// it before they got the lock: all that is spent is within the bound of the higher one.
func playSwing(h *history) {
	p, account := h.party(), newAccount(h.limit)
	ahead := h.cfg.Resolution + h.upto(h.limit.Rate.Per/10)
	h.advance(ahead)
	high := h.now
	for i := range 60 {
		fits := account.used(high) < h.limit.Capacity()
		if fits {
			account.spend(high, 1)
		}
		h.must(p.allow(1) == fits, timeIsMonotonic, "the clock has swung %d times by %v, and cost 1 is allowed: %v", i, ahead, !fits)
		h.move(ahead * time.Duration(i%2*2-1)) // down, up, down
	}
}

// playFarLook looks at a key from the far future, which records nothing.
func playFarLook(h *history) {
	a, b := h.party(), h.party()
	a.spend(h.limit.Capacity())
	b.spend(h.limit.Capacity())
	ahead := h.upto(span)
	h.move(ahead)
	a.peek(1)
	h.move(-ahead)
	h.alike(timeIsMonotonic, a, b, "one was looked at in the future")
}

// playReads counts how often a decision reads the clock.
func playReads(h *history) {
	p := h.party()
	d := p.left()
	for range 10 {
		cost := h.cost(d.Remaining)
		before := h.cfg.Clock.reads.Load()
		d, _ = p.take(cost)
		taken := h.cfg.Clock.reads.Load()
		p.allow(cost)
		allowed := h.cfg.Clock.reads.Load()
		h.must(taken-before == 1, timeIsMonotonic, "Take reads the clock %d times", taken-before)
		h.must(allowed-taken == 1, timeIsMonotonic, "Allow reads the clock %d times", allowed-taken)
		h.pause(d)
	}
}
