package redislimit

import (
	"time"

	"github.com/weir-go/ratelimit"
)

// tally adds up what several layers say to one cost, as the root package does.
type tally struct {
	d    ratelimit.Decision
	n    int           // how many have been added
	room int           // of the layer that binds: what it leaves the caller
	wait time.Duration // its RetryAfter
	full time.Duration // its ResetAfter
	said bool          // it allows the cost
}

// add merges one more answer, of which the caller can spend room.
func (t *tally) add(d *ratelimit.Decision, room int) {
	if t.n == 0 || t.binds(d, room) {
		t.d.Limit, t.room, t.wait, t.full, t.said = d.Limit, room, d.RetryAfter, d.ResetAfter, d.Allowed
	}
	t.n++
	t.d.Allowed = t.d.Allowed && d.Allowed
	t.d.Remaining = min(t.d.Remaining, room)
	t.d.RetryAfter = max(t.d.RetryAfter, d.RetryAfter)
	t.d.ResetAfter = max(t.d.ResetAfter, d.ResetAfter)
	t.d.Delay = max(t.d.Delay, d.Delay)
}

// binds reports whether an answer binds more than those before it: a denial more than
// what is allowed, of denials the one with the longer RetryAfter, else the one that
// leaves less, and of equals the one with the longer ResetAfter.
func (t *tally) binds(d *ratelimit.Decision, room int) bool {
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
