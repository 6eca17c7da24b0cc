package ratelimit

import "github.com/weir-go/ratelimit/internal/meter"

// follower is an [answerTaker] and follows its keys' spending, charge by charge. In package policy, requests under rules
// with notices implement it. For a key in memory it receives all charges and corrections in the order of their effect.
type follower interface {
	// Following reports whether the request follows any key, and Follows whether
	// it follows a layer's key. The other methods are called only for such keys.
	Following() bool
	Follows(layer int) bool

	// Charged is called when a layer's cost has been spent, with the key's spending before. In memory it is
	// called under the key's lock, so it must be quick and must not call the limiter. For another store,
	// open sums up the key's open estimates before the charge. It is -1 if the store does not keep the sum.
	Charged(layer int, before, open int64)

	// Opened is called if another store has denied a charge. It receives the key's open estimates, summed up.
	Opened(layer int, open int64)

	// Corrected is called when a settlement or an adjustment has taken effect on a layer's key, under the same
	// conditions as Charged. It receives the spending before the correction, and the key's standing after it: d
	// has Limit, Remaining, Debt and ResetAfter. If the key has no spending, nothing was corrected, and d is nil.
	Corrected(layer int, before, openBefore, openAfter int64, d *Decision)
}

// followed is a request's part for one layer's key.
type followed struct {
	follower
	layer int
}

// unknownOpen is the sum of open estimates if the store does not keep one.
const unknownOpen = -1

// spent returns a key's spending at an instant, in units, rounded up:
// its limit's capacity, less the remaining budget, plus the debt.
func (p *plan) spent(s meter.State, now int64) int64 {
	remaining, debt, _ := p.Standing(s, now)
	return meter.Add(max(0, p.capacity-remaining), debt)
}

// before returns an account's spending at an instant, if the request follows its key. The caller holds the lock.
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

// unspent reports that there was no spending to correct.
func (f *followed) unspent() {
	if f != nil {
		f.Corrected(f.layer, 0, unknownOpen, unknownOpen, nil)
	}
}

// followedBy returns the part of a request that follows a layer's key, or nil if the request does not follow it.
func followedBy(f follower, layer int) *followed {
	if f == nil || !f.Follows(layer) {
		return nil
	}
	return &followed{f, layer}
}
