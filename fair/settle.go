package fair

import (
	"context"
	"math"
	"slices"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/meter"
)

// mostPrivate bounds a barring overrun, in units.
const mostPrivate = 2 * mostBurst

// Adjust corrects a tenant's spending. A positive delta is charged like an overrun in [Limiter.Reserve]: the total
// is charged until the burst is empty, and the rest bars only this tenant. A negative delta refunds at most -delta
// units. It first lowers the barring rest, and then the tenant's debt, also in the total. Its errors are Take's.
func (l *Limiter[K]) Adjust(_ context.Context, tenant K, delta int) error {
	if err := l.check(tenant, 0); err != nil {
		return err
	}
	weight, reading := l.weight(tenant), l.reading()
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.hurryLocked()
	m := l.advanceLocked(reading)
	switch {
	case delta < 0:
		if t := l.tenants[tenant]; t != nil {
			l.refundLocked(t, m, -max(int64(delta), -math.MaxInt64))
		}
	case delta > 0:
		t := l.tenantLocked(tenant, weight, m)
		if err := l.trackLocked(t, true); err != nil {
			return err
		}
		l.overrunLocked(t, m, int64(delta))
	}
	return nil
}

// SetLimit changes the limit. Spending stays, but a lowered limit counts at most its burst as
// spent, and scales each tenant's spending likewise. Places and callers in line stay, unless their
// cost is now too large: such callers get [ratelimit.ErrExceedsLimit]. Errors are as for [New].
func (l *Limiter[K]) SetLimit(limit ratelimit.Limit) error {
	l.mustBeMade()
	if err := checkLimit(limit); err != nil {
		return err
	}
	reading := l.reading()
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.wakeLocked()
	m := l.advanceLocked(reading)
	spent := l.budget.owedParts(m.Now)
	l.budget.set(limit, m.Now)
	if counted := l.budget.owedParts(m.Now); counted < spent {
		l.lowerLocked(spent, counted)
	}
	l.shares.units, l.shares.per, l.shares.restOfTime = l.budget.units, l.budget.per, 0
	l.refuseLocked()
	for _, x := range slices.Clone(l.deadlines.items) {
		t := x.tenant
		if t.spot.cost > l.mostKept() {
			l.losePlaceLocked(t)
			l.lingerLocked(t, t.spot.expires)
		}
	}
	l.hurryLocked()
	return nil
}

// lowerLocked lowers all debts and savings after a change of the limit has lowered the total. A raised limit may
// charge the total for units set aside. No tenant owes these: tenants may have spent them after they had paid.
func (l *Limiter[K]) lowerLocked(total, counted uint64) {
	l.shares.surplus, _ = product(l.shares.surplus, counted).over(total)
	l.shares.common, _ = product(l.shares.common, counted).over(total)
	for _, t := range l.tenants {
		l.shares.lower(t, total, counted)
		l.movedLocked(t)
	}
}

// Reset removes a tenant's debt, also from the total, its overruns and its place in line. Its callers in Wait stay in line.
func (l *Limiter[K]) Reset(_ context.Context, tenant K) error {
	if err := l.check(tenant, 0); err != nil {
		return err
	}
	reading := l.reading()
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.hurryLocked()
	m := l.advanceLocked(reading)
	if t := l.tenants[tenant]; t != nil {
		l.refundLocked(t, m, math.MaxInt64)
		if l.deadlines.has(t) {
			l.lapseLocked(t)
		}
	}
	return nil
}

// settle replaces a charge by its real cost.
func (l *Limiter[K]) settle(key K, c charge, actual int64) {
	weight, reading := l.weight(key), l.reading()
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.hurryLocked()
	m := l.advanceLocked(reading)
	before := l.budget.owedParts(m.Now)
	c.Changed = c.changes != l.budget.changes
	l.budget.Settle(&l.budget.state, m.Now, c.Spending, min(actual, c.Cost))
	l.repayLocked(l.tenants[key], before-l.budget.owedParts(m.Now))
	if actual > c.Cost {
		if t := l.tenantLocked(key, weight, m); l.trackLocked(t, true) == nil {
			l.overrunLocked(t, m, actual-c.Cost)
		} else { // there is no room to track the tenant, but the total stays exact
			l.chargeTotalLocked(m, actual-c.Cost)
		}
	}
}

// overrunLocked charges a cost spent without a decision. If the total has no room for a part, this part bars
// the tenant until its share would have paid for it. Other tenants wait at most until the burst has room.
func (l *Limiter[K]) overrunLocked(t *tenant[K], m meter.Moment, over int64) {
	charged := l.chargeTotalLocked(m, over)
	if charged > 0 {
		l.shares.charge(t, uint64(charged)<<fractionBits)
	}
	if rest := min(over-charged, mostPrivate); rest > 0 {
		base := l.shares.base(t)
		more := (uint64(rest) << fractionBits) / t.weight
		t.barred, t.barredTo = true, base+min(more, most-min(l.shares.lead(base), most))
		t.tag += t.barredTo - base
		if l.deadlines.has(t) {
			l.lapseLocked(t)
		}
		l.shares.settleIn(t)
	}
	l.movedLocked(t)
}

// chargeTotalLocked charges the total with as much of an overrun as empties the
// burst, and returns this part. A server's bucket cannot be overdrawn, either.
func (l *Limiter[K]) chargeTotalLocked(m meter.Moment, over int64) int64 {
	charged := min(over, max(0, l.budget.Remaining(l.budget.state, m.Now)))
	if charged > 0 {
		l.budget.Adjust(&l.budget.state, m.Now, charged)
	}
	return charged
}

// overrunOf returns the unregained units of a tenant's overrun, rounded up.
func (l *Limiter[K]) overrunOf(t *tenant[K]) int {
	if !l.shares.isBarred(t) {
		return 0
	}
	owed := product(after(t.barredTo, l.barredFrom(t)), t.weight).up(1 << fractionBits)
	return int(min(owed, math.MaxInt))
}

// barredFrom returns the virtual time when a tenant's bar begins.
// Until then the tenant pays its debt for spending within the total.
func (l *Limiter[K]) barredFrom(t *tenant[K]) uint64 {
	if t.counts && after(t.finish, l.shares.virtual) > 0 {
		return t.finish
	}
	return l.shares.virtual
}

// refundLocked subtracts an amount from a tenant's barring rest, and then from its debt.
func (l *Limiter[K]) refundLocked(t *tenant[K], m meter.Moment, amount int64) {
	parts := uint64(min(amount, 2*mostPrivate)) << fractionBits
	if l.shares.isBarred(t) {
		bar := after(t.barredTo, l.barredFrom(t))
		less := min(bar, parts/t.weight)
		t.barredTo -= less
		t.barred = less < bar
		t.tag -= less
		parts -= less * t.weight
	}
	if units := min(parts, l.shares.owes(t)*t.weight+t.rest) >> fractionBits; units > 0 {
		before := l.budget.owedParts(m.Now)
		l.budget.Adjust(&l.budget.state, m.Now, -int64(units))
		l.repayLocked(t, before-l.budget.owedParts(m.Now))
	}
	l.movedLocked(t)
}

// repayLocked subtracts an amount from a tenant's debt. The total has got the amount back. If the
// tenant owes less, the server has paid the difference to the tenant, and now pays it to the others.
func (l *Limiter[K]) repayLocked(t *tenant[K], amount uint64) {
	if amount == 0 {
		return
	}
	if t != nil {
		amount -= l.shares.forgive(t, amount)
		l.movedLocked(t)
	}
	before := l.shares.virtual
	l.shares.pay(amount, l.filedLocked)
	l.growLocked(before)
}
