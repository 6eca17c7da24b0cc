package ratelimit

import "time"

// Decision says what a limiter has decided, and how the key stands after that.
// Times are spans from the moment of the decision. The zero Decision denies.
type Decision struct {
	// Allowed reports whether the cost was spent.
	Allowed bool
	// Limit is the limit that decided; of several, the one that binds.
	Limit Limit
	// Remaining is the largest cost that would be allowed at this instant.
	Remaining int
	// RetryAfter is 0 if Allowed, or if an error says that retrying is of no
	// use. Else, if nothing else is spent, the same call passes after that time,
	// and not a nanosecond before.
	RetryAfter time.Duration
	// ResetAfter is the time after which the key is as good as new, and not a
	// nanosecond before.
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
	// Err is the error that was returned, nil for a plain denial.
	Err error
}

// verdict fills in the answer to a cost that is spent at an instant, or not before
// retry, as of a reading that counts as now.
func (d *Decision) verdict(reading, now, at, retry int64) {
	if d.Allowed = retry <= reading; !d.Allowed {
		d.RetryAfter = between(reading, retry)
	} else if at > now {
		d.Delay = between(reading, at)
	}
}

// answer fills in what a state says to a cost, as of a reading that counts as now.
func (p *plan) answer(s state, reading, now, cost int64, d *Decision) {
	sp, retry := spending{at: now}, reading
	if cost > 0 {
		sp, retry = p.admits(s, reading, now, cost, p.delay)
	}
	d.verdict(reading, now, sp.at, retry)
	p.standing(s, reading, now, d)
}

// standing fills in how much a state leaves, as of a reading that counts as now.
func (p *plan) standing(s state, reading, now int64, d *Decision) {
	d.Limit = p.limit
	d.Remaining = int(p.remaining(s, now))
	d.ResetAfter = between(reading, max(p.regained(s), now))
}
