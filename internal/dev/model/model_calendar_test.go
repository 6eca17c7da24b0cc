package model

import (
	"time"
)

// The models' calendars. They find a window by time.Date alone, on zones that have no steps at midnight, and its end by adding days or
// months to its first date.

// modelCalendar counts in a calendar's windows. Its instants are Unix nanoseconds, as a test's
// clock reads them.
type modelCalendar struct {
	units  int64
	period Period
	start  time.Time // of the window that is counted in, if used is above 0
	used   int64
}

func (s *modelCalendar) clone() spending { c := *s; return &c }

func (s *modelCalendar) window(t int64) time.Time {
	return s.period.Begins(time.Unix(0, t).In(s.period.Location))
}

// pass closes the windows that have ended by t; each takes its units of a debt along.
func (s *modelCalendar) pass(t int64) {
	for s.used > 0 && t >= s.end() {
		s.used = max(0, s.used-s.units)
		s.start = s.period.Next(s.start)
	}
}

func (s *modelCalendar) end() int64 { return s.period.Next(s.start).UnixNano() }

func (s *modelCalendar) earliest(t, cost int64) int64 {
	c := *s
	for c.pass(t); c.used+cost > c.units; c.pass(t) {
		t = c.end()
	}
	return t
}

func (s *modelCalendar) spend(b *booking) { s.charge(b.at, b.cost) }

func (s *modelCalendar) charge(now, cost int64) {
	if s.pass(now); s.used == 0 {
		s.start = s.window(now)
	}
	s.used += cost
}

func (s *modelCalendar) spent(now int64) int64 {
	c := *s
	c.pass(now)
	return c.used
}

func (s *modelCalendar) refund(now int64, b *booking, amount int64) {
	if s.pass(now); b.at >= s.start.UnixNano() {
		s.grant(now, amount)
	}
}

func (s *modelCalendar) grant(now, amount int64) bool {
	s.pass(now)
	s.used = max(0, s.used-amount)
	return true
}

func (s *modelCalendar) remaining(t int64) int64 {
	c := *s
	c.pass(t)
	return max(0, c.units-c.used)
}

func (s *modelCalendar) reset(t int64) int64 {
	c := *s
	for c.pass(t); c.used > 0; c.pass(t) {
		t = c.end()
	}
	return t
}
