package meter

import (
	"math"
	"math/bits"
)

// tokenBucket counts a debt in time. State.At, with State.N as its fraction in 1/units of a tick, is when all spending is
// regained. A key may spend while the time until then is at most the time to regain the burst. This is the virtual
// scheduling algorithm of ITU-T I.371 (GCRA), with the theoretical arrival time kept as a fraction, so no rate is rounded.
//
// Over any interval t it admits at most burst + rate·t, because each cost
// moves the instant by its whole price, and only time brings it closer.
//
// An example: 10 units each second, a burst of 30, ticks of 1 ms. A unit takes 100 ticks to regain, and the whole burst
// 3 000. A fresh key at 5 000 spends 4: all is regained at 5 400. At 5 000 it may spend until this instant is 8 000.
type tokenBucket struct {
	per, units int64 // one unit of cost takes per/units ticks to regain, in lowest terms
	capacity   int64
	one, full  span  // the spans to regain a cost of 1, and the whole capacity
	horizon    int64 // the maximum debt, as a time span
}

func newTokenBucket(l Limit) tokenBucket {
	// In lowest terms the fractions are smallest, and two limits of
	// one rate have the same figures: then convert has nothing to do.
	g := GCD(l.Per, l.Units)
	t := tokenBucket{per: l.Per / g, units: l.Units / g, capacity: l.Burst, horizon: l.Horizon}
	t.one = span{t.per / t.units, t.per % t.units}
	t.full = t.price(t.capacity)
	return t
}

// bounds returns the maximum debt, and how far ahead bookings may be: each
// as much as is regained within the horizon, but at least the capacity.
func (t *tokenBucket) bounds(most int64) (maxDebt, maxAhead int64) {
	n, _ := t.worth(span{ticks: t.horizon})
	maxDebt = max(min(n, most), t.capacity)
	return maxDebt, max(0, t.price(maxDebt).ticks-t.full.ticks)
}

// price returns the time to regain n units, at most the horizon. A
// cost of 1 is by far the most frequent, so its price is precomputed.
func (t *tokenBucket) price(n int64) span {
	if n == 1 {
		return t.one
	}
	hi, lo := bits.Mul64(uint64(n), uint64(t.per))
	if hi >= uint64(t.units) { // the quotient has more than 64 bits, and Div64 would panic
		return span{ticks: t.horizon}
	}
	ticks, frac := bits.Div64(hi, lo, uint64(t.units))
	if ticks >= uint64(t.horizon) {
		return span{ticks: t.horizon}
	}
	return span{int64(ticks), int64(frac)}
}

// worth returns how many units, and parts of 1/per of a unit, are regained in a span: the
// inverse of price. It is (ticks + frac/units) · units / per, and so (ticks·units + frac) / per.
func (t *tokenBucket) worth(d span) (n, rem int64) {
	hi, lo := bits.Mul64(uint64(d.ticks), uint64(t.units))
	lo, carry := bits.Add64(lo, uint64(d.frac), 0)
	if hi += carry; hi == 0 {
		return int64(min(lo/uint64(t.per), math.MaxInt64)), int64(lo % uint64(t.per))
	}
	if hi >= uint64(t.per) {
		return math.MaxInt64, 0
	}
	q, r := bits.Div64(hi, lo, uint64(t.per))
	return int64(min(q, math.MaxInt64)), int64(r)
}

// plus and minus carry and borrow whole ticks, so a span's fraction stays from 0 to below units.
func (t *tokenBucket) plus(a, b span) span {
	c := span{a.ticks + b.ticks, a.frac + b.frac}
	if c.frac >= t.units {
		c.ticks, c.frac = c.ticks+1, c.frac-t.units
	}
	return c
}

func (t *tokenBucket) minus(a, b span) span {
	c := span{a.ticks - b.ticks, a.frac - b.frac}
	if c.frac < 0 {
		c.ticks, c.frac = c.ticks-1, c.frac+t.units
	}
	return c
}

// fits returns the first instant when owed + price ≤ full, rounded up. The sum of
// the two fractions may be more than one tick, and any remaining fraction rounds up.
func (t *tokenBucket) fits(s State, now, cost int64) int64 {
	// All spending is regained at whole + frac/units, so the instant is whole + frac/units - full + price.
	whole, frac := s.At, s.N
	if whole < now {
		whole, frac = now, 0
	}
	price := t.one
	if cost != 1 {
		price = t.price(cost)
	}
	at := whole - t.full.ticks + price.ticks
	if frac += price.frac - t.full.frac; frac > t.units {
		at += 2
	} else if frac > 0 {
		at++
	}
	return max(at, now)
}

// A booked cost already counts as spending, so fits leaves room for it. The new
// cost is spent no earlier than the last booking, so it does not overtake it.
func (t *tokenBucket) earliest(s State, now, cost int64) int64 {
	return s.behind(t.fits(s, now, cost))
}

func (t *tokenBucket) spend(s State, at, cost int64) State {
	if s.At < at {
		s.At, s.N = at, 0
	}
	return t.owe(s, at, cost)
}

// owe adds a cost to the debt, up to the horizon. Only bookings made under another
// limit can add up to more. The sum may overflow; the difference does not.
func (t *tokenBucket) owe(s State, at, cost int64) State {
	d := t.plus(span{s.At, s.N}, t.price(cost))
	if d.ticks-at >= t.horizon {
		d = span{ticks: Add(at, t.horizon)}
	}
	s.At, s.N = d.ticks, d.frac
	return s
}

// refund assumes that the spending was the first to be regained since its instant. If others
// came before it, refund gives back less than possible. So the bound holds for every interval.
func (t *tokenBucket) refund(s State, now int64, sp Spending, actual int64) State {
	if sp.Changed {
		return s // the amount regained at the other rate is not known
	}
	left := t.minus(t.price(sp.Cost), span{ticks: max(0, now-sp.At)}) // the unregained part of its price
	back := t.price(sp.Cost - actual)
	if left.less(back) {
		back = left
	}
	return t.regain(s, now, back)
}

// regain reduces the debt by a span, but not below zero.
func (t *tokenBucket) regain(s State, now int64, back span) State {
	if back.ticks < 0 {
		return s
	}
	owed := t.minus(s.owed(now), back)
	if owed.ticks < 0 {
		owed = span{}
	}
	s.At, s.N = now+owed.ticks, owed.frac
	return s
}

// charge and forgive do not check whether n units fit: charge may make a debt, and forgive stops at a fresh key.
func (t *tokenBucket) charge(s State, now, n int64) State { return t.spend(s, now, n) }

func (t *tokenBucket) forgive(s State, now, n int64) State { return t.regain(s, now, t.price(n)) }

// advance replaces an instant before now by now, so all fresh keys have the same state, without a fraction.
func (t *tokenBucket) advance(s State, now int64) State {
	if t.regained(s) <= now {
		s.At, s.N = now, 0
	}
	return s
}

// remaining is 0 while there is a later booking, because a cost spent now would overtake it.
func (t *tokenBucket) remaining(s State, now int64) (n, debt int64) {
	if n, debt = t.room(s, now); s.behind(now) > now {
		n = 0
	}
	return n, debt
}

// room returns how many units fit in addition to the debt in time, and the number of units above the capacity.
func (t *tokenBucket) room(s State, now int64) (n, debt int64) {
	owed := s.owed(now)
	if owed == (span{}) {
		return t.capacity, 0
	}
	left := t.minus(t.full, owed)
	if left.ticks < 0 {
		return 0, t.spent(s, now) - t.capacity
	}
	if left.less(t.one) { // most denials end here, without a division
		return 0, 0
	}
	n, _ = t.worth(left)
	return n, 0
}

// regained rounds up, because an instant is a whole tick.
func (t *tokenBucket) regained(s State) int64 {
	if s.N > 0 {
		return s.At + 1
	}
	return s.At
}

// spent rounds up, so a changed limit does not round a spending away.
func (t *tokenBucket) spent(s State, now int64) int64 {
	n, rem := t.worth(s.owed(now))
	if rem > 0 {
		n++
	}
	return n
}
