package inflight

import "sync/atomic"

// idle says since when a slot has had nothing in flight and nobody waiting, in the
// order of idleOrder.
type idle struct {
	at     uint64
	unpark func() // puts the key back among those that may be forgotten; nil if it is there
}

// idleOrder numbers the instants at which keys became idle. As long as a table is far from
// full, no order is kept: the counter would be one more thing that all cores share.
type idleOrder struct {
	on   atomic.Bool
	last atomic.Uint64
}
