package lease

import (
	"time"

	"github.com/weir-go/ratelimit"
)

// denial is the remote limiter's last denial of a key, and how long it holds. Nil covers
// nothing.
type denial struct {
	decision ratelimit.Decision
	need     int           // units that were denied
	at       time.Duration // when
	holds    time.Duration // how long it is repeated
}

// newDenial records a denial. It is never repeated beyond its RetryAfter.
func newDenial(d ratelimit.Decision, need int, now, denyFor time.Duration) *denial {
	return &denial{decision: d, need: need, at: now, holds: max(0, min(denyFor, d.RetryAfter))}
}

// covers reports whether the denial is the answer to a caller that lacks that many units. Its times apply to the number of units that were
// denied. More units are denied too, but for longer: that is an answer only to a brief caller, which gets no time. A clock that has stepped
// back covers nothing, or the key would be denied for as long as the step.
func (d *denial) covers(need int, brief bool, now time.Duration) bool {
	return d != nil && (need == d.need || brief && need > d.need) && now >= d.at && now-d.at < d.holds
}

// answer returns the denial as of now, for a process that holds left units.
func (d *denial) answer(left int, now time.Duration) ratelimit.Decision {
	elapsed := max(0, now-d.at)
	answer := d.decision
	answer.Allowed = false
	answer.Remaining, answer.Debt = add(answer.Remaining, left), max(0, answer.Debt-left)
	answer.RetryAfter = max(0, answer.RetryAfter-elapsed)
	answer.ResetAfter = max(0, answer.ResetAfter-elapsed)
	if answer.NextAfter = max(0, answer.NextAfter-elapsed); answer.Remaining > 0 {
		answer.NextAfter = 0
	}
	return answer
}
