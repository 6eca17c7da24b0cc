package ratelimittest

import (
	"time"

	"github.com/weir-go/ratelimit"
)

// longHistory is how many decisions are made on one key.
const longHistory = 1500

// playLong makes many decisions on one key, and keeps the book beside it: nothing is
// forgotten, resized or rounded after the first thousand. Most of them are allowed in every
// second history, and about half of them in the others.
func playLong(h *history) {
	l := newLimit(h.limit.Algorithm, ratelimit.PerMinute(5*longHistory), 5*longHistory)
	if h.chance(2) {
		l = newLimit(h.limit.Algorithm, ratelimit.PerSecond(7), 5)
	}
	if h.cfg.accepts(l) {
		h.limit = l
		h.use(h.newLimiter(l))
	}
	p, book := h.party(), h.newBook()
	gap := max(h.cfg.Resolution, h.up(2*h.limit.Rate.Per/time.Duration(h.limit.Rate.Units)))
	for i := range longHistory {
		p.longStep(book, i)
		if h.limit.Rate.Units < longHistory || i%50 == 0 {
			h.pauseShort(gap)
		}
	}
}

// longStep makes one decision. The book's figures take longer, so it is asked for them
// now and then.
func (p *party) longStep(book *book, i int) {
	if i%37 == 0 {
		p.booked(book, 1)
		return
	}
	want := book.account.used(p.now) < p.limit.Capacity()
	if want {
		book.account.spend(p.now, 1)
	}
	p.compareAllowed(p.allow(1), want)
}

// pauseShort moves time on by up to d, unless that leads too far.
func (h *history) pauseShort(d time.Duration) {
	if next := h.upto(d); h.now+next < h.patience() {
		h.advance(next)
	}
}

// playNothingFirst asks a fresh key for what charges nothing some time before it spends: that
// opens no window, and starts no clock.
func playNothingFirst(h *history) {
	a, b := h.party(), h.party()
	if h.chance(2) { // fresh, after it was used
		a.spend(1)
		b.spend(1)
		h.advance(max(a.left().ResetAfter, b.left().ResetAfter))
	}
	h.advance(h.upto(h.limit.Rate.Per))
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
	h.advance(h.cfg.Resolution + h.upto(h.limit.Rate.Per))
	h.alike(chargesNothing, a, b, "one was asked for nothing some time ago, when it was fresh")
}
