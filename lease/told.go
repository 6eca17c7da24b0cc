package lease

import (
	"math"
	"time"

	"github.com/weir-go/ratelimit"
)

// told is what the remote limiter has last said of a key. The zero told is nothing.
type told struct {
	known     bool            // it was asked; else at most the limit is known
	limit     ratelimit.Limit // the zero Limit if it is not known
	remaining int             // units that it has left
	reset     time.Duration   // when the key is fresh, if nothing else is spent
}

func hear(d ratelimit.Decision, now time.Duration) told {
	return told{known: true, limit: d.Limit, remaining: d.Remaining, reset: now + d.ResetAfter}
}

// hearLocked takes note of what the remote limiter has said. What is spent there makes the
// times of an earlier denial too short.
func (h *holding[K]) hearLocked(d ratelimit.Decision, now time.Duration) {
	h.told = hear(d, now)
	if d.Allowed {
		h.denial = nil
	}
}

// direct reports whether the key's decisions belong to the remote limiter: under a
// leaky bucket each has a place in the queue. A cost above the capacity does too,
// since the remote limiter tells why it can never pass.
func (t *told) direct(cost int) bool {
	switch t.limit.Algorithm {
	case 0: // nothing is known, or the remote limiter does not tell
		return false
	case ratelimit.AlgorithmLeakyBucket:
		return true
	}
	return cost > t.limit.Capacity()
}

// answer allows, for a process that holds left units.
func (t *told) answer(left int, now time.Duration) (d ratelimit.Decision) {
	t.fill(&d, left, now)
	return d
}

// fill is answer into a Decision that is zero.
func (t *told) fill(d *ratelimit.Decision, left int, now time.Duration) {
	d.Allowed = true
	d.Limit = t.limit
	d.Remaining = add(t.remaining, left)
	d.ResetAfter = max(0, t.reset-now)
}

// modest returns n, made smaller when little is left of the budget, so that no
// process holds the last part of it, and never smaller than need.
func (t *told) modest(n, need int) int {
	if !t.known {
		return need
	}
	return max(need, min(n, t.remaining/4))
}

// add adds two counts that are not negative, as far as an int goes.
func add(a, b int) int {
	if a > math.MaxInt-b {
		return math.MaxInt
	}
	return a + b
}
