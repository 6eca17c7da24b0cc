package ratelimit

import (
	"math"
	"time"

	"github.com/weir-go/ratelimit/internal/merge"
	"github.com/weir-go/ratelimit/internal/meter"
)

// Decision is a limiter's answer. Times count from the moment of the decision. The zero Decision denies.
type Decision struct {
	// Allowed reports whether the cost was charged.
	Allowed bool
	// Degraded reports whether a stand-in decided, because the shared store could not: see package failover.
	Degraded bool
	// Limit is the limit that decided. If several apply, it is the binding one: see [Layered].
	Limit Limit
	// Remaining is the largest cost that would be allowed now.
	Remaining int
	// Debt counts the key's units above the limit's capacity, spent or booked and not regained yet,
	// rounded up. If several limits apply, it is the largest debt. [Keyed.Adjust], settlements above
	// the reserved cost and bookings ahead make debts. A booking in a later window makes a debt,
	// because the windows before it count as full. If the limit has changed since, a booking that fits
	// at its instant is not a debt. Each call fills Debt in. Engines that do not know debts leave it 0.
	Debt int
	// RetryAfter is how long to wait before the same call succeeds, if nothing else is charged by then. The call does not
	// succeed a nanosecond earlier. RetryAfter is 0 if Allowed, or if the call can never succeed, as its error then states.
	RetryAfter time.Duration
	// ResetAfter is the time until the key is fresh again, with its full budget, if nothing else is charged.
	ResetAfter time.Duration
	// NextAfter is the time until Remaining is above 0, if nothing else is charged. It is 0 while
	// Remaining is above 0, and if no unit ever comes. Engines that do not know the time leave it 0.
	NextAfter time.Duration
	// Delay is how long to wait before starting the work. It is above
	// zero only in a leaky bucket, and when a [Reserver] books.
	Delay time.Duration
}

// Event is one decision, as [Options.OnDecision] and [Layer].Observe receive it.
type Event[K any] struct {
	// Key is the key or the request. It may be a secret: think before you log it.
	Key K
	// Cost is the call's cost.
	Cost int
	// Decision is the call's decision. In a stack, it is this layer's alone.
	Decision Decision
	// Spent reports whether the cost stays charged. It is false if another
	// layer denies, if a Wait failed, or if the limit tracks nothing.
	Spent bool
	// Err is the returned error, nil for a denial. For a shadow layer
	// it is the layer's own error, although no call returns it.
	Err error
}

// verdict fills in what an offer means for the caller: allowed or not, and when.
func (d *Decision) verdict(m meter.Moment, o meter.Offer) {
	if d.Allowed = !o.Denied(m.Reading); !d.Allowed {
		d.RetryAfter = between(m.Reading, o.Retry)
	} else if o.At > m.Now {
		d.Delay = between(m.Reading, o.At)
	}
}

// stands fills in a key's standing after a decision: see [meter.Meter.Standing]. next is used only if nothing remains.
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

// sumOf returns an empty sum of decisions, which stores its result in d.
func sumOf(d *Decision) merge.Sum[Limit] {
	return merge.Of((*merge.Decision[Limit])(d), Limit{Algorithm: AlgorithmUnlimited})
}
