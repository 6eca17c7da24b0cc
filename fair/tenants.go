package fair

import (
	"fmt"

	"github.com/weir-go/ratelimit"
)

func newTenant[K comparable](key K, weight uint64) *tenant[K] {
	return &tenant[K]{key: key, weight: weight, place: -1}
}

// tenantLocked returns the tenant, with its weight of now. One that is not tracked is put into the
// table, if it has to be.
func (l *Limiter[K]) tenantLocked(key K, weight uint64, track bool) (*tenant[K], error) {
	t := l.tenants[key]
	if t == nil {
		if !track {
			return newTenant(key, weight), nil
		}
		if !l.roomLocked() {
			return nil, fmt.Errorf("fair: %w: callers of all %d tenants wait", ratelimit.ErrTableFull, len(l.tenants))
		}
		t = newTenant(l.cloner.Clone(key), weight)
		l.tenants[t.key] = t
		l.filedLocked(t)
	}
	if t.weight != weight {
		l.shares.reweigh(t, weight)
		l.movedLocked(t)
		l.hurryLocked() // the others' shares have changed
	}
	return t, nil
}

// roomLocked makes room for one more tenant, and reports whether it could. It also drops up to two
// that have been idle for long, so that memory falls after a peak.
func (l *Limiter[K]) roomLocked() bool {
	for range 2 {
		if t := l.idle.next; t != &l.idle && l.shares.now-t.idleSince >= idle {
			l.dropLocked(t)
		}
	}
	if len(l.tenants) < l.opts.MaxKeys {
		return true
	}
	if t := l.idle.next; t != &l.idle {
		l.dropLocked(t)
		return true
	}
	if len(l.shares.debtors) > 0 {
		l.shares.first() // comes to the top
	}
	for _, t := range l.shares.debtors {
		if t.line.first == nil {
			l.shares.free(t)
			l.dropLocked(t)
			l.evicted++
			return true
		}
	}
	return false
}

func (l *Limiter[K]) dropLocked(t *tenant[K]) {
	l.unlistLocked(t)
	delete(l.tenants, t.key)
}

// filedLocked keeps the list of idle tenants true after a tenant has changed.
func (l *Limiter[K]) filedLocked(t *tenant[K]) {
	idle := t.place < 0 && t.line.first == nil
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
