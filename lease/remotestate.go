package lease

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
)

// remoteState is a key's state in the remote limiter, as of its
// last decision. The state behind a zero remoteState is not known.
type remoteState struct {
	known     bool             // whether there was a decision; otherwise only the limit may be known
	holds     bool             // whether reservations hold units in use; then a batch would hold units without a call
	limit     *ratelimit.Limit // shared by many keys; nil if not known
	remaining int              // the remaining units
	reset     time.Duration    // when the key is fresh if nothing else is spent
	next      time.Duration    // the instant of the next unit, if none remained
}

// limits keeps the remote limiter's last returned limit. Most keys have
// this limit, so they share one copy. The zero value holds no limit.
type limits struct {
	last atomic.Pointer[ratelimit.Limit]
}

// share returns a pointer to a limit equal to l. It returns nil for the zero Limit.
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

// recordLocked records a decision of the remote limiter. If the decision spent
// units, the times of an earlier denial are too short, so the denial is dropped.
func (f *fetcher[K]) recordLocked(h *holding[K], d ratelimit.Decision, now time.Duration) {
	h.remoteState = remoteState{known: true, holds: h.remoteState.holds, limit: f.limits.share(d.Limit), remaining: d.Remaining, reset: now + d.ResetAfter, next: now + d.NextAfter}
	if d.Allowed {
		h.denial = nil
	}
}

// direct reports whether only the remote limiter can decide on the cost. Under a leaky
// bucket, each decision has a place in the queue. Under Concurrent, each decision holds its
// own units. For a cost above the capacity, the remote limiter returns why it can never pass.
func (t *remoteState) direct(cost int) bool {
	if t.holds || t.limit == nil {
		return t.holds
	}
	return t.limit.Algorithm == ratelimit.AlgorithmLeakyBucket || t.limit.Algorithm == ratelimit.AlgorithmConcurrent || cost > t.limit.Capacity()
}

// answer returns an allowing decision, in a process with left units.
func (t *remoteState) answer(left int, now time.Duration) (d ratelimit.Decision) {
	t.fill(&d, left, now)
	return d
}

// fill writes what answer returns into a zero Decision.
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

// modest returns n, or less if little of the budget is left: no process should hold the last units. It returns at least need.
func (t *remoteState) modest(n, need int) int {
	if !t.known {
		return need
	}
	return max(need, min(n, t.remaining/4))
}

// add returns the sum of two non-negative counts, or the largest int.
func add(a, b int) int {
	if a > math.MaxInt-b {
		return math.MaxInt
	}
	return a + b
}
