package ratelimit

import (
	"errors"
	"time"
	"unique"

	"github.com/weir-go/ratelimit/internal/calendar"
)

// Period divides time into the minutes, hours, days, weeks, months or years of a time zone, for [Calendar]. Make one with [Minute],
// [Hour], [Day], [Week], [Month] or [Year]. It may be compared. The zero Period is invalid.
type Period struct {
	handle unique.Handle[period] // one word: each decision copies its limit
}

// period holds a Period's parts. Equal periods share one handle.
type period struct {
	unit calendar.Unit
	zone string
	from int
	at   time.Duration
}

// Day returns a time zone's days, from midnight to midnight. The zone is a name for [time.LoadLocation], but neither "" nor
// "Local". Where the machine may lack the zone database, import [time/tzdata]. An invalid Period makes its limit invalid.
func Day(zone string) Period { return newPeriod(calendar.Day, zone, 0) }

// Week returns a time zone's weeks, which begin on the given day. See [Day].
func Week(zone string, from time.Weekday) Period { return newPeriod(calendar.Week, zone, int(from)) }

// Month returns a time zone's months, which begin on the given day, from 1
// to 31. In a month without that day, they begin on its last day. See [Day].
func Month(zone string, from int) Period { return newPeriod(calendar.Month, zone, from) }

// Hour returns the hours of a time zone's clock, such as 9:00 to 10:00. If
// the clock is set by less than an hour, the hour is longer. See [Day].
func Hour(zone string) Period { return newPeriod(calendar.Hour, zone, 0) }

// Minute returns a time zone's minutes by its clock. See [Day].
func Minute(zone string) Period { return newPeriod(calendar.Minute, zone, 0) }

// Year returns a time zone's years, from January 1st. See [Day].
func Year(zone string) Period { return newPeriod(calendar.Year, zone, 0) }

func newPeriod(unit calendar.Unit, zone string, from int) Period {
	return Period{unique.Make(period{unit, zone, from, 0})}
}

// At returns the period whose windows begin when the zone's clock shows the given time, instead of at midnight. For
// example, Day("Europe/Berlin").At(4*time.Hour) are days from 4:00 to 4:00. If the clock skips the time, the window
// begins at the step. If it shows the time twice, the window begins at the first. The time must be whole minutes
// below 24 h. Any other time makes the Period invalid, and so does At on [Hour] and [Minute]. Zero is midnight.
func (p Period) At(after time.Duration) Period {
	if p == (Period{}) {
		return p
	}
	v := p.handle.Value()
	v.at = after
	return Period{unique.Make(v)}
}

// String returns the period as a limit's text contains it: "hour UTC", "day
// UTC", "week UTC from monday", "month Europe/Berlin from 15", "day 04:00 UTC".
func (p Period) String() string {
	if p == (Period{}) {
		return "no period"
	}
	v := p.handle.Value()
	return v.unit.String() + " " + v.place()
}

// place returns the time of the day, the zone and the anchor.
func (p period) place() string { return calendar.FormatAt(p.unit, p.zone, p.from, p.at) }

// Window returns the beginning of at's window and of the next one,
// in the period's zone. Both are zero if the Period is invalid.
func (p Period) Window(at time.Time) (from, to time.Time) {
	c, err := p.calendar()
	if err != nil {
		return from, to
	}
	w := c.At(at.Unix())
	return time.Unix(w.From, 0).In(c.Location()), time.Unix(w.To, 0).In(c.Location())
}

// calendar returns a period's calendar, or an error if there is none.
func (p Period) calendar() (*calendar.Calendar, error) {
	if p == (Period{}) {
		return nil, errors.New("there is none, want Minute, Hour, Day, Week, Month or Year")
	}
	v := p.handle.Value()
	return calendar.NewAt(v.unit, v.zone, v.from, v.at)
}

// Calendar returns a limit of units in each calendar minute, hour, day, week, month or year: a quota. When
// a window ends, the remaining units expire, and all keys get their units back at one instant. Around a
// boundary twice the units may pass, for example 1000 just before midnight and 1000 just after. To protect
// a service, put a [TokenBucket] beside it. If no contract names the clock or a date, use a [FixedWindow].
// Its windows begin with each key's first spending, so denied clients do not all come back at once.
//
// It needs a [Clock] with the further method Wall() time.Time, as the system's has. If the wall clock is set forward
// over a boundary, the next window begins early; if it is set back, the window lasts longer. No window is granted twice.
func Calendar(units int, p Period) Limit {
	return Limit{Algorithm: AlgorithmCalendar, Rate: Rate{Units: units}, Period: p}
}

func (l Limit) validateCalendar() error {
	if err := l.validateUnits(); err != nil {
		return err
	}
	if l.Rate.Per != 0 || l.Burst != 0 {
		return invalid("Rate.Per is %v and Burst %d, want 0 for %v", l.Rate.Per, l.Burst, l.Algorithm)
	}
	if _, err := l.Period.calendar(); err != nil {
		return invalid("Period: %s", err)
	}
	return nil
}

// longest returns the maximum length of a calendar's windows, 0 if the limit is invalid.
func (l Limit) longest() time.Duration {
	c, err := l.Period.calendar()
	if err != nil {
		return 0
	}
	return c.Longest()
}
