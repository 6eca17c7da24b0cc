// Package notices finds which shares of a limit a key's spending has
// crossed, and remembers the notices that this process has sent.
//
// A notice reports a crossing: by a charge, a settlement or an adjustment, a key's settled spending has reached a share of
// its limit. Settled spending excludes open reservations' estimates: see [Opens]. A key's changes have an order, and the
// engine answers each with the spending after it. So exactly one process finds a crossing, without a record of the keys.
// For denials, and for limits that regain all the time, one answer is not enough: [Notices] remembers what was sent.
package notices

import (
	"math/bits"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
)

// Settled returns a spending without its open estimates.
func Settled(spent, open int64) int64 { return max(0, spent-open) }

// isAtLeast reports whether a spending is at least the given percentage of a capacity.
func isAtLeast(spent int64, percent, capacity int) bool {
	spentHigh, spentLow := bits.Mul64(uint64(max(0, spent)), 100)
	high, low := bits.Mul64(uint64(max(0, capacity)), uint64(percent))
	return capacity > 0 && (spentHigh > high || spentHigh == high && spentLow >= low)
}

// crossed returns the thresholds between two spendings.
func crossed(thresholds []int, before, after int64, capacity int) []int {
	first := 0
	for first < len(thresholds) && isAtLeast(before, thresholds[first], capacity) {
		first++
	}
	last := first
	for last < len(thresholds) && isAtLeast(after, thresholds[last], capacity) {
		last++
	}
	return thresholds[first:last]
}

// maxNotices is the maximum number of keys whose notices are remembered. A notice for a further key may be sent too early.
const maxNotices = 1 << 16

// Notices remembers this process's notices until the keys have regained their budgets. Denials need this, and so
// do limits that regain all the time: under such a limit, traffic may cross a share back and forth for hours.
type Notices struct {
	n    atomic.Int64
	mu   sync.Mutex // never held while a notice is sent
	keys map[Key]*notice
}

// Key is a rule's key, as named in the budgets.
type Key struct{ Rule, Key string }

type notice struct {
	shares []share
	until  time.Duration // when the key is fresh again, by the policies' clock
}

// share is a limit's highest threshold with a notice sent.
type share struct {
	capacity, percent int
	denied            bool // whether the notice reported a denial
}

// maxShares is for how many of a key's limits notices are remembered at most.
const maxShares = 8

// notified returns the limit's highest threshold that needs no notice: one was sent for it, or for the same share of a
// larger limit. If a key's limit is raised, for example by another plan, notices for the new limit's shares are sent.
func (n *notice) notified(capacity int) (percent int) {
	for _, s := range n.shares {
		if s.capacity >= capacity {
			percent = max(percent, s.percent)
		}
	}
	return percent
}

// denied reports whether a notice of a denial was sent for this limit or for a larger one.
func (n *notice) denied(capacity int) bool {
	return slices.ContainsFunc(n.shares, func(s share) bool { return s.denied && s.capacity >= capacity })
}

// add records a notice.
func (n *notice) add(added share) {
	n.shares = slices.DeleteFunc(n.shares, func(s share) bool { return s.capacity <= added.capacity && s.percent <= added.percent })
	if len(n.shares) == maxShares {
		n.shares = slices.Delete(n.shares, 0, 1)
	}
	n.shares = append(n.shares, added)
}

// regainsAlways reports whether keys regain all the time, and not only at a window's end.
func regainsAlways(l ratelimit.Limit) bool {
	return l.Algorithm != ratelimit.AlgorithmFixedWindow && l.Algorithm != ratelimit.AlgorithmCalendar
}

// Change is a change in a key's spending, or a denial.
type Change struct {
	Before, After int64              // the settled spending
	Decision      ratelimit.Decision // the key's state after the change
	Lacks         bool               // whether the key was denied for lack of budget
}

// Due returns the thresholds with due notices after a change, and records these notices as sent.
func (n *Notices) Due(id Key, thresholds []int, x *Change, now time.Duration) []int {
	capacity := x.Decision.Limit.Capacity()
	all := crossed(thresholds, x.Before, x.After, capacity)
	if x.Lacks && thresholds[len(thresholds)-1] == 100 {
		all = thresholds[len(thresholds)-1:]
	}
	if len(all) == 0 && n.n.Load() == 0 {
		return nil
	}
	damped := x.Lacks || regainsAlways(x.Decision.Limit)
	n.mu.Lock()
	defer n.mu.Unlock()
	known := n.keys[id]
	if known != nil {
		known.shares = slices.DeleteFunc(known.shares, func(s share) bool { return !isAtLeast(4*x.Before, s.percent, s.capacity) })
		if now >= known.until || len(known.shares) == 0 {
			delete(n.keys, id)
			known = nil
		} else {
			known.until = now + x.Decision.ResetAfter
		}
	}
	if damped && known != nil {
		done := known.notified(capacity)
		for len(all) > 0 && all[0] <= done {
			all = all[1:]
		}
	}
	if k := len(all) - 1; k >= 0 && all[k] == 100 && known != nil && known.denied(capacity) { // a notice was sent at the denial
		all = all[:k]
	}
	if len(all) == 0 {
		n.n.Store(int64(len(n.keys)))
		return nil
	}
	if highest := all[len(all)-1]; damped || highest == 100 {
		if known == nil {
			known = n.new(id, now+x.Decision.ResetAfter)
		}
		known.add(share{capacity, highest, x.Lacks})
	}
	n.n.Store(int64(len(n.keys)))
	return all
}

// new returns a new notice for a key. The caller holds the lock.
func (n *Notices) new(id Key, until time.Duration) *notice {
	if n.keys == nil {
		n.keys = map[Key]*notice{}
	}
	for other := range n.keys {
		if len(n.keys) < maxNotices {
			break
		}
		delete(n.keys, other)
	}
	id.Key = strings.Clone(id.Key)
	known := &notice{until: until}
	n.keys[id] = known
	return known
}

// Forget drops a key's notices.
func (n *Notices) Forget(id Key) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.keys, id)
	n.n.Store(int64(len(n.keys)))
}
