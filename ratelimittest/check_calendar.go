package ratelimittest

import (
	"math/big"
	"time"
)

// lookAgain is how soon an engine must notice a change of the wall clock.
const lookAgain = time.Minute

// setWall sets the wall clock forward by a span, or back if it is negative. Then it waits until engines must have noticed.
func (h *history) setWall(by time.Duration) {
	h.cfg.Clock.SetWall(h.cfg.Clock.Wall().Add(by))
	h.note("the wall clock is set by %v", by)
	h.advance(h.up(lookAgain))
}

// wallStep returns a span for setting the wall clock forward or back: at least a second, and
// sometimes beyond a window's end. An engine need not notice a step below a millisecond.
func (h *history) wallStep() time.Duration {
	r, next, least := h.cfg.Resolution, h.untilNext(), h.up(time.Second)
	spans := []time.Duration{least, h.upto(time.Hour), next, next - r, next + r, h.upto(h.per()), h.upto(3 * h.per())}
	return max(least, spans[h.rng.IntN(len(spans))])
}

// playWall compares with the book while the wall clock is set forward and back. The key spends
// before each step, because only spending keeps it in its window when the clock is set back.
func playWall(h *history) {
	p, book := h.newKey(), h.newBook()
	left := h.limit.Capacity()
	for range 24 {
		d := p.booked(book, p.cost(left))
		left = d.Remaining
		switch h.rng.IntN(4) {
		case 0:
			h.setWall(h.wallStep())
		case 1:
			if back := h.wallStep(); d.ResetAfter > 0 {
				h.setWall(-back)
			}
		default:
			h.pause(d)
		}
	}
}

// playWallSettle reserves in one window, and settles in a later one
// after the wall clock was set back to the first. Nothing is given back.
func playWallSettle(h *history) {
	a, b := h.newKey(), h.newKey()
	r := a.reserve(h.cost(h.limit.Capacity()), 0)
	h.advance(h.untilNext())
	cost := h.cost(h.limit.Capacity())
	a.spend(cost)
	b.spend(cost)
	h.setWall(-h.up(time.Second) - h.upto(h.per()))
	a.settle(r, h.rng.IntN(2))
	h.alike(settleIsTrue, a, b, "one has settled what it had reserved in the window before, to which the wall clock was set back")
}

// playWallSweep sets the wall clock forward and back over boundaries,
// with a sweep after each step. Each window is still granted only once.
func playWallSweep(h *history) {
	p, capacity := h.newKey(), h.limit.Capacity()
	ahead := h.untilNext() + h.upto(2*h.per())
	first, last := h.windowAt(h.now), h.windowAt(h.now)
	total := new(big.Int)
	for i := range 12 {
		n := p.left().Remaining
		if n > 0 {
			p.spend(n)
		}
		total.Add(total, big.NewInt(int64(n)))
		most := big.NewInt(int64(capacity))
		most.Mul(most, big.NewInt(datesOf(h.limit.Period).count(first, last)))
		h.must(total.Cmp(most) <= 0, boundHolds, "the wall clock was set %d times; %v were spent from %v to %v, and the bound is %v", i, total, first.from, last.to, most)
		if i%2 == 0 {
			h.setWall(ahead)
		} else {
			h.setWall(-ahead - h.up(lookAgain))
		}
		if w := h.windowAt(h.now); w.to.After(last.to) {
			last = w
		} else if w.from.Before(first.from) {
			first = w
		}
		if p.has.sweep != nil {
			p.sweep()
		}
	}
}
