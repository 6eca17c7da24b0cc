package ratelimit

import "sync"

// account is one key's lock and spending. It is exactly a cache line long on 64-bit
// machines, and knows neither its key nor the table that holds it.
//
// Lock order: an account before one of a higher address, and any account before a shard
// of the key table. Whoever holds a shard only tries to lock an account. Under an
// account's lock only a Clock is called.
type account struct {
	mu sync.Mutex // guards the fields below

	plan  *plan // the limit in force at the last decision; nil if the key was dropped
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
func (b *account) decide(reading, cost int64, q request, d *Decision) offer {
	m, o := b.try(reading, cost, q)
	d.verdict(m, o)
	b.plan.standing(b.state, m, d)
	return o
}

// try spends a cost if it may be spent, and returns what was offered at what moment. The
// caller holds the lock.
func (b *account) try(reading, cost int64, q request) (moment, offer) {
	m := moment{reading, max(reading, b.last)}
	b.record(b.plan, m.now)
	o := b.offer(m, cost, q)
	ok := !o.denied(reading)
	switch {
	case !ok:
	case !q.keep && b.detail == nil: // as accept has it: most decisions save the call
		b.state = b.plan.spend(b.state, o.at, cost)
	default:
		b.accept(o, cost, q)
	}
	b.use.decided(ok)
	return m, o
}

// arrive records a reading, so that the account's time never goes back, and returns
// what it counts as. The caller holds the lock.
func (b *account) arrive(reading int64) moment {
	now := max(reading, b.last)
	b.record(b.plan, now)
	b.use.touched()
	return moment{reading, now}
}

// offer says how a cost would be spent, or when it would be. It spends nothing. The
// caller holds the lock, and has let the moment arrive.
func (b *account) offer(m moment, cost int64, q request) offer {
	o := b.plan.offer(b.state, m, cost, q.ahead(b.plan))
	o.changes = b.changes
	return o
}

// accept spends a cost as was offered. No other call may come between offer and accept.
// The caller holds the lock.
func (b *account) accept(o offer, cost int64, q request) {
	if b.detail != nil || q.keep && o.at > b.last {
		b.state = b.plan.book(b.state, o.spending(cost))
	} else {
		b.state = b.plan.spend(b.state, o.at, cost)
	}
}

// pay spends a cost if it may be spent now, and says only whether it did. The plan is a token
// bucket's, and nothing is booked. The caller holds the lock.
func (b *account) pay(t *tokenBucket, reading, cost int64) bool {
	now := max(reading, b.last)
	b.last = now
	// What is owed is counted from now, because an instant and two spans of a
	// century may add up to more than 2^63 ns.
	owed := span{b.at - now, b.n}
	if owed.ns < 0 {
		owed = span{}
	}
	price := t.one
	if cost != 1 {
		price = t.price(cost)
	}
	if owed = t.plus(owed, price); t.full.less(owed) {
		b.use.decided(false)
		return false
	}
	b.at, b.n = now+owed.ns, owed.frac
	b.use.decided(true)
	return true
}

// allow does the same for any account. The plan is the account's. The caller holds the lock.
func (b *account) allow(p *plan, reading, cost int64) bool {
	now := max(reading, b.last)
	b.record(p, now)
	ok := p.earliest(b.state, now, cost) <= now
	switch {
	case !ok:
	case p.leaky == nil && b.detail == nil:
		b.state = p.spend(b.state, now, cost)
	default:
		b.spend(p, now, cost)
	}
	b.use.decided(ok)
	return ok
}

// spend spends a cost that is allowed now, or lets it into the queue. The caller holds the lock.
func (b *account) spend(p *plan, now, cost int64) {
	at, part := now, int64(0)
	if p.leaky != nil {
		at, part = p.leaky.leaves(b.state, now)
	}
	if b.detail == nil {
		b.state = p.spend(b.state, at, cost)
	} else {
		b.state = p.book(b.state, spending{at: at, part: part, cost: cost, changes: b.changes})
	}
}

// record makes now the highest reading seen, and the state what it is by then.
func (b *account) record(p *plan, now int64) {
	if b.last = now; b.detail != nil || p.ordered {
		b.advance(p, now)
	}
}

func (b *account) advance(p *plan, now int64) {
	if b.detail != nil && !p.log {
		b.state = p.catchUp(b.state, now)
	}
	if p.ordered {
		b.state = p.advance(b.state, now)
	}
}

// look answers a cost under the plan, and spends nothing. The caller holds the lock.
func (b *account) look(p *plan, reading, cost int64, q request, d *Decision) {
	s, m := b.view(p, reading, q)
	p.answer(s, m, cost, d)
}

// view returns what the state is under a plan. What is said of it comes true only if the
// key regains under that plan from now on. So all but a Peek, which must change nothing,
// put the key under it. Of a fresh key there is nothing to come true. The caller holds the lock.
func (b *account) view(p *plan, reading int64, q request) (state, moment) {
	m := moment{reading, max(reading, b.last)}
	if b.refold(); !q.peek && b.plan.regained(b.state) > m.now {
		b.adopt(p, reading)
	}
	return carry(b.plan, p, b.state, m.now), m
}

// adjust charges, or forgives, and records the time. The caller holds the lock.
func (b *account) adjust(now, delta int64) {
	b.record(b.plan, now)
	b.use.touched()
	b.state = b.plan.adjust(b.state, now, delta)
	b.eased()
}

// refold brings the state up to date if bookings have been given back. The caller holds
// the lock.
func (b *account) refold() {
	if b.detail != nil {
		b.state = b.plan.refold(b.state)
	}
}

// settleAt settles what was spent at what it actually was. Of a key that was dropped, or
// reset, there is nothing to settle.
func (b *account) settleAt(clock Clock, sp spending, actual int64) {
	if !b.lockKept() {
		return
	}
	defer b.mu.Unlock()
	b.last = max(reading(clock), b.last)
	b.state = b.plan.popDue(b.state, b.last)
	sp.changed = sp.changes != b.changes
	b.state = b.plan.settle(b.state, b.last, sp, actual)
	b.eased()
}

// adopt puts the key under the plan, unless it has a newer one. What was spent
// stays spent. If that is expressed in other figures, they are as of now, so this records
// the time. The caller holds the lock.
func (b *account) adopt(p *plan, reading int64) {
	old := b.plan
	if !p.outdates(old) {
		return
	}
	if !old.equals(p) {
		b.last = max(reading, b.last)
		b.state = carry(old, p, b.state, b.last)
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
