package fair

import (
	"context"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/meter"
	"github.com/weir-go/ratelimit/internal/wait"
)

// Allow is Take without details. An error counts as a denial.
func (l *Limiter[K]) Allow(tenant K, cost int) bool {
	if l.opts.OnDecision != nil {
		d, _ := l.Take(context.Background(), tenant, cost)
		return d.Allowed
	}
	ok, _ := l.decide(tenant, cost, meter.Final, nil, nil)
	return ok
}

// Take spends cost of the tenant's share, or nothing. Remaining is the largest cost that passes now. Debt is what the
// tenant's settlements and adjustments took above the shared budget. It is reported only while it bars the tenant.
//
// A denied cost of at most half the burst keeps a place in line, like a call of [Limiter.Wait]. When its turn comes,
// the limiter keeps room for a call of up to that cost, until 1.5 seconds after RetryAfter. At its first call a tenant
// gets a place only while few such tenants have one. While a tenant is in line it counts, and it saves its share.
//
// After RetryAfter the same cost is likely to pass, if the other tenants keep their pace.
// For a tenant alone it is exact. An earlier call is denied, but has no other disadvantage.
// A cost above half the burst may be denied for as long as the others spend all they can.
//
// Take's errors wrap [ratelimit.ErrExceedsLimit] if the cost is above the burst, [ratelimit.ErrNegativeCost],
// [ratelimit.ErrInvalidKey] or [ratelimit.ErrTableFull]. The context is not used.
func (l *Limiter[K]) Take(_ context.Context, tenant K, cost int) (d ratelimit.Decision, err error) {
	_, err = l.decide(tenant, cost, meter.Final, &d, nil)
	l.report(tenant, cost, d, d.Allowed && cost > 0, err)
	return d, err
}

// Reserve is like Take, but returns a charge that can be settled when the real cost is known. If maxDelay is
// above 0, Reserve waits in line like [Limiter.Wait], for at most that time. It returns when the work may start,
// so the reservation's Delay is 0. If a call is not served in time, or finds no room in line, it is denied.
//
// A cost settled below the estimate is refunded. A cost settled above the estimate is an overrun. The total pays for as
// much of the overrun as empties the burst. The rest bars only this tenant, until its share would have paid for the rest.
//
// Reserve returns Take's errors, and the context's error if the context ends.
func (l *Limiter[K]) Reserve(ctx context.Context, tenant K, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	var d ratelimit.Decision
	var spent charge
	var err error
	if maxDelay > 0 {
		err = l.reserveInLine(wait.OrBackground(ctx), tenant, cost, maxDelay, &d, &spent)
	} else {
		_, err = l.decide(tenant, cost, meter.Open, &d, &spent)
	}
	l.report(tenant, cost, d, d.Allowed && cost > 0, err)
	return ratelimit.NewReservation(d, func(actual int) error {
		l.settle(tenant, spent, int64(actual))
		return nil
	}), err
}

// Peek returns Take's decision, and changes nothing. In particular, a denial makes no place in line.
func (l *Limiter[K]) Peek(_ context.Context, tenant K, cost int) (d ratelimit.Decision, err error) {
	if err := l.check(tenant, cost); err != nil {
		return d, err
	}
	weight, reading := l.weight(tenant), l.reading()
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.wakeLocked()
	m := l.advanceLocked(reading)
	t := l.tenantLocked(tenant, weight, m)
	err = l.exceedsLocked(cost)
	d.Allowed = err == nil && (cost == 0 || l.passesLocked(t, m, int64(cost)))
	l.standingLocked(t, m, &d)
	if !d.Allowed && err == nil {
		d.RetryAfter = l.retryLocked(t, m, int64(cost))
	}
	return d, err
}

// decide spends a cost or denies it. It fills in d and the charge c unless they are nil.
func (l *Limiter[K]) decide(key K, cost int, keep meter.Keep, d *ratelimit.Decision, c *charge) (ok bool, err error) {
	if err := l.check(key, cost); err != nil {
		return false, err
	}
	weight, reading := l.weight(key), l.reading()
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.advanceLocked(reading)
	defer l.wakeLocked()
	if err := l.exceedsLocked(cost); err != nil {
		if d != nil {
			l.standingLocked(newTenant(key, weight), m, d)
		}
		return false, err
	}
	t := l.tenantLocked(key, weight, m)
	if ok = cost == 0 || l.passesLocked(t, m, int64(cost)); ok && cost > 0 {
		if err := l.trackLocked(t, true); err != nil {
			if d != nil {
				d.Limit = l.budget.limit
			}
			return false, err
		}
		l.chargeLocked(t, m, int64(cost), keep, c)
	}
	if d != nil {
		d.Allowed = ok
		l.standingLocked(t, m, d)
	}
	if ok || d == nil && int64(cost) <= t.spot.cost && t.spot.expires-m.Now > patience {
		return ok, nil // the tenant's place lasts long enough
	}
	retry := l.retryLocked(t, m, int64(cost))
	if d != nil {
		d.RetryAfter = retry
	}
	l.placeLocked(t, m, int64(cost), retry)
	return false, nil
}

// advanceLocked lets time pass: debts are paid, places lapse, and tenants in line whose turn has come are served.
func (l *Limiter[K]) advanceLocked(reading int64) meter.Moment {
	m := meter.Moment{Reading: reading, Now: max(reading, l.shares.now)}
	if l.deadlines.len() > 0 {
		l.lapsesLocked(m.Now)
	}
	l.elapseLocked(m.Now)
	switch {
	case l.waiters.len() > 0 || l.places.len() > 0:
		l.serveLocked(m)
	case l.shares.count > 0 && l.keptWeights == 0 && l.budget.fresh(m.Now):
		l.forgetLocked()
	}
	return m
}

// forgetLocked ends all debts and savings. It is called while the total has no debt.
func (l *Limiter[K]) forgetLocked() {
	for l.shares.count > 0 {
		t := l.deadlines.first()
		if t == nil {
			t = l.shares.debtors.items[l.shares.debtors.len()-1].tenant
		} else {
			l.deadlines.remove(t)
		}
		l.shares.leave(t)
		l.filedLocked(t)
	}
	for l.deadlines.len() > 0 { // the rest are the deadlines of barred tenants
		t := l.deadlines.first()
		l.deadlines.remove(t)
		l.filedLocked(t)
	}
}

// passesLocked reports whether a cost passes now. A cost passes if room is kept for it. It also passes
// if there is room, it is within the tenant's share, and no tenant in line with room comes before it.
func (l *Limiter[K]) passesLocked(t *tenant[K], m meter.Moment, cost int64) bool {
	if t.line.first != nil {
		return false
	}
	if uint64(cost)<<fractionBits <= l.collectable(t) && l.budget.retry(m, cost) == 0 {
		return true
	}
	if l.budget.retry(m, l.withKeptLocked(t, cost)) > 0 {
		return false
	}
	tag := l.shares.tag(t, cost)
	return l.withinLocked(t, m, tag, cost) && l.beforeLocked(t, m, tag) == nil
}

// beforeLocked returns the tenant in line with a claim to the room before a tag, or nil.
func (l *Limiter[K]) beforeLocked(t *tenant[K], m meter.Moment, tag uint64) *tenant[K] {
	first := l.firstLocked(t)
	if first == nil || after(tag, first.tag) == 0 || !l.dueLocked(first, m) {
		return nil
	}
	return first
}

// firstLocked returns the first tenant in line other than t, or nil.
func (l *Limiter[K]) firstLocked(t *tenant[K]) *tenant[K] {
	if l.waiters.len()+l.places.len() == 0 {
		return nil
	}
	a, b := l.waiters.first(), l.places.first()
	switch t {
	case nil:
	case a:
		a = l.waiters.second()
	case b:
		b = l.places.second()
	}
	if a == nil || b != nil && after(a.tag, b.tag) > 0 {
		return b
	}
	return a
}

// dueLocked reports whether only room is missing for the turn of a tenant in line.
func (l *Limiter[K]) dueLocked(t *tenant[K], m meter.Moment) bool {
	return l.withinLocked(t, m, t.tag, t.cost())
}

// withinLocked reports whether a cost and its tag are within the tenant's share. While the burst is full, every cost is.
func (l *Limiter[K]) withinLocked(t *tenant[K], m meter.Moment, tag uint64, cost int64) bool {
	switch {
	case l.budget.fresh(m.Now):
		return true
	case l.aloneLocked(t):
		return l.budget.beyondAlone(m.Now, cost) == wide{}
	}
	return l.shares.fits(t, l.shares.lead(tag), l.freeLocked(t, m))
}

// aloneLocked reports whether no other tenant counts or is in line.
func (l *Limiter[K]) aloneLocked(t *tenant[K]) bool {
	return l.shares.alone(t) && (l.waiters.len() == 0 || l.waiters.len() == 1 && l.waiters.first() == t)
}

// chargeLocked spends a passing cost.
func (l *Limiter[K]) chargeLocked(t *tenant[K], m meter.Moment, cost int64, keep meter.Keep, c *charge) {
	l.spendLocked(m, cost, keep, c)
	joins := !t.counts || t.spot.cost > 0
	if !t.known || t.spot.stranger {
		l.acquaintLocked(t)
	}
	l.shares.charge(t, uint64(cost)<<fractionBits)
	if l.deadlines.has(t) {
		l.collectLocked(t, m, cost)
	} else {
		l.filedLocked(t)
	}
	if joins { // one more tenant shares the rate, or one less is in line
		l.hurryLocked()
	}
}

// spendLocked charges a cost. The shared budget has room for it.
func (l *Limiter[K]) spendLocked(m meter.Moment, cost int64, keep meter.Keep, c *charge) {
	l.budget.Accept(&l.budget.state, m.Now, meter.Offer{At: m.Now}, cost, keep)
	if c != nil {
		*c = charge{meter.Spending{At: m.Now, Cost: cost, Open: keep == meter.Open}, l.budget.changes}
	}
}

// standingLocked fills in all figures of a decision but RetryAfter.
func (l *Limiter[K]) standingLocked(t *tenant[K], m meter.Moment, d *ratelimit.Decision) {
	b := &l.budget
	d.Limit = b.limit
	d.ResetAfter = time.Duration(max(b.Regained(b.state), m.Now) - m.Reading)
	if t.line.first == nil {
		d.Remaining = int(l.remainingLocked(t, m))
	}
	if d.Remaining == 0 { // an overrun does not bar a tenant while no other tenant needs the rate
		d.Debt, d.NextAfter = l.overrunOf(t), l.retryLocked(t, m, 1)
	}
}

// remainingLocked returns the largest cost that passes now.
func (l *Limiter[K]) remainingLocked(t *tenant[K], m meter.Moment) int64 {
	b := &l.budget
	left := b.Remaining(b.state, m.Now)
	kept := int64((l.keptLocked(t) + fraction - 1) >> fractionBits)
	room := max(0, left-kept)
	lead := l.shares.threshold(t, l.freeLocked(t, m))
	if first := l.firstLocked(t); first != nil && l.dueLocked(first, m) {
		lead = min(lead, l.shares.lead(first.tag))
	}
	switch {
	case b.fresh(m.Now): // every tenant in line has room
		room = left
	case l.aloneLocked(t):
		room = min(room, b.largestAlone(m.Now))
	default:
		room = min(room, l.shares.largest(t, lead))
	}
	return max(room, min(int64(l.collectable(t)>>fractionBits), left), 0)
}

// retryLocked returns the time until a denied cost is likely to pass, if the others
// keep their pace. It is at most the time until the burst is full without any spending.
func (l *Limiter[K]) retryLocked(t *tenant[K], m meter.Moment, cost int64) time.Duration {
	b, s := &l.budget, &l.shares
	late := time.Duration(m.Now - m.Reading)
	if uint64(cost)<<fractionBits <= l.collectable(t) {
		return max(b.retry(m, cost), 1)
	}
	room := b.retry(m, l.withKeptLocked(t, cost))
	if l.aloneLocked(t) {
		return max(room, b.retryAlone(m.Now, cost)+late, 1)
	}
	tag, first := l.behindLocked(t, m, cost)
	if first != nil {
		room = max(room, b.retry(m, l.needsLocked(first)+cost))
	}
	lead := s.lead(tag)
	likely := max(min(l.untilTurnLocked(t, m, cost), l.untilPaidLocked(t, lead)), l.untilWithinLocked(t, m, lead, cost))
	if s.isBarred(t) && l.firstLocked(t) != nil { // the tenant has no place in line, so it waits for its share
		within := s.threshold(t, l.freeLocked(t, m))
		return max(room, s.timeFor(s.toPayAlone(t, max(lead, within)-within))+late, 1)
	}
	full := time.Duration(max(b.Regained(b.state), m.Now) - m.Reading)
	return max(room, min(s.timeFor(likely)+late, full), 1)
}

// behindLocked returns the tag of a denied cost behind the tenant's callers in line. If the tenant has
// no such callers, it also returns the first other tenant in line whose turn comes before the cost.
func (l *Limiter[K]) behindLocked(t *tenant[K], m meter.Moment, cost int64) (tag uint64, first *tenant[K]) {
	if t.line.first != nil { // costs are bounded, so the shift does not overflow
		return t.tag + uint64(min(t.line.costs+cost, 1<<43))<<fractionBits/t.weight, nil
	}
	tag = l.shares.tag(t, cost)
	return tag, l.beforeLocked(t, m, tag)
}

// untilTurnLocked returns the amount to regain until all tenants in line have had their turn, and then the cost.
func (l *Limiter[K]) untilTurnLocked(t *tenant[K], m meter.Moment, cost int64) uint64 {
	line := l.ahead
	if t.spot.cost > 0 && !t.spot.kept {
		line -= t.spot.cost
	}
	need := uint64(min(max(line, 0)+l.withKeptLocked(t, cost), 1<<42)) << fractionBits
	free := l.budget.free(m.Now)
	return max(need, free) - free
}

// untilPaidLocked returns the amount to regain until the tenant's
// share has paid for a tag. The part within the burst is subtracted.
func (l *Limiter[K]) untilPaidLocked(t *tenant[K], lead uint64) uint64 {
	_, weights := l.shares.among(t)
	burst := l.budget.burst << fractionBits
	return product(lead, weights).minus(wide{lo: burst - min(burst, l.keptLocked(t))}).up(1)
}

// untilWithinLocked returns the amount to regain until a tag is within the tenant's
// share, if the free part of the burst stays as it is. This part varies, so an eighth
// less is assumed. If a caller comes late, it loses nothing, because its place is kept.
func (l *Limiter[K]) untilWithinLocked(t *tenant[K], m meter.Moment, lead uint64, cost int64) uint64 {
	n, weights := l.shares.among(t)
	free := l.freeLocked(t, m)
	free = max(free-free/8, uint64(cost)<<fractionBits)
	return product(lead, weights).minus(product(free, n)).up(1)
}
