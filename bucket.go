package ratelimit

import (
	"math"
	"math/bits"
	"sync"
	"time"
)

// bucket is one key's lock and spending. It is exactly a cache line long on
// 64-bit machines, and knows neither its key nor the map that holds it.
//
// Lock order: a shard of the key map before a bucket, a bucket before one of a
// higher address. Under a bucket's lock only a Clock is called.
type bucket struct {
	mu sync.Mutex // guards the fields below

	plan   *plan // the limit in force when last decided; nil once the key map has dropped the bucket
	last   int64 // the highest clock reading recorded
	state        // what is spent as of last
	denied bool  // the last decision was no
	placed bool  // decided on before, if only to be created
	used   bool  // decided on since it was put in its place in the order of use, and not created by that
	pinned bool  // not to be dropped to make room: a decision on it is under way

	changes uint32 // how often the limit's figures have changed under it
}

// state is what a key has spent and not yet regained. What its words mean is up
// to the algorithm. state{at: t} with nothing else is a key that is as good as
// new at t and later, for all of them.
type state struct {
	at int64 // buckets: when all is regained; windows: where the current one begins; log: where the debt begins
	n  int64 // buckets: what at leaves out, in 1/units ns; windows: spent in this one; log: spent
	m  int64 // sliding counter: spent in the window before; log: debt

	*ledger // spendings one by one where sums do not do, else nil
}

// algorithm is the contract that the five algorithms meet: arithmetic on one
// key's spending and a time that is given. None holds a lock, reads a clock or
// knows a key. Costs are from 1 to the capacity. Each instant is in nanoseconds, and
// never before the state's last. Questions take the state as it was left, and
// leave it alone; so do the others but for the ledger.
type algorithm interface {
	// earliest returns the first instant, now or later, at which the cost fits
	// behind all that is spent and booked.
	earliest(s state, now, cost int64) int64
	// spend spends at an instant that was earliest, or more as debt.
	spend(s state, at, cost int64) state
	// refund gives back what the cost of a spending exceeds actual by, as far as
	// that has not been regained in the meantime.
	refund(s state, now int64, sp spending, actual int64) state
	// charge spends n at now, into debt if need be.
	charge(s state, now, n int64) state
	// forgive takes n from what is spent, the newest first.
	forgive(s state, now, n int64) state
	// advance drops what now has regained.
	advance(s state, now int64) state
	// remaining returns the largest cost whose earliest is now, 0 if none is.
	remaining(s state, now int64) int64
	// regained returns the first instant at which all is regained, or one that is past.
	regained(s state) int64
	// spent returns how much is spent and not regained, rounded up.
	spent(s state, now int64) int64
}

// fresh reports whether the key is as good as new at that reading, so that to
// forget it loses nothing. The caller holds the lock.
func (b *bucket) fresh(reading int64) bool {
	b.refold()
	return max(b.last, b.plan.regained(b.state)) <= reading
}

// admit spends the cost if it fits within ahead of the reading, and returns when
// it is spent, or leaves a leaky bucket. If not, retry is later than the reading,
// and the first one at which it will. What is spent ahead can be given back if
// keep is set. The caller holds the lock.
func (b *bucket) admit(p *plan, reading, cost, ahead int64, keep bool) (sp spending, retry int64) {
	now := max(reading, b.last)
	b.record(p, now)
	if sp, retry = p.admits(b.state, reading, now, cost, ahead); retry > reading {
		b.denied = true
		return sp, retry
	}
	sp.changes = b.changes
	b.commit(p, now, sp, keep)
	return sp, retry
}

// allow is admit for a caller who wants to know no more, and for most buckets
// the shortest way to that. The caller holds the lock.
func (b *bucket) allow(p *plan, reading, cost int64) bool {
	if p.ordered || b.ledger != nil {
		_, retry := b.admit(p, reading, cost, p.delay, false)
		return retry <= reading
	}
	now := max(reading, b.last)
	b.last = now
	b.used, b.placed = b.placed, true
	if t := p.token; t != nil {
		b.denied = !t.pay(&b.state, now, cost)
		return !b.denied
	}
	if b.denied = p.earliest(b.state, now, cost) > now; b.denied {
		return false
	}
	b.state = p.spend(b.state, now, cost)
	return true
}

// record makes now the highest reading seen, and the state what it is by then.
func (b *bucket) record(p *plan, now int64) {
	b.last = now
	b.used, b.placed = b.placed, true
	if b.ledger != nil {
		b.catchUp(now)
	}
	if p.ordered {
		b.state = p.advance(b.state, now)
	}
}

// commit spends a cost that has been found to fit at that instant.
func (b *bucket) commit(p *plan, now int64, sp spending, keep bool) {
	b.denied = false
	if sp.at > now && (keep || b.ledger != nil) {
		b.book(sp)
	} else {
		b.state = p.spend(b.state, sp.at, sp.cost)
	}
}

// look answers a cost under the plan, without changing what the key has spent or
// the time it has seen. The caller holds the lock.
func (b *bucket) look(p *plan, reading, cost int64, d *Decision) {
	now := max(reading, b.last)
	b.refold()
	p.answer(carry(b.plan, p, b.state, now), reading, now, cost, d)
}

// adjust charges, or forgives, and records the time. The caller holds the lock.
func (b *bucket) adjust(now, delta int64) {
	b.record(b.plan, now)
	if delta > 0 {
		b.charge(now, delta)
	} else {
		b.forgive(now, -max(delta, -math.MaxInt64))
	}
}

// between returns the time from one instant to a later one, at most the longest Duration.
func between(from, to int64) time.Duration {
	d := to - from
	if d < 0 {
		return math.MaxInt64
	}
	return time.Duration(d)
}

// behind returns at, or the instant of the last booking if that is later: who
// comes later queues behind what is booked.
func (s state) behind(at int64) int64 {
	if s.ledger == nil {
		return at
	}
	return max(at, s.entries.newest())
}

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

// span is a time of ns + frac/units nanoseconds, 0 ≤ frac < units.
type span struct{ ns, frac int64 }

func newTokenBucket(r Rate, burst int) tokenBucket {
	per, units := int64(r.Per), int64(r.Units)
	g := gcd(per, units)
	t := tokenBucket{per: per / g, units: units / g, capacity: int64(burst)}
	t.one = span{t.per / t.units, t.per % t.units}
	t.full = t.price(t.capacity)
	return t
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
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

// owed returns how long all that is spent still takes to regain.
func (s state) owed(now int64) span {
	if s.at < now {
		return span{}
	}
	return span{s.at - now, s.n}
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

func (d span) less(e span) bool { return d.ns < e.ns || d.ns == e.ns && d.frac < e.frac }

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
		d = span{ns: at + century}
	}
	s.at, s.n = d.ns, d.frac
	return s
}

// pay spends the cost at now and reports true, if it fits: earliest and spend in one.
func (t *tokenBucket) pay(s *state, now, cost int64) bool {
	owed := span{s.at, s.n}
	if owed.ns < now {
		owed = span{ns: now}
	}
	price := t.one
	if cost != 1 {
		price = t.price(cost)
	}
	if owed = t.plus(owed, price); (span{now + t.full.ns, t.full.frac}).less(owed) {
		return false
	}
	s.at, s.n = owed.ns, owed.frac
	return true
}

func (t *tokenBucket) refund(s state, now int64, sp spending, actual int64) state {
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
