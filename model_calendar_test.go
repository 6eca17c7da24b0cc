package ratelimit_test

import (
	"strings"
	"time"

	"github.com/weir-go/ratelimit"
)

// What the models know of calendars. They find a window by time.Date alone, on zones that have no
// steps at midnight, and its end by adding days or months to its first date.

// modelPeriod is a period that a model can count in.
type modelPeriod struct {
	ratelimit.Period
	zone   *time.Location
	begins func(at time.Time) time.Time // the window that an instant lies in
	next   func(from time.Time) time.Time
}

func zone(name string) *time.Location {
	loc, err := time.LoadLocation(name)
	if err != nil {
		panic(err)
	}
	return loc
}

func midnight(y int, m time.Month, d int, loc *time.Location) time.Time {
	return time.Date(y, m, d, 0, 0, 0, 0, loc)
}

func modelDay(name string) modelPeriod {
	loc := zone(name)
	begins := func(at time.Time) time.Time {
		y, m, d := at.Date()
		return midnight(y, m, d, loc)
	}
	return modelPeriod{ratelimit.Day(name), loc, begins, func(from time.Time) time.Time { return from.AddDate(0, 0, 1) }}
}

func modelWeek(name string, first time.Weekday) modelPeriod {
	loc := zone(name)
	begins := func(at time.Time) time.Time {
		for at.Weekday() != first {
			at = at.AddDate(0, 0, -1)
		}
		y, m, d := at.Date()
		return midnight(y, m, d, loc)
	}
	return modelPeriod{ratelimit.Week(name, first), loc, begins, func(from time.Time) time.Time { return from.AddDate(0, 0, 7) }}
}

func modelMonth(name string, first int) modelPeriod {
	loc := zone(name)
	of := func(y int, m time.Month) time.Time {
		last := midnight(y, m+1, 0, loc).Day()
		return midnight(y, m, min(first, last), loc)
	}
	begins := func(at time.Time) time.Time {
		y, m, _ := at.Date()
		if from := of(y, m); !from.After(at) {
			return from
		}
		return of(y, m-1)
	}
	return modelPeriod{ratelimit.Month(name, first), loc, begins, func(from time.Time) time.Time { return of(from.Year(), from.Month()+1) }}
}

var modelPeriods = []modelPeriod{
	modelDay("UTC"), modelDay("America/New_York"), modelWeek("America/New_York", time.Monday), modelWeek("UTC", time.Sunday),
	modelMonth("UTC", 1), modelMonth("America/New_York", 31), modelMonth("UTC", 15),
}

func modelPeriodOf(p ratelimit.Period) modelPeriod {
	for _, m := range modelPeriods {
		if m.Period == p {
			return m
		}
	}
	panic("no model of " + p.String())
}

// spanOf returns how long a limit's windows are, or about that.
func spanOf(l ratelimit.Limit) time.Duration {
	if l.Algorithm == ratelimit.AlgorithmCalendar {
		days := map[string]time.Duration{"day": 1, "week": 7, "month": 31}[strings.Fields(l.Period.String())[0]]
		return days * 24 * time.Hour
	}
	return l.Rate.Per
}

// modelCalendar counts in a calendar's windows. Its instants are Unix nanoseconds, as a test's
// clock reads them.
type modelCalendar struct {
	units  int64
	period modelPeriod
	start  time.Time // of the window that is counted in, if used is above 0
	used   int64
}

func (s *modelCalendar) clone() spending { c := *s; return &c }

func (s *modelCalendar) window(t int64) time.Time {
	return s.period.begins(time.Unix(0, t).In(s.period.zone))
}

// pass closes the windows that have ended by t; each takes its units of a debt along.
func (s *modelCalendar) pass(t int64) {
	for s.used > 0 && t >= s.end() {
		s.used = max(0, s.used-s.units)
		s.start = s.period.next(s.start)
	}
}

func (s *modelCalendar) end() int64 { return s.period.next(s.start).UnixNano() }

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
