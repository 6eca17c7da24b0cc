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
}

// Event is one decision, as [Options.OnDecision] gets it.
type Event[K any] struct {
	Key      K
	Cost     int
	Decision Decision
	Err      error
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
