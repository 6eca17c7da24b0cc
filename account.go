package ratelimit

import (
	"math"
	"sync"
)

// bucket is one key's lock and spending. It is exactly a cache line long on
// 64-bit machines, and knows neither its key nor the map that holds it.
//
// Lock order: a shard of the key map before a bucket, a bucket before one of a
// higher address. Under a bucket's lock only a Clock is called.
type account struct {
	mu sync.Mutex // guards the fields below

	plan  *plan // the limit in force when last decided; nil once the key map has dropped the bucket
	last  int64 // the highest clock reading recorded
	state       // what is spent as of last
	use   usage // what eviction wants to know

	changes uint32 // how often the limit's figures have changed under it
}

// fresh reports whether the key is fresh at a reading: forgetting it then loses nothing.
// The caller holds the lock.
func (b *account) fresh(reading int64) bool { return b.freshAt() <= reading }

// freshAt returns the first reading at which the key is fresh. The caller holds the lock.
func (b *account) freshAt() int64 {
	b.refold()
	return max(b.last, b.plan.regained(b.state))
}

// expired reports whether the key is fresh and has been idle for that long. The caller
// holds the lock.
func (b *account) expired(reading, idle int64) bool {
	return !b.use.isPinned() && b.fresh(reading) && reading-b.last >= idle
}

// floor returns the time before which the key must not be created anew if it is dropped at
// a reading. A fresh key may not spend again what it had regained by then. One that
// is not fresh forgets what it has spent anyway; only the readings it has seen count,
// and of these none that the clock has stepped back from. The caller holds the lock.
func (b *account) floor(reading int64) int64 {
	if at := b.freshAt(); at <= reading {
		return at
	}
	return min(b.last, reading)
}

// lockKept locks the account if the table still holds it. If it was dropped, lockKept
// reports false and leaves it unlocked.
func (b *account) lockKept() bool {
	b.mu.Lock()
	if b.plan == nil {
		b.mu.Unlock()
		return false
	}
	return true
}

// eased takes note that the key may be fresh earlier than before, because something was
// given back or the limit has changed. The caller holds the lock.
func (b *account) eased() {
	if e := b.plan.early; e != nil && b.use.early() {
		e.add(b)
	}
}

// decide decides one key's cost at a reading. The caller holds the lock.
func (b *account) decide(reading, cost int64, q request, d *Decision) spending {
	m := b.arrive(reading)
	o := b.offer(m, cost, q)
	if o.denied(reading) {
		b.refuse()
	} else {
		o.spending = b.accept(o.spending, q)
	}
	d.verdict(m, o)
	b.plan.standing(b.state, m, d)
	return o.spending
}

// arrive records a reading, so that the account's time never goes back, and returns
// what it counts as. The caller holds the lock.
func (b *account) arrive(reading int64) moment {
	now := max(reading, b.last)
	b.record(b.plan, now)
	return moment{reading, now}
}

// offer says how a cost would be spent, or when it would be. It spends nothing. The
// caller holds the lock, and has let the moment arrive.
func (b *account) offer(m moment, cost int64, q request) offer {
	return b.plan.offer(b.state, m, cost, q.ahead(b.plan))
}

// accept spends what was offered, and returns it as what can be settled. No other call
// may come between offer and accept. The caller holds the lock.
func (b *account) accept(sp spending, q request) spending {
	b.use.allowed()
	sp.changes = b.changes
	if sp.at > b.last && (q.keep || b.ledger != nil) {
		b.book(sp)
	} else {
		b.state = b.plan.spend(b.state, sp.at, sp.cost)
	}
	return sp
}

// refuse takes note of a denial. The caller holds the lock.
func (b *account) refuse() { b.use.denied() }

// allow is decide for a caller who needs only the yes or no, and for most accounts the
// fastest way to that. The plan is the account's. The caller holds the lock.
func (b *account) allow(p *plan, reading, cost int64) bool {
	if p.ordered || b.ledger != nil {
		var d Decision
		b.decide(reading, cost, take, &d)
		return d.Allowed
	}
	now := max(reading, b.last)
	b.last = now
	b.use.touched()
	ok := false
	if t := p.token; t != nil {
		ok = t.pay(&b.state, now, cost)
	} else if ok = p.earliest(b.state, now, cost) <= now; ok {
		b.state = p.spend(b.state, now, cost)
	}
	if !ok {
		b.use.denied()
		return false
	}
	b.use.allowed()
	return true
}

// record makes now the highest reading seen, and the state what it is by then.
func (b *account) record(p *plan, now int64) {
	b.last = now
	b.use.touched()
	if b.ledger != nil {
		b.catchUp(now)
	}
	if p.ordered {
		b.state = p.advance(b.state, now)
	}
}

// look answers a cost under the plan, without changing what the key has spent or
// the time it has seen. The caller holds the lock.
func (b *account) look(p *plan, reading, cost int64, d *Decision) {
	s, m := b.view(p, reading)
	p.answer(s, m, cost, d)
}

// view returns what the state is under a plan, without changing what the key has spent
// or the time it has seen. The caller holds the lock.
func (b *account) view(p *plan, reading int64) (state, moment) {
	m := moment{reading, max(reading, b.last)}
	b.refold()
	return carry(b.plan, p, b.state, m.now), m
}

// adjust charges, or forgives, and records the time. The caller holds the lock.
func (b *account) adjust(now, delta int64) {
	b.record(b.plan, now)
	if delta > 0 {
		b.charge(now, delta)
	} else {
		b.forgive(now, -max(delta, -math.MaxInt64))
		b.eased()
	}
}

// charge spends n behind all that is booked, into debt if need be.
func (b *account) charge(now, n int64) {
	b.refold()
	n = min(n, b.plan.maxDebt-b.plan.spent(b.state, now))
	switch {
	case n <= 0:
	case b.ledger == nil || b.plan.log:
		b.state = b.plan.charge(b.state, now, n)
	default:
		b.book(spending{at: b.entries.newest(), cost: n})
	}
}

// forgive takes n from what is spent: bookings first, the last of all first.
func (b *account) forgive(now, n int64) {
	if b.ledger == nil || b.plan.log {
		b.state = b.plan.forgive(b.state, now, n)
		return
	}
	n -= b.entries.reduceNewest(n)
	b.base = b.plan.forgive(b.base, now, n)
	b.ledger.prune()
}

// book spends at an instant after now, in such a way that it can be given back.
// The caller holds the lock.
func (b *account) book(sp spending) {
	if !b.plan.log {
		if b.ledger == nil {
			b.ledger = &ledger{bookings: &bookings{base: b.state}}
		}
		b.ledger.add(sp)
	}
	b.state = b.plan.spend(b.state, sp.at, sp.cost)
}

// catchUp moves the bookings that are past into the base, and brings the state
// up to date. The caller holds the lock and has seen that there is a ledger.
func (b *account) catchUp(now int64) {
	if b.plan.log {
		return
	}
	if b.refold(); b.ledger != nil {
		b.popDue(now)
	}
}

// popDue moves the bookings that are past into the base. The state is as before.
func (b *account) popDue(now int64) {
	l, k := b.ledger, 0
	for ; k < l.entries.n && l.entries.slot(k).at <= now; k++ {
		l.base = b.plan.replay(l.base, l.get(k))
	}
	if k == l.entries.n {
		b.state = l.base // the fold over no entries
	} else if k > 0 {
		l.entries.popFront(k)
		l.parts.popFront(l.parts.search(now + 1))
	}
}

// refold brings the state up to date if bookings have been given back.
func (b *account) refold() {
	if b.ledger == nil || b.plan.log || !b.stale {
		return
	}
	l := b.ledger
	l.stale = false
	b.state = b.plan.fold(l)
}

func (b *account) settleAt(clock Clock, sp spending, actual int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.plan == nil {
		return // dropped, and what it had spent with it
	}
	now := max(reading(clock), b.last)
	b.last = now
	if b.ledger != nil && !b.plan.log {
		b.popDue(now) // and no more: of many cancels in a row only the last needs a fold
	}
	b.settle(now, sp, actual)
	b.eased()
}

// settle makes good the difference between the cost that was spent and what it
// actually was. The caller holds the lock.
func (b *account) settle(now int64, sp spending, actual int64) {
	sp.changed = sp.changes != b.changes
	switch {
	case actual > sp.cost:
		b.charge(now, actual-sp.cost)
	case actual == sp.cost:
	case b.ledger == nil || b.plan.log:
		b.state = b.plan.refund(b.state, now, sp, actual)
	case sp.at > now:
		b.ledger.reduce(sp.at, sp.cost-actual)
	default:
		b.base = b.plan.refund(b.base, now, sp, actual)
		b.stale = true
	}
}

// adopt puts the key under the plan, unless it has a newer one. What was spent
// stays spent. The caller holds the lock.
func (b *account) adopt(p *plan, reading int64) {
	old := b.plan
	if !p.outdates(old) {
		return
	}
	if !old.equals(p) {
		b.state = carry(old, p, b.state, max(reading, b.last))
		b.changes++
	}
	b.plan = p
	b.eased()
}

// expire makes the key's next decision ask for its limit again. The caller holds
// the lock.
func (b *account) expire() {
	p := *b.plan
	p.seq |= expiredBit
	b.plan = &p
}
