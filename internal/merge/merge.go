// Package merge holds the parts that stacks of limits have in common, in memory and in Redis: the merging of several limiters' decisions
// on one cost into one decision, and the source of a layer.
package merge

import (
	"math"
	"time"
)

// Decision is the Decision of package ratelimit, with its type of limits. A pointer to one can be converted to a pointer to the other, and
// cannot if a field is missing here: so a new field of ratelimit.Decision does not compile until this package defines its sum.
type Decision[L any] struct {
	Allowed    bool
	Degraded   bool
	Limit      L
	Remaining  int
	Debt       int
	RetryAfter time.Duration
	ResetAfter time.Duration
	NextAfter  time.Duration
	Delay      time.Duration
}

// Sum adds answers up in a Decision. Begin it with [Of].
type Sum[L any] struct {
	d    *Decision[L]
	n    int           // how many have been added
	room int           // of the limiter that binds: its remaining budget for the caller
	wait time.Duration // its RetryAfter
	full time.Duration // its ResetAfter
	said bool          // it allows the cost
	dark bool          // one of them has no room, and no time of a next unit
}

// Of returns the sum of no answer at all, kept in d: all is allowed, without a limit.
func Of[L any](d *Decision[L], unlimited L) Sum[L] {
	*d = Decision[L]{Allowed: true, Limit: unlimited, Remaining: math.MaxInt}
	return Sum[L]{d: d}
}

// Empty reports whether nothing has been added.
func (s *Sum[L]) Empty() bool { return s.n == 0 }

// Add adds one more limiter's answer, of which the caller can spend room. If that is 0, the answer's NextAfter is the time until it is not.
//
// The sum is allowed if all of them allow it. Its Limit comes from the limiter that binds, its Remaining is the least, its Debt is the
// largest, and its times are the longest. NextAfter is 0 if it is not known of a limiter without room, or never comes.
func (s *Sum[L]) Add(d *Decision[L], room int) {
	if s.n == 0 || s.binds(d, room) {
		s.d.Limit, s.room, s.wait, s.full, s.said = d.Limit, room, d.RetryAfter, d.ResetAfter, d.Allowed
	}
	s.n++
	s.d.Allowed = s.d.Allowed && d.Allowed
	s.d.Remaining = min(s.d.Remaining, room)
	s.d.Debt = max(s.d.Debt, d.Debt)
	s.d.RetryAfter = max(s.d.RetryAfter, d.RetryAfter)
	s.d.ResetAfter = max(s.d.ResetAfter, d.ResetAfter)
	if room == 0 {
		s.addNext(d.NextAfter)
	}
	s.d.Delay = max(s.d.Delay, d.Delay)
	s.d.Degraded = s.d.Degraded || d.Degraded
}

// addNext adds the time after which a limiter without room has some again.
func (s *Sum[L]) addNext(after time.Duration) {
	if s.dark = s.dark || after == 0; s.dark {
		s.d.NextAfter = 0
		return
	}
	s.d.NextAfter = max(s.d.NextAfter, after)
}

// binds reports whether an answer binds more than all before it: a denial more than an allowed decision, of denials the one with the longer
// RetryAfter, else the one that leaves less. If they are equal in that, the answer with the longer ResetAfter binds more; and if in that
// too, the answer that was added first.
func (s *Sum[L]) binds(d *Decision[L], room int) bool {
	switch {
	case d.Allowed != s.said:
		return s.said
	case !d.Allowed && d.RetryAfter != s.wait:
		return d.RetryAfter > s.wait
	case d.Allowed && room != s.room:
		return room < s.room
	}
	return d.ResetAfter > s.full
}

// Room returns the largest cost of a caller that fits into the remaining budget of a key, if own units of it are charged besides, and the
// cost is charged shares times.
func Room(remaining, own, shares int64) int {
	left := remaining - own
	switch {
	case left < 0:
		return 0
	case shares == 0:
		return math.MaxInt
	case shares == 1: // as it mostly is, and a division takes long
		return int(min(left, math.MaxInt))
	}
	return int(min(left/shares, math.MaxInt))
}
