package ratelimit

import (
	"cmp"
	"slices"
	"unsafe"
)

// locks are the accounts that one decision has locked, each once.
type locks []*account

// lock locks the accounts of all charges, or none if one of them has been dropped: then it reports false. It also reports
// whether it has waited for an account that all requests share.
//
// All decisions lock accounts in the order of their addresses, which Go's collector does not change, and after these the
// accounts that all requests share, in that order too. So no two of them ever wait for each other, in whatever order their
// layers are. A shared account comes last and is unlocked first, because all other decisions wait for it. If late is the index
// of the charge of the only shared account, that account is left out. An account that two charges meet at, one of them a
// shadow's, is locked once.
func (x *locks) lock(all []charge, late int) (locked, waited bool) {
	*x = (*x)[:0]
	shared := false
	for i := range all {
		if c := &all[i]; c.a != nil && c.shared {
			shared = true
		} else if c.a != nil {
			*x = append(*x, c.a)
		}
	}
	x.sort()
	if shared && late == none {
		others := len(*x)
		for i := range all {
			if c := &all[i]; c.a != nil && c.shared {
				*x = append(*x, c.a)
			}
		}
		last := (*x)[others:]
		last.sort()
		*x = (*x)[:others+len(last)]
	}
	ordinary := *x
	if shared && late == none {
		ordinary = ordinary[:len(ordinary)-1]
	}
	for i, a := range ordinary {
		if !a.lockKept() {
			(*x)[:i].unlock()
			return false, false
		}
	}
	if n := len(ordinary); n < len(*x) {
		if locked, waited = (*x)[n].lockCommon(); !locked {
			ordinary.unlock()
		}
		return locked, waited
	}
	return true, false
}

// crowdedFor is the number of decisions after which an account that all requests share, and that no decision has waited
// for in between, is locked with the others again.
const crowdedFor = 1000

// lockCommon is lockKept, and reports whether it has waited.
func (a *account) lockCommon() (kept, waited bool) {
	if a.mu.TryLock() {
		if a.plan != nil {
			return true, false
		}
		a.mu.Unlock()
		return false, false
	}
	return a.lockKept(), true
}

// haveCommon reports whether there is exactly one layer whose limiter has one key, which all requests share. If there are
// several such layers, their accounts are locked in one order with the others.
func haveCommon[R any](layers []layer[R]) bool {
	n := 0
	for i := range layers {
		if y := &layers[i]; y.shared {
			if n++; y.shadow {
				return false
			}
		}
	}
	return n == 1
}

// unlockCommon unlocks the account that all requests share when the decision has been committed or refused there. The remaining
// work on the other accounts then delays no other decision. It keeps the account locked if it is still needed: for a state that
// cannot be copied, to unpin it, or to mark it as stale.
func (s *stack[R]) unlockCommon() {
	if !s.held || s.changed || s.asked {
		return
	}
	c := &s.firm[s.late]
	if !s.yesOrNo() || s.taker != nil { // the answer is made of the state
		if c.a.OnHeap() {
			return
		}
		c.checked, c.viewed = false, c.a.State
	}
	s.held = false
	s.locks = s.locks[:len(s.locks)-1]
	c.a.mu.Unlock()
}

// sort brings the accounts into the order of their addresses, each once. A request seldom has more than a few: inserting each
// into the sorted part then takes less than a call of [slices.SortFunc].
func (x *locks) sort() {
	if len(*x) > fewLocks {
		slices.SortFunc(*x, byAddress)
		*x = slices.Compact(*x)
		return
	}
	sorted := (*x)[:0]
	for _, a := range *x {
		if slices.Contains(sorted, a) {
			continue
		}
		i := len(sorted)
		sorted = append(sorted, a)
		for ; i > 0 && address(a) < address(sorted[i-1]); i-- {
			sorted[i] = sorted[i-1]
		}
		sorted[i] = a
	}
	if len(sorted) < len(*x) {
		clear((*x)[len(sorted):])
		*x = sorted
	}
}

const fewLocks = 8

func address(a *account) uintptr { return uintptr(unsafe.Pointer(a)) }

func byAddress(x, y *account) int {
	return cmp.Compare(address(x), address(y))
}

func (x locks) unlock() {
	for i := len(x) - 1; i >= 0; i-- {
		x[i].mu.Unlock()
	}
}

// clear drops the accounts, so that they are not kept from the garbage collector.
func (x *locks) clear() {
	clear(*x)
	*x = (*x)[:0]
}
