package ratelimit

import (
	"math"
	"math/bits"
)

// tokenBucket is the token bucket as a debt in time: state.at, and state.n in
// fractions of 1/units ns, say when all that is spent will have been regained.
// A key may spend as long as that is no further away than regaining the burst
// takes. This is the virtual scheduling algorithm of ITU-T I.371 (GCRA), with
// the theoretical arrival time kept as a fraction, so that no rate is rounded.
//
// Over any interval t it admits at most burst + rate·t.
type tokenBucket struct {
	per, units int64 // one unit of cost takes per/units ns to regain, in lowest terms
	capacity   int64
	one, full  span // what a cost of 1 and of the whole capacity take to regain
}

func newTokenBucket(r Rate, burst int) tokenBucket {
	per, units := int64(r.Per), int64(r.Units)
	g := gcd(per, units)
	t := tokenBucket{per: per / g, units: units / g, capacity: int64(burst)}
	t.one = span{t.per / t.units, t.per % t.units}
	t.full = t.price(t.capacity)
	return t
}

// price returns the time in which n units are regained, at most a century.
func (t *tokenBucket) price(n int64) span {
	if n == 1 {
		return t.one
	}
	hi, lo := bits.Mul64(uint64(n), uint64(t.per))
	if hi >= uint64(t.units) {
		return span{ns: century}
	}
	ns, frac := bits.Div64(hi, lo, uint64(t.units))
	if ns >= uint64(century) {
		return span{ns: century}
	}
	return span{int64(ns), int64(frac)}
}

// worth returns how many units, and how many 1/per of one, a span regains.
func (t *tokenBucket) worth(d span) (n, rem int64) {
	hi, lo := bits.Mul64(uint64(d.ns), uint64(t.units))
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

func (t *tokenBucket) plus(a, b span) span {
	c := span{a.ns + b.ns, a.frac + b.frac}
	if c.frac >= t.units {
		c.ns, c.frac = c.ns+1, c.frac-t.units
	}
	return c
}

func (t *tokenBucket) minus(a, b span) span {
	c := span{a.ns - b.ns, a.frac - b.frac}
	if c.frac < 0 {
		c.ns, c.frac = c.ns-1, c.frac+t.units
	}
	return c
}

// fits returns the first instant at which owed + price ≤ full, rounded up.
func (t *tokenBucket) fits(s state, now, cost int64) int64 {
	ns, frac := s.at, s.n
	if ns < now {
		ns, frac = now, 0
	}
	price := t.one
	if cost != 1 {
		price = t.price(cost)
	}
	at := ns - t.full.ns + price.ns
	if frac += price.frac - t.full.frac; frac > t.units {
		at += 2
	} else if frac > 0 {
		at++
	}
	return max(at, now)
}

func (t *tokenBucket) earliest(s state, now, cost int64) int64 {
	return s.behind(t.fits(s, now, cost))
}

func (t *tokenBucket) spend(s state, at, cost int64) state {
	if s.at < at {
		s.at, s.n = at, 0
	}
	return t.owe(s, at, cost)
}

// owe adds a cost to what is owed; never so much that at some instant a century and
// more is, which only bookings made under another limit could come to.
func (t *tokenBucket) owe(s state, at, cost int64) state {
	d := t.plus(span{s.at, s.n}, t.price(cost))
	if d.ns-at >= century {
		d = span{ns: satAdd(at, century)}
	}
	s.at, s.n = d.ns, d.frac
	return s
}

// pay spends the cost at now and reports true, if it fits: earliest and spend in one.
func (t *tokenBucket) pay(s *state, now, cost int64) bool {
	// As a span from now, because an instant and two such spans may add up to more
	// than 2^63 ns.
	owed := span{s.at - now, s.n}
	if owed.ns < 0 {
		owed = span{}
	}
	price := t.one
	if cost != 1 {
		price = t.price(cost)
	}
	if owed = t.plus(owed, price); t.full.less(owed) {
		return false
	}
	s.at, s.n = now+owed.ns, owed.frac
	return true
}

func (t *tokenBucket) refund(s state, now int64, sp spending, actual int64) state {
	if sp.changed {
		return s // how much of it has been regained, at other rates, is not known
	}
	left := t.minus(t.price(sp.cost), span{ns: max(0, now-sp.at)})
	back := t.price(sp.cost - actual)
	if left.less(back) {
		back = left
	}
	return t.regain(s, now, back)
}

// regain lets a key off a part of what it owes, if that is more than nothing.
func (t *tokenBucket) regain(s state, now int64, back span) state {
	if back.ns < 0 {
		return s
	}
	owed := t.minus(s.owed(now), back)
	if owed.ns < 0 {
		owed = span{}
	}
	s.at, s.n = now+owed.ns, owed.frac
	return s
}

func (t *tokenBucket) charge(s state, now, n int64) state { return t.spend(s, now, n) }

func (t *tokenBucket) forgive(s state, now, n int64) state { return t.regain(s, now, t.price(n)) }

func (t *tokenBucket) advance(s state, now int64) state {
	if t.regained(s) <= now {
		s.at, s.n = now, 0
	}
	return s
}

func (t *tokenBucket) remaining(s state, now int64) int64 {
	if s.behind(now) > now {
		return 0
	}
	return t.room(s, now)
}

func (t *tokenBucket) room(s state, now int64) int64 {
	owed := s.owed(now)
	if owed == (span{}) {
		return t.capacity
	}
	left := t.minus(t.full, owed)
	if left.ns < 0 {
		return 0
	}
	n, _ := t.worth(left)
	return n
}

func (t *tokenBucket) regained(s state) int64 {
	if s.n > 0 {
		return s.at + 1
	}
	return s.at
}

func (t *tokenBucket) spent(s state, now int64) int64 {
	n, rem := t.worth(s.owed(now))
	if rem > 0 {
		n++
	}
	return n
}
