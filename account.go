package ratelimit

import (
	"sync"

	"github.com/weir-go/ratelimit/internal/meter"
)

// account is one key's lock and spending. On 64-bit machines it is exactly one cache line
// long. It refers neither to its key, which is allocated beside it, nor to its table.
//
// Lock order: an account before one of a higher address, the accounts of [Global] limiters after
// all others, and any account before a shard of the key table. While code holds a shard, it only
// tries to lock accounts. While it holds an account, it calls no user code except a Clock.
type account struct {
	mu sync.Mutex // guards the fields below

	plan        *plan // the limit in force at the last decision; nil if the key was dropped
	last        int64 // the highest clock reading recorded
	meter.State       // the spending as of last
	use         usage // other facts for eviction
	held        bool  // a call keeps the account beyond its decision, so no other key may get it

	changes uint32 // how often the limit's figures have changed under it; its highest bits count the changes to and from Concurrent
}

// fresh reports whether the key is fresh at a reading, and no call waits for it: forgetting it then loses nothing.
// The caller holds the lock.
func (a *account) fresh(reading int64) bool { return a.freshAt() <= reading && !a.waitedFor() }

// waitedFor reports whether calls wait in the key's line. The caller holds the lock.
func (a *account) waitedFor() bool { return a.State.Line() != nil }

// freshAt returns the first reading at which the key is fresh. Waiting calls do not count. The caller holds the lock.
func (a *account) freshAt() int64 {
	a.plan.Refresh(&a.State)
	return max(a.last, a.plan.Forgotten(a.State))
}

// expired reports whether the key is fresh and has been idle for the given time. The caller holds the lock.
func (a *account) expired(reading, idle int64) bool {
	return !a.use.isPinned() && a.fresh(reading) && reading-a.last >= idle
}

// unknown reports whether a fresh key is just like a new one: it has no former limits either. The caller holds the lock.
func (a *account) unknown(reading int64) bool { return a.plan.Kept(a.State) <= reading }

// floor returns the time before which the key must not be created again if it is dropped at a reading. Otherwise
// a fresh key could spend its regained budget twice. A key that is not fresh loses its spending anyway: its
// floor is its last reading, or the present one if the clock has stepped back since. The caller holds the lock.
func (a *account) floor(reading int64) int64 {
	if at := a.freshAt(); at <= reading {
		return at
	}
	return min(a.last, reading)
}

// remembered returns the record to keep of the key when it is evicted at a reading from a
// shard with this floor. The record holds the key's spending. It does not hold the key's
// last reading if that is later: see floor. The caller holds the lock, and has called fresh.
//
// When the key comes back, its time is at least the floor. The key's own time may be earlier, because the clock has stepped
// back after a drop. Then remembered moves the spending up to the floor: otherwise the key would regain the difference.
func (a *account) remembered(reading, floor int64) meter.Remembered {
	now := max(reading, a.last)
	r := a.plan.Remember(a.State, now)
	switch w := a.plan.wall; {
	case r.Share == 0 || floor <= now:
	case w == nil:
		r.Until += floor - now
	default:
		r.Until = max(r.Until, w.afterFirst(floor))
	}
	return r
}

// lockKept locks the account if it is still in the table. If it was dropped, lockKept
// reports false and leaves it unlocked.
func (a *account) lockKept() bool {
	a.mu.Lock()
	if a.plan == nil {
		a.mu.Unlock()
		return false
	}
	return true
}

// mayBeFresher lists the key for [dirtyList] if it may be fresh earlier than before: after a refund or a change of
// the limit. The caller holds the lock.
func (a *account) mayBeFresher() {
	if d := a.plan.dirty; d != nil && a.use.markDirty() {
		d.add(a)
	}
}

// at returns a reading's moment: the key's time never goes back. The caller holds the lock. To keep
// others from waiting for the reading, the caller may have read the clock before it took the lock.
func (a *account) at(reading int64) meter.Moment {
	return meter.Moment{Reading: reading, Now: max(reading, a.last)}
}

// unlock unlocks the account after a decision, and fills in the key's standing. That takes divisions, so
// unlock first copies the state and releases the lock, unless the copy would share memory with the state.
func (a *account) unlock(p *plan, m meter.Moment, d *Decision) {
	s := a.State
	if s.OnHeap() {
		p.standing(s, m, d)
		a.mu.Unlock()
		return
	}
	a.mu.Unlock()
	p.standing(s, m, d)
}

// arrive records a reading and returns its moment. The account's time never goes back. The caller holds the lock.
func (a *account) arrive(reading int64) meter.Moment {
	m := a.at(reading)
	a.last = m.Now
	a.plan.Advance(&a.State, a.last)
	a.use.touched()
	return m
}

// offer returns how the key would spend a cost within ahead after now, or the time
// when it could. It spends nothing. The caller holds the lock and has called arrive.
func (a *account) offer(m meter.Moment, cost, ahead int64) meter.Offer {
	o := a.plan.Offer(a.State, m, cost, ahead)
	o.Changes = a.changes
	return o
}

// adjust charges delta, or forgives it if negative, and records the time. The caller holds the lock.
func (a *account) adjust(now, delta int64) {
	a.last = now
	a.use.touched()
	a.plan.Adjust(&a.State, now, delta)
	a.mayBeFresher()
}
