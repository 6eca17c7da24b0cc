package ratelimit

import (
	"math"
	"math/bits"
)

// tokenBucket is the token bucket as a debt in time: state.at, and state.n in
// fractions of 1/units ns, are the instant at which all that is spent is regained.
// A key may spend as long as that instant is no further away than the time in which the
// burst is regained. This is the virtual scheduling algorithm of ITU-T I.371 (GCRA), with
// the theoretical arrival time kept as a fraction, so that no rate is rounded.
//
// Over any interval t it admits at most burst + rate·t. That holds because each cost moves
// the instant by its whole price, and only the passing of time brings it closer.
type tokenBucket struct {
	per, units int64 // one unit of cost takes per/units ns to regain, in lowest terms
	capacity   int64
	one, full  span // in which a cost of 1, and the whole capacity, are regained
}

func newTokenBucket(r Rate, burst int) tokenBucket {
	per, units := int64(r.Per), int64(r.Units)
	g := gcd(per, units)
	t := tokenBucket{per: per / g, units: units / g, capacity: int64(burst)}
	t.one = span{t.per / t.units, t.per % t.units}
	t.full = t.price(t.capacity)
	return t
}

// bounds returns how much may be owed, and how far ahead may be booked: as much as a
// century regains, and no less than the capacity.
func (t *tokenBucket) bounds() (maxDebt, maxAhead int64) {
	n, _ := t.worth(span{ns: century})
	maxDebt = max(min(n, mostCounted), t.capacity)
	return maxDebt, max(0, t.price(maxDebt).ns-t.full.ns)
}

// price returns the time in which n units are regained, at most a century. A cost of 1 is
// by far the most frequent, and its price is known.
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

// worth returns how many units, and how many 1/per of one, are regained in a span.
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

// fits returns the first instant at which owed + price ≤ full, rounded up. The two
// fractions together may be more than one nanosecond, and each part of one rounds up.
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

// earliest: what is booked is spent already, so the cost fits behind it whenever it fits,
// but not before the last booking's instant.
func (t *tokenBucket) earliest(s state, now, cost int64) int64 {
	return s.behind(t.fits(s, now, cost))
}

func (t *tokenBucket) spend(s state, at, cost int64) state {
	if s.at < at {
		s.at, s.n = at, 0
	}
	return t.owe(s, at, cost)
}

// owe adds a cost to what is owed, up to a century. Only bookings that were made under
// another limit can add up to more. The sum may overflow, the difference does not.
func (t *tokenBucket) owe(s state, at, cost int64) state {
	d := t.plus(span{s.at, s.n}, t.price(cost))
	if d.ns-at >= century {
		d = span{ns: satAdd(at, century)}
	}
	s.at, s.n = d.ns, d.frac
	return s
}

// refund counts as if the spending had been the first to be regained since its instant. It
// may be behind others in truth; then less is given back than could be, and the bound
// holds for every interval.
func (t *tokenBucket) refund(s state, now int64, sp spending, actual int64) state {
	if sp.changed {
		return s // how much was regained at the other rate is not known
	}
	left := t.minus(t.price(sp.cost), span{ns: max(0, now-sp.at)})
	back := t.price(sp.cost - actual)
	if left.less(back) {
		back = left
	}
	return t.regain(s, now, back)
}

// regain reduces the debt by a span, if that is not below zero.
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

// advance makes all instants that are past one, so that a fresh key has no fraction.
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

// room returns what fits beside what is owed.
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

// spent rounds up, so that a changed limit does not round a spending away.
func (t *tokenBucket) spent(s state, now int64) int64 {
	n, rem := t.worth(s.owed(now))
	if rem > 0 {
		n++
	}
	return n
}
