// Package merge combines several limiters' decisions on one cost
// into one decision. Stacks use it, in memory, on Redis and in SQL.
package merge

import (
	"math"
	"time"
)

// Decision has the fields of ratelimit.Decision, so pointers convert from one to the other. If
// ratelimit.Decision gains a field, the conversion does not compile until this package combines it, too.
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

// Sum combines decisions into one. Make it with [Of], and add each decision with [Sum.Add].
type Sum[L any] struct {
	d      *Decision[L]
	n      int           // decisions added
	room   int           // the binding limiter's budget that remains for the caller
	wait   time.Duration // its RetryAfter
	full   time.Duration // its ResetAfter
	allows bool          // whether the binding limiter allows the cost
	dark   bool          // whether a limiter without room does not know the time of its next unit
}

// Of returns an empty sum. It sets d to an allowed decision under the limit unlimited, and later calls to Add update d.
func Of[L any](d *Decision[L], unlimited L) Sum[L] {
	*d = Decision[L]{Allowed: true, Limit: unlimited, Remaining: math.MaxInt}
	return Sum[L]{d: d}
}

// Empty reports whether nothing has been added.
func (s *Sum[L]) Empty() bool { return s.n == 0 }

// Add adds a limiter's decision. room is the part of the limiter's remaining budget
// that the caller can spend. If room is 0, NextAfter is the time until it is above 0.
//
// The sum is allowed if each limiter allows the cost. It has the Limit of the binding limiter, the smallest Remaining, the
// largest Debt and the longest times. NextAfter is 0 if a limiter without room does not know its next unit, or never has one.
func (s *Sum[L]) Add(d *Decision[L], room int) {
	if s.n == 0 || s.binds(d, room) {
		s.d.Limit, s.room, s.wait, s.full, s.allows = d.Limit, room, d.RetryAfter, d.ResetAfter, d.Allowed
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

// addNext adds the time until a limiter without room has its next unit.
func (s *Sum[L]) addNext(after time.Duration) {
	if s.dark = s.dark || after == 0; s.dark {
		s.d.NextAfter = 0
		return
	}
	s.d.NextAfter = max(s.d.NextAfter, after)
}

// binds reports whether a decision binds more than all earlier ones. A denial binds more than an allowed
// decision. Of two denials, the one with the longer RetryAfter binds. Of two allowed decisions, the one with the
// smaller room binds, and then the one with the longer ResetAfter. If all are equal, the earlier decision binds.
func (s *Sum[L]) binds(d *Decision[L], room int) bool {
	switch {
	case d.Allowed != s.allows:
		return s.allows
	case !d.Allowed && d.RetryAfter != s.wait:
		return d.RetryAfter > s.wait
	case d.Allowed && room != s.room:
		return room < s.room
	}
	return d.ResetAfter > s.full
}

// Room returns the largest cost that fits into a key's remaining budget. The key is charged own units, plus
// shares times the cost. For example, shares is 2 if two layers charge the caller's cost to the same key.
func Room(remaining, own, shares int64) int {
	left := remaining - own
	switch {
	case left < 0:
		return 0
	case shares == 0:
		return math.MaxInt
	case shares == 1: // the usual case, without a slow division
		return int(min(left, math.MaxInt))
	}
	return int(min(left/shares, math.MaxInt))
}
