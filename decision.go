package ratelimit

import (
	"math"
	"time"

	"github.com/weir-go/ratelimit/internal/merge"
	"github.com/weir-go/ratelimit/internal/meter"
)

// Decision is the answer of a limiter. Times count from the moment of the decision. The zero Decision denies.
type Decision struct {
	// Allowed reports whether the cost was spent.
	Allowed bool
	// Degraded reports that a stand-in decided because no decision of a shared store was available: see package failover.
	Degraded bool
	// Limit is the limit that decided; of several limits, the binding one: see [Layered].
	Limit Limit
	// Remaining is the largest cost that would be allowed now.
	Remaining int
	// Debt is the number of units that the key has spent or booked above the limit's capacity and not regained yet, rounded up;
	// of several limits, the largest debt. [Keyed.Adjust], settlements above the reserved cost and bookings ahead make debts. A
	// window that lies before a booking counts as full, unless the limit has changed since the booking was made: then a booking that fits at
	// its instant is no debt. Each call fills Debt in. Engines that do not know debts leave it 0.
	Debt int
	// RetryAfter is how long to wait before the same call succeeds, if nothing else is charged by then; it does not succeed a
	// nanosecond earlier. It is 0 if Allowed, or if the error means that the call can never succeed.
	RetryAfter time.Duration
	// ResetAfter is the time until the key is fresh, if nothing else is charged: until it has its full budget again.
	ResetAfter time.Duration
	// NextAfter is the time until Remaining is above 0, if nothing else is charged: until the next unit of the budget. It is 0 while
	// Remaining is above 0, and if there never is a next unit. Engines that do not know the time leave it 0.
	NextAfter time.Duration
	// Delay is how long to wait before starting the work. It is above zero only for a leaky bucket and for a booking of a [Reserver].
	Delay time.Duration
}

// Event is one decision, as [Options.OnDecision] and [Layer].Observe receive it.
type Event[K any] struct {
	// Key is the key or the request of the decision. It may be a secret: think before you log it.
	Key K
	// Cost is the cost of the call.
	Cost int
	// Decision is the decision of the call; in a stack of layers, the decision of this layer alone.
	Decision Decision
	// Spent reports whether the cost stays charged: not if another layer denies, if a Wait failed, or if nothing is tracked.
	Spent bool
	// Err is the error that was returned, nil for a denial. For a shadow layer it is the layer's own, which is not returned.
	Err error
}

// verdict fills in the caller's result of an offer.
func (d *Decision) verdict(m meter.Moment, o meter.Offer) {
	if d.Allowed = !o.Denied(m.Reading); !d.Allowed {
		d.RetryAfter = between(m.Reading, o.Retry)
	} else if o.At > m.Now {
		d.Delay = between(m.Reading, o.At)
	}
}

// stands fills in the standing of a key after a decision: see [meter.Meter.Standing]. The instant of the next unit counts if none remains.
func (d *Decision) stands(m meter.Moment, remaining, debt, regained, next int64) {
	d.Remaining, d.Debt, d.ResetAfter = int(remaining), int(min(debt, math.MaxInt)), between(m.Reading, max(regained, m.Now))
	if remaining == 0 {
		d.NextAfter = between(m.Reading, next)
	}
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
func sumOf(d *Decision) merge.Sum[Limit] {
	return merge.Of((*merge.Decision[Limit])(d), Limit{Algorithm: AlgorithmUnlimited})
}
