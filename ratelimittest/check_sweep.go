package ratelimittest

import (
	"math/big"
	"time"

	"github.com/weir-go/ratelimit"
)

// playSweep sweeps one limiter repeatedly, and another never. Both must answer alike.
func playSweep(h *history) {
	swept, kept := h.newKey(), h.keyOfAnother()
	for range 12 {
		cost := h.cost(swept.left().Remaining)
		swept.sweep()
		a, _ := swept.take(cost)
		b, _ := kept.take(cost)
		h.must(a == b, sweepIsSafe, "after a sweep %s, and without %s", described(a, nil), described(b, nil))
		h.pause(a)
	}
}

// playSweepAll is playSweep with bookings, settlements, grants and debts.
func playSweepAll(h *history) {
	swept, kept := h.newKey(), h.keyOfAnother()
	both := []*testedKey{swept, kept}
	for range 12 {
		cost, delay := h.cost(swept.left().Remaining), h.upto(min(2*h.per(), year))
		actual, delta, what := 1+h.rng.IntN(cost), swept.correction(), h.rng.IntN(4)
		var d [2]ratelimit.Decision
		for i, p := range both {
			switch {
			case what == 0 && p.has.adjust != nil:
				p.adjust(delta)
			case what <= 1 && p.has.reserver != nil:
				p.reserve(cost, delay)
			case what == 2 && p.has.reserver != nil:
				if r := p.reserve(cost, delay); r.Allowed {
					p.settle(r, actual)
				}
			default:
				p.take(cost)
			}
			d[i] = p.left()
		}
		h.must(d[0] == d[1], sweepIsSafe, "after a sweep %s, and without %s", described(d[0], nil), described(d[1], nil))
		swept.sweep()
		if canSetBack(h) && h.chance(4) {
			h.sweptBehind(swept)
		}
		h.pause(d[0])
	}
}

// playSweepChanged sweeps after the limit has changed. The sweep must use the limit in force.
func playSweepChanged(h *history) {
	swept, kept := h.newKey(), h.keyOfAnother()
	cost, l := h.cost(h.limit.Capacity()), h.anyOther()
	first := swept.spend(cost) // its ResetAfter is when the key becomes fresh under the former limit
	kept.spend(cost)
	swept.set(l)
	kept.set(l)
	for range 5 {
		cost := h.cost(1)
		a, _ := swept.take(cost)
		b, _ := kept.take(cost)
		h.must(a == b, sweepIsSafe, "the limit was changed; after a sweep %s, and without %s", described(a, nil), described(b, nil))
		old := first.ResetAfter + h.upto(time.Duration(h.rng.IntN(2))*idle)
		if h.chance(2) && old < a.ResetAfter {
			h.advance(old)
		} else {
			h.pause(a)
		}
		swept.sweep()
	}
}

// sweptBehind sweeps while the clock is behind the key's highest reading.
func (h *history) sweptBehind(p *testedKey) {
	gap := h.back(min(h.per(), year))
	p.sweep()
	h.move(gap)
}

// playSweepDrops sweeps just before a key is fresh, and long after.
// The first sweep must keep the key, and the second must drop it.
func playSweepDrops(h *history) {
	p := h.newKey()
	p.sweep()
	before := h.has.count()
	p.spend(h.cost(h.limit.Capacity()))
	d := p.left()
	h.advance(d.ResetAfter - h.cfg.Resolution)
	p.sweep()
	got := h.has.count()
	h.must(got == before+1, sweepIsSafe, "a key that is not fresh for another %v was swept: there are %d keys, want %d", h.cfg.Resolution, got, before+1)
	h.advance(h.cfg.Resolution + h.up(idle))
	p.sweep()
	got = h.has.count()
	h.must(got == before, sweepIsSafe, "a key has been fresh for %v and was not swept: there are %d keys, want %d", idle, got, before)
}

// idle is longer than any engine needs to keep a fresh key.
const idle = 24 * time.Hour

// playSweepSwing sweeps while the clock alternates between two readings. A key
// dropped at the higher reading must not get a second budget at the lower one.
func playSweepSwing(h *history) {
	p := h.newKey()
	per, capacity := h.per(), h.limit.Capacity()
	total := big.NewInt(int64(capacity))
	ahead := p.spend(capacity).ResetAfter + h.upto(min(per, year))
	bound := big.NewInt(int64(capacity))
	switch {
	case h.isBucket():
		bound = h.most(ahead)
	case isCalendar(h.limit):
		bound.Mul(bound, big.NewInt(datesOf(h.limit.Period).count(h.windowAt(h.now), h.windowAt(h.now+ahead))))
	default:
		bound.Mul(bound, big.NewInt(int64(ahead/per+2)))
	}
	for i := range 20 {
		h.advance(ahead)
		p.sweep()
		h.move(-ahead)
		n := p.left().Remaining
		if n > 0 {
			p.spend(n)
		}
		total.Add(total, big.NewInt(int64(n)))
		h.must(total.Cmp(bound) <= 0, timeIsMonotonic,
			"the clock has swung %d times by %v, with a Sweep each time; %v were allowed, and the bound is %v", i+1, ahead, total, bound)
	}
}
