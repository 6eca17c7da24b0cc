package ratelimit

import (
	"math"
	"time"

	"github.com/weir-go/ratelimit/internal/meter"
	"github.com/weir-go/ratelimit/internal/tally"
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
	// ResetAfter is the time after which the key is fresh, if nothing else is spent: it has its
	// full budget again. A nanosecond before, it has not.
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

// sumOf returns the sum of no decision at all, kept in d.
func sumOf(d *Decision) tally.Sum[Limit] {
	return tally.Of((*tally.Decision[Limit])(d), Limit{Algorithm: AlgorithmUnlimited})
}
