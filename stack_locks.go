package ratelimit

import (
	"cmp"
	"slices"
	"unsafe"
)

// locks are the accounts that one decision has locked, each once.
type locks []*account

// lock locks the accounts of all charges, or none if one of them has been dropped: then
// it reports false.
//
// All decisions lock accounts in the order of their addresses, which Go's collector does
// not change, and after these the accounts that all requests share, in that order too. So no two of them ever wait for
// each other, in whatever order their layers are. A shared account comes last and is unlocked first, because all other
// decisions wait for it. An account that two charges meet at, one of them a shadow's, is locked once.
func (x *locks) lock(all []charge) bool {
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
	if shared {
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
	for i, a := range *x {
		if !a.lockKept() {
			(*x)[:i].unlock()
			return false
		}
	}
	return true
}

// sort brings the accounts into the order of their addresses, each once. A request seldom has
// more than a few: to insert each into those before it then takes less than a call of
// [slices.SortFunc].
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
