package ratelimit

// rank says what it costs to drop a key: the lower, the better. Eviction drops the
// lowest rank among the keys that it looks at.
type rank int

const (
	rankFresh     rank = iota // nothing is lost
	rankIdle                  // what the key has spent is forgotten
	rankInUse                 // the same, and the key will probably be back soon
	rankThrottled             // a denial is forgotten
	rankPinned                // it must stay, as must those of the ranks that follow
	rankBusy                  // another call has locked it, so it was not looked at
	rankTombstone             // it was dropped already
)

// rank returns the key's rank, given whether it is fresh. A key that is fresh is the first to
// go even if it was denied or used a moment ago: it has its full budget.
func (u usage) rank(fresh bool) rank {
	switch {
	case u.isPinned():
		return rankPinned
	case fresh:
		return rankFresh
	case u&usageDenied != 0: // and not fresh since
		return rankThrottled
	case u.recent():
		return rankInUse
	}
	return rankIdle
}
