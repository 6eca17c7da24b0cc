package ratelimit

import (
	"cmp"
	"slices"
	"unsafe"
)

// locks holds one decision's locked accounts, each once.
type locks []*account

// lock locks all charges' accounts. If one was dropped, it locks none and reports
// false. It also reports whether it has waited for an account common to all requests.
//
// All decisions lock accounts in the same order: first the accounts of single keys, by their
// addresses, and then the accounts common to all requests, by their addresses. Go's collector does not
// change addresses. So two decisions never wait for each other, in whatever order their layers are.
//
// lock takes a shared account last, and it is unlocked first, because all other
// decisions wait for it. late is the index of the charge on the only shared account, or
// none. lock leaves this charge out. If two charges have one account, it is locked once.
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

// crowdedFor is the number of consecutive decisions without a wait for the
// common account. After them it is locked together with the others again.
const crowdedFor = 1000

// lockCommon is lockKept, and also reports whether it has waited.
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

// haveCommon reports whether exactly one layer has a limiter with a single key for all requests. If there are several,
// their accounts are locked in one order with the others.
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

// unlockCommon unlocks the common account as soon as the decision is committed or refused there. So
// the remaining work on other accounts delays no other decision. It keeps the account locked in three
// cases: its state cannot be copied, it must be unpinned, or it may have to be marked as stale.
func (s *stack[R]) unlockCommon() {
	if !s.held || s.changed || s.lookedUp {
		return
	}
	c := &s.firm[s.late]
	if !s.yesOrNo() || s.taker != nil { // the answer needs the state
		if c.a.OnHeap() {
			return
		}
		c.checked, c.viewed = false, c.a.State
	}
	s.held = false
	s.locks = s.locks[:len(s.locks)-1]
	c.a.mu.Unlock()
}

// sort sorts the accounts by their addresses and removes duplicates. A request seldom has more than a few. Then it is
// faster to insert each into the sorted part than to call [slices.SortFunc].
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

// clear drops the accounts, so the garbage collector can free them.
func (x *locks) clear() {
	clear(*x)
	*x = (*x)[:0]
}
