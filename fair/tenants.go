package fair

import (
	"fmt"
	"slices"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/meter"
)

// tenantLocked returns the tenant, with its current weight. It does not add a new tenant to the table.
func (l *Limiter[K]) tenantLocked(key K, weight uint64, m meter.Moment) *tenant[K] {
	t := l.tenants[key]
	if t == nil {
		return newTenant(key, weight)
	}
	if t.weight != weight {
		l.reweighLocked(t, weight)
		l.serveLocked(m) // the shares have changed
	}
	return t
}

func (l *Limiter[K]) reweighLocked(t *tenant[K], weight uint64) {
	kept, room := t.spot.kept, l.collectable(t)
	if kept {
		l.unkeepLocked(t)
	}
	if t.index[byTag] >= 0 {
		l.lineWeights += weight - t.weight
	}
	l.shares.reweigh(t, weight)
	if kept {
		l.keepLocked(t, room)
	}
	l.movedLocked(t)
	l.hurryLocked() // the others' shares have changed
}

// trackLocked puts a tenant into the table. A full table drops another tenant for it: an idle one or,
// if evict is set, one with a debt or a place. If there is none to drop, trackLocked returns an error.
func (l *Limiter[K]) trackLocked(t *tenant[K], evict bool) error {
	if t.tracked {
		return nil
	}
	l.expireLocked()
	if len(l.tenants) >= l.opts.MaxKeys && !l.dropIdleLocked() && !(evict && l.evictLocked()) {
		return fmt.Errorf("fair: %w: callers of all %d tenants wait", ratelimit.ErrTableFull, len(l.tenants))
	}
	t.tracked = true
	t.key = l.cloner.Clone(t.key)
	l.tenants[t.key] = t
	l.filedLocked(t)
	return nil
}

// expireLocked drops up to two long idle tenants, so memory shrinks after a peak.
func (l *Limiter[K]) expireLocked() {
	for range 2 {
		t := l.idle.next
		switch {
		case t == &l.idle || l.shares.now-t.idleSince < idle:
			return
		case l.shares.isBarred(t):
			l.unlistLocked(t)
			l.filedLocked(t)
		default:
			l.dropLocked(t)
		}
	}
}

// dropIdleLocked drops the longest idle tenant. It skips up to two tenants barred by an overrun.
func (l *Limiter[K]) dropIdleLocked() bool {
	for range 2 {
		if t := l.idle.next; t != &l.idle && l.shares.isBarred(t) {
			l.unlistLocked(t)
			l.filedLocked(t)
		}
	}
	if t := l.idle.next; t != &l.idle {
		l.dropLocked(t)
		return true
	}
	return false
}

// evictLocked drops the tenant whose debt is paid soonest. If no
// tenant has a debt, it drops one in line without a caller in Wait.
func (l *Limiter[K]) evictLocked() bool {
	t := l.shares.soonest()
	if t == nil {
		i := slices.IndexFunc(l.deadlines.items, func(x item[K]) bool { return x.tenant.line.first == nil })
		if i < 0 {
			return false
		}
		t = l.deadlines.items[i].tenant
	}
	l.lapseLocked(t)
	l.shares.leave(t)
	l.dropLocked(t)
	l.evicted++
	return true
}

func (l *Limiter[K]) dropLocked(t *tenant[K]) {
	l.unlistLocked(t)
	delete(l.tenants, t.key)
	t.tracked = false
}

// filedLocked updates the list of idle tenants after a tenant has changed.
func (l *Limiter[K]) filedLocked(t *tenant[K]) {
	idle := t.tracked && !t.counts && !t.inLine()
	switch listed := t.next != nil; {
	case idle && !listed:
		t.idleSince = l.shares.now
		last := l.idle.prev
		t.prev, t.next = last, &l.idle
		last.next, l.idle.prev = t, t
	case !idle:
		l.unlistLocked(t)
	}
}

func (l *Limiter[K]) unlistLocked(t *tenant[K]) {
	if t.next != nil {
		t.prev.next, t.next.prev = t.next, t.prev
		t.next, t.prev = nil, nil
	}
}

// Stats holds a [Limiter]'s counts.
type Stats struct {
	Tracked int    // tenants in the table
	InDebt  int    // tenants with a debt or in line: they share the rate now
	Waiting int    // callers in Wait, and in Reserve with a maxDelay
	Evicted uint64 // tenants dropped from a full table despite a debt or a place
}

// Stats returns the counts.
func (l *Limiter[K]) Stats() Stats {
	l.mustBeMade()
	reading := l.reading()
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.wakeLocked()
	l.advanceLocked(reading)
	return Stats{Tracked: len(l.tenants), InDebt: l.shares.count, Waiting: l.waiting, Evicted: l.evicted}
}
