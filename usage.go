package ratelimit

// usage is what eviction wants to know about a key besides what it has spent: whether
// it is in use, denied, or pinned. The zero usage is that of a new key.
//
// The key's lock guards it. A decision records into it what happened, and only eviction
// reads it, so a decision on a known key moves nothing in the list of keys.
type usage uint8

const (
	usageCreated usage = 1 << iota // the decision that the key was created for has been taken
	usageRecent                    // another one has been taken since eviction last looked
	usageDenied                    // the last decision was a denial
	usagePinned                    // a decision on several keys needs the key to stay
	usageEarly                     // it is on the list of keys that may be fresh earlier than was known
)

// touched records a decision. The one that creates the key does not count as use, so
// that keys of one request each are the first to go.
func (u *usage) touched() { *u |= usageCreated | *u&usageCreated<<1 }

// allowed and denied record how the last decision ended.
func (u *usage) allowed() { *u &^= usageDenied }
func (u *usage) denied()  { *u |= usageDenied }

// decided is touched, and then allowed or denied, in one step for the shortest path. Of a key in
// use nothing changes as a rule.
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

// pin keeps the key from being dropped until unpin.
func (u *usage) pin()          { *u |= usagePinned }
func (u *usage) unpin()        { *u &^= usagePinned }
func (u usage) isPinned() bool { return u&usagePinned != 0 }

// recent reports whether the key was used since eviction last looked.
func (u usage) recent() bool { return u&usageRecent != 0 }

// seen records that eviction has looked.
func (u *usage) seen() { *u &^= usageRecent }

// early records that the key is on the list of those that may be fresh earlier than was
// known, and reports false if it was on it before.
func (u *usage) early() bool {
	listed := *u&usageEarly != 0
	*u |= usageEarly
	return !listed
}

// lookedUp records that the key has left that list.
func (u *usage) lookedUp() { *u &^= usageEarly }

// rank says what it costs to drop a key: the lower, the better. Eviction drops the
// lowest rank among the keys that it looks at.
type rank int

const (
	rankFresh     rank = iota // nothing is lost
	rankIdle                  // what the key has spent is forgotten
	rankInUse                 // the same, and the key will probably be back soon
	rankThrottled             // a denial is forgotten
	rankPinned                // it must stay
	rankBusy                  // it is in use at this moment, and was not looked at
	rankDead                  // it was dropped already
)

// rank returns the key's rank, given whether it is fresh.
func (u usage) rank(fresh bool) rank {
	switch {
	case u.isPinned():
		return rankPinned
	case fresh:
		return rankFresh
	case u&usageDenied != 0:
		return rankThrottled
	case u.recent():
		return rankInUse
	}
	return rankIdle
}
