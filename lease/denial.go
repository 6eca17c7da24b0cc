package lease

import (
	"time"

	"github.com/weir-go/ratelimit"
)

// denial is the remote limiter's last denial of a key, and how long it is repeated. A nil denial covers no request.
type denial struct {
	decision ratelimit.Decision
	need     int           // denied units
	at       time.Duration // the denial's time
	holds    time.Duration // how long it is repeated
}

// newDenial records a denial. It is repeated until its RetryAfter at most.
func newDenial(d ratelimit.Decision, need int, now, denyFor time.Duration) *denial {
	return &denial{decision: d, need: need, at: now, holds: max(0, min(denyFor, d.RetryAfter))}
}

// covers reports whether the denial is the answer to a caller lacking need units. The denial's times apply to the number
// of denied units. A larger number is denied for longer, so the denial answers only brief callers: they get no time. If
// the clock has stepped back, the denial covers nothing: otherwise the key would be denied for the step's length.
func (d *denial) covers(need int, brief bool, now time.Duration) bool {
	return d != nil && (need == d.need || brief && need > d.need) && now >= d.at && now-d.at < d.holds
}

// answer returns the denial, as of now, in a process with left units.
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
