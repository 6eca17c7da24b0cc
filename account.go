package ratelimit

import (
	"math"
	"sync"
	"time"

	"github.com/weir-go/ratelimit/internal/meter"
)

// account is one key's lock and spending. It is exactly a cache line long on 64-bit
// machines, and knows neither its key nor the table that it is in.
//
// Lock order: an account before one of a higher address, and any account before a shard
// of the key table. Whoever holds a shard only tries to lock an account. Under an
// account's lock only a Clock is called.
type account struct {
	mu sync.Mutex // guards the fields below

	plan        *plan // the limit in force at the last decision; nil if the key was dropped
	last        int64 // the highest clock reading recorded
	meter.State       // what is spent as of last
	use         usage // what eviction wants to know

	changes uint32 // how often the limit's figures have changed under it
}

// fresh reports whether the key is fresh at a reading: forgetting it then loses nothing.
// The caller holds the lock.
func (b *account) fresh(reading int64) bool { return b.freshAt() <= reading }

// freshAt returns the first reading at which the key is fresh. The caller holds the lock.
func (b *account) freshAt() int64 {
	b.plan.Refresh(&b.State)
	return max(b.last, b.plan.Regained(b.State))
}

// expired reports whether the key is fresh and has been idle for that long. The caller
// holds the lock.
func (b *account) expired(reading, idle int64) bool {
	return !b.use.isPinned() && b.fresh(reading) && reading-b.last >= idle
}

// floor returns the time before which the key must not be created anew if it is dropped at
// a reading. A fresh key may not spend again what it had regained by then. One that is not fresh
// loses its spending anyway: its floor is its last reading, or the present one if the clock has
// stepped back since. The caller holds the lock.
func (b *account) floor(reading int64) int64 {
	if at := b.freshAt(); at <= reading {
		return at
	}
	return min(b.last, reading)
}

// remembered returns what to remember of the key when it is evicted at a reading. It is what
// the key has spent, and not that it has seen a later reading: see floor. The caller holds the
// lock, and has called fresh.
func (b *account) remembered(reading int64) meter.Remembered {
	return b.plan.Remember(b.State, max(reading, b.last))
}

// lockKept locks the account if it is still in the table. If it was dropped, lockKept
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
	if d := b.plan.dirty; d != nil && b.use.markDirty() {
		d.add(b)
	}
}

// spending is a cost that a key has been charged, as it is settled later.
type spending struct {
	meter.Spending
	changes uint32 // the account's when it was spent
}

// spendingOf returns what is spent when an account accepts its offer.
func spendingOf(o meter.Offer, cost int64) spending { return spending{o.Spending(cost), o.Changes} }

// decide decides one key's cost at a reading. The caller holds the lock.
func (b *account) decide(reading, cost int64, q request, d *Decision) meter.Offer {
	m := meter.Moment{Reading: reading, Now: max(reading, b.last)}
	b.last = m.Now
	o := b.plan.Take(&b.State, m, cost, q.ahead(b.plan), q.keep)
	o.Changes = b.changes
	d.verdict(m, o)
	b.use.decided(d.Allowed)
	b.plan.standing(b.State, m, d)
	return o
}

// arrive records a reading, so that the account's time never goes back, and returns
// what it counts as. The caller holds the lock.
func (b *account) arrive(reading int64) meter.Moment {
	b.last = max(reading, b.last)
	b.plan.Advance(&b.State, b.last)
	b.use.touched()
	return meter.Moment{Reading: reading, Now: b.last}
}

// offer says how a cost would be spent, or when it would be. It spends nothing. The
// caller holds the lock, and has let the moment arrive.
func (b *account) offer(m meter.Moment, cost int64, q request) meter.Offer {
	o := b.plan.Offer(b.State, m, cost, q.ahead(b.plan))
	o.Changes = b.changes
	return o
}

// look answers a cost under the plan, and spends nothing. The caller holds the lock.
func (b *account) look(p *plan, reading, cost int64, q request, d *Decision) {
	s, m := b.view(p, reading, q)
	p.answer(s, m, cost, d)
}

// view returns what the state is under a plan. What is said of it comes true only if the
// key regains under that plan from now on. So all but a Peek, which must change nothing,
// put the key under it. Of a fresh key there is nothing to come true. The caller holds the lock.
func (b *account) view(p *plan, reading int64, q request) (meter.State, meter.Moment) {
	m := meter.Moment{Reading: reading, Now: max(reading, b.last)}
	if b.plan.Refresh(&b.State); !q.peek && b.plan.Regained(b.State) > m.Now {
		b.adopt(p, reading)
	}
	if b.plan.equals(p) {
		return b.State, m
	}
	return p.Migrate(&b.plan.Meter, b.State, m.Now), m
}

// adjust charges, or forgives, and records the time. The caller holds the lock.
func (b *account) adjust(now, delta int64) {
	b.last = now
	b.use.touched()
	b.plan.Adjust(&b.State, now, delta)
	b.eased()
}

// settleAt settles what was spent at what it actually was. If the key was dropped because it was fresh, there
// is nothing to give back, and what is still to be charged to it is returned. If it was reset or evicted, there is
// nothing to settle.
func (b *account) settleAt(clock Clock, sp spending, actual int64) (late int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.plan == nil {
		if b.use.isOver() {
			return 0
		}
		return max(0, actual-sp.Cost)
	}
	b.last = max(reading(clock), b.last)
	sp.Changed = sp.changes != b.changes
	b.plan.Settle(&b.State, b.last, sp.Spending, actual)
	b.eased()
	return 0
}

// adopt puts the key under the plan, unless it has a newer one. What was spent
// stays spent. If that is expressed in other figures, they are as of now, so this records
// the time. The caller holds the lock.
func (b *account) adopt(p *plan, reading int64) {
	old := b.plan
	if !p.supersedes(old) {
		return
	}
	if !old.equals(p) {
		b.last = max(reading, b.last)
		old.Refresh(&b.State)
		b.State = p.Migrate(&old.Meter, b.State, b.last)
		b.changes++
	}
	b.plan = p
	b.eased()
}

// markStale makes the key's next decision ask for its limit again. The caller holds the lock.
func (b *account) markStale() {
	p := *b.plan
	p.seq |= staleBit
	b.plan = &p
}

// request is how a cost may be spent.
type request struct {
	queue int64 // for how long a leaky bucket may delay what it takes in
	book  int64 // how far ahead the other algorithms may book
	keep  bool  // what is spent ahead can be taken out again as if it had never been, until its time
	peek  bool  // to change nothing: the key stays under the limit that it is under
	brief bool  // the caller needs only the yes or no, and no error
}

// take is the request of Take and Allow: now, or whenever a leaky bucket lets it out.
var take = request{queue: math.MaxInt64}

// peek is the request of Peek, which answers as take does.
var peek = request{queue: math.MaxInt64, peek: true}

// reserve is the request of Reserve and Wait.
func reserve(ahead time.Duration) request {
	d := max(0, int64(ahead))
	return request{queue: d, book: d, keep: true}
}

// queue is the request of a stack's Reserve and Wait: only leaky buckets may delay it.
func queue(maxDelay time.Duration) request {
	return request{queue: max(0, int64(maxDelay)), keep: true}
}

// ahead returns how long after now the cost may be spent under a plan.
func (q request) ahead(p *plan) int64 {
	if p.Delays() {
		return q.queue
	}
	return q.book
}
