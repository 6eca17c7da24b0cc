package ratelimit

import (
	"math"
	"time"

	"github.com/weir-go/ratelimit/internal/meter"
)

// Decision says what a limiter has decided, and how the key stands after that.
// Times are spans from the moment of the decision. The zero Decision denies.
type Decision struct {
	// Allowed reports whether the cost was spent.
	Allowed bool
	// Limit is the limit that decided. Of several it is the one that binds: see
	// [Layered].
	Limit Limit
	// Remaining is the largest cost that would be allowed at this instant.
	Remaining int
	// RetryAfter is 0 if Allowed, or if an error says that a retry can never pass.
	// Else, if nothing else is spent, the same call passes after that time, and
	// not a nanosecond before.
	RetryAfter time.Duration
	// ResetAfter is the time after which the key is fresh, if nothing else is spent:
	// it cannot be told from a key never seen. A nanosecond before, it can.
	ResetAfter time.Duration
	// Delay is how long to hold the work before passing it on. It is above zero
	// only in a leaky bucket and for a [Reserver]'s booking.
	Delay time.Duration
	// Degraded reports that the store which several processes share was not asked,
	// and that what stands in for it has decided: see package failover. It is false
	// for all limiters of this package.
	Degraded bool
}

// Event is one decision, as [Options.OnDecision] gets it.
type Event[K any] struct {
	// Key is the key that the decision is about. It may be a secret: think before
	// you log it.
	Key K
	// Cost is the cost that was asked for.
	Cost int
	// Decision is the answer. In a stack of layers it is the answer of this layer
	// alone: its own Limit, Remaining and RetryAfter, and whether it allows the cost.
	Decision Decision
	// Spent reports whether the cost was charged to the key and stays charged. It
	// is false for a cost of 0 and for limits that track nothing. In a stack it is
	// false if another layer has denied; after a Wait that failed it is false.
	Spent bool
	// Err is the error that was returned, nil for a plain denial. For a [Shadow] layer
	// it is the layer's own error, which is not returned.
	Err error
}

// verdict fills in what an offer means to the caller.
func (d *Decision) verdict(m meter.Moment, o meter.Offer) {
	if d.Allowed = !o.Denied(m.Reading); !d.Allowed {
		d.RetryAfter = between(m.Reading, o.Retry)
	} else if o.At > m.Now {
		d.Delay = between(m.Reading, o.At)
	}
}

// answer fills in what a state says to a cost.
func (p *plan) answer(s meter.State, m meter.Moment, cost int64, d *Decision) {
	o := m.Free()
	if cost > 0 {
		o = p.Offer(s, m, cost, take.ahead(p))
	}
	d.verdict(m, o)
	p.standing(s, m, d)
}

// standing fills in how much a state leaves.
func (p *plan) standing(s meter.State, m meter.Moment, d *Decision) {
	d.Limit = p.limit
	d.Remaining = int(p.Remaining(s, m.Now))
	d.ResetAfter = between(m.Reading, max(p.Regained(s), m.Now))
}

// between returns the time from one instant to a later one, at most the longest Duration.
func between(from, to int64) time.Duration {
	d := to - from
	if d < 0 { // it overflowed
		return math.MaxInt64
	}
	return time.Duration(d)
}

// tally adds up what several limiters say to one cost.
type tally struct {
	d    *Decision     // the sum
	n    int           // how many have been added
	room int           // of the limiter that binds: what it leaves the caller
	wait time.Duration // its RetryAfter
	full time.Duration // its ResetAfter
	said bool          // it allows the cost
}

// none makes the sum that of no limiter at all.
func (t *tally) none() {
	*t.d = Decision{Allowed: true, Limit: Limit{Algorithm: AlgorithmUnlimited}, Remaining: math.MaxInt}
}

// add merges one more limiter's answer, of which the caller can spend room.
//
// The sum is allowed if all of them allow it. Its Limit is that of the limiter that
// binds, its Remaining the least, and its times are the longest.
func (t *tally) add(d *Decision, room int) {
	if t.n == 0 || t.binds(d, room) {
		t.d.Limit, t.room, t.wait, t.full, t.said = d.Limit, room, d.RetryAfter, d.ResetAfter, d.Allowed
	}
	t.n++
	t.d.Allowed = t.d.Allowed && d.Allowed
	t.d.Remaining = min(t.d.Remaining, room)
	t.d.RetryAfter = max(t.d.RetryAfter, d.RetryAfter)
	t.d.ResetAfter = max(t.d.ResetAfter, d.ResetAfter)
	t.d.Delay = max(t.d.Delay, d.Delay)
	t.d.Degraded = t.d.Degraded || d.Degraded
}

// binds reports whether an answer binds more than all before it: a denial more than
// what is allowed, of denials the one with the longer RetryAfter, else the one that
// leaves less. If they are equal in that, the one with the longer ResetAfter binds
// more; and if in that too, the one that was added first.
func (t *tally) binds(d *Decision, room int) bool {
	switch {
	case d.Allowed != t.said:
		return t.said
	case !d.Allowed && d.RetryAfter != t.wait:
		return d.RetryAfter > t.wait
	case d.Allowed && room != t.room:
		return room < t.room
	}
	return d.ResetAfter > t.full
}
