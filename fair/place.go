package fair

import (
	"time"

	"github.com/weir-go/ratelimit/internal/meter"
)

const (
	// patience is how long a place is kept after RetryAfter. A client needs it because
	// RetryAfter is rounded up to whole seconds, and its call takes some time.
	patience = int64(1500 * time.Millisecond)

	// strangersPart bounds the places of tenants after a single call: at most one for every
	// eight counting tenants. Otherwise unreturning names would slow all others down.
	strangersPart = 8
)

// mostKept returns the largest cost with a place. No more of the burst is kept for places.
func (l *Limiter[K]) mostKept() int64 { return int64(l.budget.burst / 2) }

// collectable returns the room kept for a tenant, in fractions of a unit.
func (l *Limiter[K]) collectable(t *tenant[K]) uint64 {
	if !t.spot.kept {
		return 0
	}
	grown, _ := product(l.shares.virtual-t.spot.since, t.weight).over(1)
	return min(t.spot.room+grown, most)
}

// keptLocked returns the room kept for other tenants than t, in fractions of a unit.
func (l *Limiter[K]) keptLocked(t *tenant[K]) uint64 {
	if l.kept == 0 {
		return 0
	}
	own := l.collectable(t)
	return min(max(l.kept, own)-own, uint64(l.mostKept())<<fractionBits)
}

// withKeptLocked returns how much of the burst must be free before a cost passes. Room
// kept for others stays free, too, unless the burst has not enough room for both.
func (l *Limiter[K]) withKeptLocked(t *tenant[K], cost int64) int64 {
	kept := int64((l.keptLocked(t) + fraction - 1) >> fractionBits)
	return max(cost, min(cost+kept, int64(l.budget.burst)))
}

// freeLocked returns the free part of the burst, less the room kept for others, in fractions of a unit.
func (l *Limiter[K]) freeLocked(t *tenant[K], m meter.Moment) uint64 {
	free, kept := l.budget.free(m.Now), l.keptLocked(t)
	return max(free, kept) - kept
}

// placeLocked gives a tenant a place in line for a denied cost. It may pass after the time retry.
func (l *Limiter[K]) placeLocked(t *tenant[K], m meter.Moment, cost int64, retry time.Duration) {
	if t.line.first != nil || l.shares.isBarred(t) {
		return
	}
	if t.tracked {
		l.acquaintLocked(t)
	} else if l.trackLocked(t, false) != nil {
		return
	}
	if cost > l.mostKept() || !t.known && l.strangers*strangersPart > l.shares.count {
		return
	}
	expires := m.Now + min(int64(retry), century) + patience
	if cost <= t.spot.cost || uint64(cost)<<fractionBits <= l.collectable(t) {
		l.deadlineLocked(t, max(t.spot.expires, expires))
		return
	}
	joins := !t.counts
	l.losePlaceLocked(t)
	l.shares.enter(t)
	t.tag = l.shares.tag(t, cost)
	t.spot.cost, t.spot.stranger = cost, !t.known
	if t.spot.stranger {
		l.strangers++
	}
	l.ahead += cost
	l.lineUpLocked(&l.places, t)
	l.deadlineLocked(t, expires)
	l.filedLocked(t)
	if joins { // one more tenant shares the rate, so a tenant with a larger share may be due
		l.hurryLocked()
	}
}

// acquaintLocked marks a tenant as known.
func (l *Limiter[K]) acquaintLocked(t *tenant[K]) {
	t.known = true
	if t.spot.stranger {
		t.spot.stranger = false
		l.strangers--
	}
}

// deadlineLocked makes a tenant count until an instant.
func (l *Limiter[K]) deadlineLocked(t *tenant[K], expires int64) {
	t.spot.expires = expires
	switch {
	case !l.deadlines.has(t):
		t.spot.look = expires
		l.deadlines.add(t, uint64(expires))
	case t.spot.look > expires:
		t.spot.look = expires
		l.deadlines.fix(t, uint64(expires))
	}
}

// losePlaceLocked removes a tenant's place and the room kept for it. The tenant still counts until its deadline.
func (l *Limiter[K]) losePlaceLocked(t *tenant[K]) {
	switch {
	case t.spot.kept:
		l.unkeepLocked(t)
	case t.spot.cost > 0:
		l.stepOutLocked(&l.places, t)
		l.ahead -= t.spot.cost
	}
	if t.spot.stranger {
		l.strangers--
	}
	t.spot.cost, t.spot.stranger = 0, false
}

// keepLocked keeps room for a tenant.
func (l *Limiter[K]) keepLocked(t *tenant[K], room uint64) {
	t.spot.kept, t.spot.room, t.spot.since = true, room, l.shares.virtual
	l.kept = min(l.kept+room, most)
	l.keptWeights += t.weight
}

func (l *Limiter[K]) unkeepLocked(t *tenant[K]) {
	own := l.collectable(t)
	l.kept = max(l.kept, own) - own
	if l.keptWeights -= t.weight; l.keptWeights == 0 {
		l.kept = 0
	}
	t.spot.kept = false
}

// collectLocked updates a tenant in line after it has been granted a cost. If the tenant has
// savings, room for them is kept a little longer, because its next call may come at once.
func (l *Limiter[K]) collectLocked(t *tenant[K], m meter.Moment, cost int64) {
	switch {
	case t.spot.kept:
		amount, left := uint64(cost)<<fractionBits, l.collectable(t)
		saved, _ := product(after(l.shares.virtual, t.finish), t.weight).over(1)
		left = min(max(left, amount)-amount, saved)
		if l.unkeepLocked(t); left >= fraction {
			l.keepLocked(t, left)
		}
		t.spot.cost = 0
	case t.spot.cost > 0 && cost < t.spot.cost:
		l.places.fix(t, t.tag) // its tag has moved
		return
	default:
		l.losePlaceLocked(t)
	}
	l.lingerLocked(t, min(t.spot.expires, m.Now+patience))
}

// lingerLocked updates a tenant served in line. A tenant with savings counts until an instant.
func (l *Limiter[K]) lingerLocked(t *tenant[K], until int64) {
	switch {
	case t.line.first != nil:
	case t.counts && after(l.shares.virtual, t.finish) > 0 && !l.shares.isBarred(t):
		l.deadlineLocked(t, until)
	default:
		l.losePlaceLocked(t)
		if l.deadlines.has(t) {
			l.deadlines.remove(t)
		}
	}
	l.shares.settleIn(t)
	l.filedLocked(t)
}

// lapseLocked ends a tenant's place and its savings.
func (l *Limiter[K]) lapseLocked(t *tenant[K]) {
	l.losePlaceLocked(t)
	if l.deadlines.has(t) {
		l.deadlines.remove(t)
	}
	l.shares.settleIn(t)
	l.filedLocked(t)
	l.hurryLocked() // the others' shares are larger
}

// elapseLocked advances the time to an instant before which no place lapses. Debts are paid, and kept room grows.
func (l *Limiter[K]) elapseLocked(now int64) {
	if now <= l.shares.now {
		return
	}
	before := l.shares.virtual
	l.shares.advance(now, l.filedLocked)
	if l.keptWeights > 0 {
		l.growLocked(before)
	}
}

// growLocked makes kept room grow with the virtual time since before.
func (l *Limiter[K]) growLocked(before uint64) {
	grown, _ := product(l.shares.virtual-before, l.keptWeights).over(1)
	l.kept = min(l.kept+grown, most)
}

// lapsesLocked ends the places whose deadlines have passed, each one at the time of its deadline.
func (l *Limiter[K]) lapsesLocked(now int64) {
	for t := l.nextDeadlineLocked(); t != nil && t.spot.expires <= now; t = l.nextDeadlineLocked() {
		l.elapseLocked(t.spot.expires)
		l.lapseLocked(t)
	}
}

// nextDeadlineLocked returns the tenant whose deadline is next, or nil.
func (l *Limiter[K]) nextDeadlineLocked() *tenant[K] {
	for {
		t := l.deadlines.first()
		if t == nil || t.spot.look == t.spot.expires {
			return t
		}
		t.spot.look = t.spot.expires
		l.deadlines.fix(t, uint64(t.spot.look))
	}
}
