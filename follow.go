package ratelimit

import "github.com/weir-go/ratelimit/internal/meter"

// follower is an [answerTaker] that follows the spending of its keys, charge by charge.
// Requests of package policy implement it for rules that notify. For a key in memory it
// receives all charges and corrections in the order in which they take effect.
type follower interface {
	// Following reports whether the request follows keys, and Follows whether it follows a layer's. The other methods are called only for
	// keys that it follows.
	Following() bool
	Follows(layer int) bool

	// Charged is called when the cost of a layer has been spent, with the spending of the key before it. In memory it is called under the
	// lock of the key's account, so it must be quick and must not call the limiter. Of another store, open is the sum of the key's
	// open estimates before the charge, and -1 if the store does not keep it.
	Charged(layer int, before, open int64)

	// Opened is called if another store has denied a charge, with the sum of the key's open estimates.
	Opened(layer int, open int64)

	// Corrected is called when a settlement or an adjustment of a layer's key has taken effect, likewise, with the spending before it, and with
	// how the key stands after it: d has Limit, Remaining, Debt and ResetAfter. It is nil if the key has no spending, and nothing was
	// corrected.
	Corrected(layer int, before, openBefore, openAfter int64, d *Decision)
}

// followed is one key's layer of a request that follows it.
type followed struct {
	follower
	layer int
}

// unknownOpen is the sum of open estimates if the store does not keep one.
const unknownOpen = -1

// spent returns the units that a key has spent and not regained at an instant, rounded up: its limit's capacity, less the remaining
// budget, plus the debt.
func (p *plan) spent(s meter.State, now int64) int64 {
	remaining, debt, _ := p.Standing(s, now)
	return meter.Add(max(0, p.capacity-remaining), debt)
}

// before returns an account's spending as of an instant, if its correction is followed. The caller holds the lock.
func (f *followed) before(a *account, now int64) int64 {
	if f == nil || a.plan == nil {
		return 0
	}
	a.plan.Advance(&a.State, now)
	return a.plan.spent(a.State, now)
}

// after reports a correction of an account. The caller holds the lock.
func (f *followed) after(a *account, now, before int64) {
	if f == nil {
		return
	}
	if a.plan == nil {
		f.unspent()
		return
	}
	var d Decision
	a.plan.Refresh(&a.State)
	a.plan.standing(a.State, meter.Moment{Reading: now, Now: now}, &d)
	f.Corrected(f.layer, before, unknownOpen, unknownOpen, &d)
}

// unspent reports a correction of a key that has no spending.
func (f *followed) unspent() {
	if f != nil {
		f.Corrected(f.layer, 0, unknownOpen, unknownOpen, nil)
	}
}

// followedBy returns a layer of a request that follows it, nil if it does not.
func followedBy(f follower, layer int) *followed {
	if f == nil || !f.Follows(layer) {
		return nil
	}
	return &followed{f, layer}
}
