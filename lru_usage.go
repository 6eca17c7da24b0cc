package ratelimit

// rank is the cost of dropping a key: the lower, the better. Eviction drops the lowest rank among the examined keys.
type rank int

const (
	rankFresh     rank = iota // nothing is lost
	rankIdle                  // the key's spending is forgotten
	rankInUse                 // the same, and the key will probably be back soon
	rankThrottled             // a denial is forgotten
	rankWaiting               // calls wait for it, and must bring it back, or reservations hold units of it
	rankPinned                // the key must stay, as must keys of all higher ranks
	rankBusy                  // another call has locked the key, so it was not examined
	rankTombstone             // the key was dropped already
)

// rank returns the key's rank, given whether it is fresh, whether calls wait for it, and whether reservations hold
// its units. A fresh key is the first to go even if it was denied or used a moment ago: it has its full budget.
func (u usage) rank(fresh, waiting, holds bool) rank {
	switch {
	case u.isPinned():
		return rankPinned
	case waiting:
		return rankWaiting
	case fresh:
		return rankFresh
	case holds:
		return rankWaiting
	case u&usageDenied != 0: // and the key was not fresh since
		return rankThrottled
	case u.recent():
		return rankInUse
	}
	return rankIdle
}

// usage holds a key's facts for eviction, besides its spending: whether
// it is in use, denied, or pinned. The zero usage belongs to a new key.
//
// The key's lock guards it. A decision records its result in it, and only eviction reads it, so a decision on a known key moves
// nothing in the list of keys.
type usage uint8

const (
	usageCreated usage = 1 << iota // the key's first decision has been taken
	usageRecent                    // another decision has been taken since eviction last looked
	usageDenied                    // the last decision was a denial
	usagePinned                    // a decision on several keys needs the key to stay
	usageDirty                     // it is on the dirty list
	usageOver                      // the key was dropped although it was not fresh
)

// touched records a decision. A key's first decision does not count as use, so keys with a single request are the first
// to go. The first touch sets usageCreated. Each later touch finds it set, and shifts it into the next bit, usageRecent.
func (u *usage) touched() { *u |= usageCreated | (*u&usageCreated)<<1 }

// allowed and denied record the result of the last decision. A denied key stays
// longer than others: a client with invented keys gains most from forgotten denials.
func (u *usage) allowed() { *u &^= usageDenied }

func (u *usage) denied() { *u |= usageDenied }

// decided calls touched, and then allowed or denied. It is on the shortest path of a decision.
// Most decisions on a key in use change nothing here, so decided compares before it writes.
func (u *usage) decided(allowed bool) {
	after := usageCreated | usageRecent
	if !allowed {
		after |= usageDenied
	}
	if *u != after {
		u.decidedSlow(allowed)
	}
}

func (u *usage) decidedSlow(allowed bool) {
	if u.touched(); allowed {
		u.allowed()
	} else {
		u.denied()
	}
}

// pin keeps the key from being dropped until unpin. One request's keys are pinned
// while the missing ones are inserted: otherwise they could make room for each other.
func (u *usage) pin() { *u |= usagePinned }

func (u *usage) unpin() { *u &^= usagePinned }

func (u usage) isPinned() bool { return u&usagePinned != 0 }

// recent reports whether the key was used since eviction last looked.
func (u usage) recent() bool { return u&usageRecent != 0 }

// clearRecent records eviction's look. To count as recent, the key has to be used again.
func (u *usage) clearRecent() { *u &^= usageRecent }

// end records that the key is dropped although it may not be fresh. So its reservations end.
func (u *usage) end() { *u |= usageOver }

func (u usage) isOver() bool { return u&usageOver != 0 }

// markDirty records the key's place on the dirty list, and reports false if it
// was on it before. So repeated refunds to one key do not make the list longer.
func (u *usage) markDirty() bool {
	listed := *u&usageDirty != 0
	*u |= usageDirty
	return !listed
}

// clearDirty records the expiry heap's look at the key.
func (u *usage) clearDirty() { *u &^= usageDirty }
