package lease

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
)

// remoteState is a key's state in the remote limiter, by its last decision. The zero remoteState is unknown.
type remoteState struct {
	known     bool             // there was a decision; otherwise at most the limit is known
	holds     bool             // reservations hold units that are in use: a batch would hold units that no call uses
	limit     *ratelimit.Limit // shared by many keys; nil if it is not known
	remaining int              // the remaining units
	reset     time.Duration    // the time at which the key is fresh, if nothing else is spent
	next      time.Duration    // the time of the next unit, if none remained
}

// limits keeps the last limit that the remote limiter has returned. Most keys have that limit, so they share one copy.
// The zero limits is empty.
type limits struct {
	last atomic.Pointer[ratelimit.Limit]
}

// share returns a limit that equals l. It returns nil for the zero Limit.
func (ls *limits) share(l ratelimit.Limit) *ratelimit.Limit {
	if l == (ratelimit.Limit{}) {
		return nil
	}
	last := ls.last.Load()
	if last == nil || *last != l {
		last = &l
		ls.last.Store(last)
	}
	return last
}

// recordLocked records a decision of the remote limiter. A charge there makes the times of an earlier denial too short.
func (f *fetcher[K]) recordLocked(h *holding[K], d ratelimit.Decision, now time.Duration) {
	h.remoteState = remoteState{known: true, holds: h.remoteState.holds, limit: f.limits.share(d.Limit), remaining: d.Remaining, reset: now + d.ResetAfter, next: now + d.NextAfter}
	if d.Allowed {
		h.denial = nil
	}
}

// direct reports whether only the remote limiter can decide on the cost. Under a leaky bucket
// each decision has a place in the queue, and under Concurrent each holds units of its own. For
// a cost above the capacity, the remote limiter returns the reason for which it can never pass.
func (t *remoteState) direct(cost int) bool {
	if t.holds || t.limit == nil {
		return t.holds
	}
	return t.limit.Algorithm == ratelimit.AlgorithmLeakyBucket || t.limit.Algorithm == ratelimit.AlgorithmConcurrent || cost > t.limit.Capacity()
}

// answer returns an allowing decision for a process that holds left units.
func (t *remoteState) answer(left int, now time.Duration) (d ratelimit.Decision) {
	t.fill(&d, left, now)
	return d
}

// fill is answer into a Decision that is zero.
func (t *remoteState) fill(d *ratelimit.Decision, left int, now time.Duration) {
	d.Allowed = true
	if t.limit != nil {
		d.Limit = *t.limit
	}
	d.Remaining = add(t.remaining, left)
	if d.ResetAfter = max(0, t.reset-now); d.Remaining == 0 {
		d.NextAfter = max(0, t.next-now)
	}
}

// modest returns n, or less if little of the budget is left, so that
// no process holds the last part of it. It returns at least need.
func (t *remoteState) modest(n, need int) int {
	if !t.known {
		return need
	}
	return max(need, min(n, t.remaining/4))
}

// add returns the sum of two counts that are not negative, or the largest int.
func add(a, b int) int {
	if a > math.MaxInt-b {
		return math.MaxInt
	}
	return a + b
}
