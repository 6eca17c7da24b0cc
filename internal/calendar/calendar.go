// Package calendar divides time into the minutes, hours, days, weeks, months or years
// of a time zone. It computes with instants in Unix seconds, and reads no clock.
//
// A window of a minute or an hour begins when the zone's clock shows a full minute or hour: see [clockWindows]. A longer
// window begins at the first instant whose local date is at least the window's first day. With a time of the day, it
// begins at the first instant when the clock shows at least this time of the day. Therefore windows follow each other
// without gaps or overlaps, even where clocks are set at midnight. A skipped midnight counts as the step's instant, and
// of a repeated midnight the first one counts. If a zone has skipped a date altogether, the date has no window.
package calendar

import (
	"errors"
	"fmt"
	"math"
	"path"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Unit is a window's length.
type Unit uint8

const (
	Day Unit = iota + 1
	Week
	Month
	Hour
	Minute
	Year
)

var unitNames = [...]string{Day: "day", Week: "week", Month: "month", Hour: "hour", Minute: "minute", Year: "year"}

// String returns the unit's name, such as "day".
func (u Unit) String() string {
	if u == 0 || int(u) >= len(unitNames) {
		return fmt.Sprintf("unit(%d)", uint8(u))
	}
	return unitNames[u]
}

// UnitOf returns the unit with the given name, or false if there is none.
func UnitOf(name string) (Unit, bool) {
	for u, n := range unitNames {
		if u > 0 && n == name {
			return Unit(u), true
		}
	}
	return 0, false
}

// Calendar divides time into windows. It is immutable.
type Calendar struct {
	zone *zone
	unit Unit
	from int64 // the first day of a week (0 is Sunday) or of a month (1 is the first)
	at   int64 // when a window begins: seconds after midnight of its first day

	clock *clockWindows // set for hours and minutes, otherwise nil
}

// New returns a unit's calendar. For weeks, from is the first weekday, with 0 for Sunday. For
// months, it is the first day, from 1 to 31; in a month without that day, the window begins on the
// last one. For days, hours and minutes, from must be 0. The error names the invalid argument.
func New(unit Unit, zone string, from int) (*Calendar, error) {
	switch {
	case unit == Day && from != 0:
		return nil, fmt.Errorf("a day begins at midnight, got an anchor of %d", from)
	case unit == Week && (from < 0 || from > 6):
		return nil, fmt.Errorf("the week's first day is %d, want 0 (Sunday) to 6", from)
	case unit == Month && (from < 1 || from > 31):
		return nil, fmt.Errorf("the month's first day is %d, want 1 to 31", from)
	case (unit == Hour || unit == Minute) && from != 0:
		return nil, fmt.Errorf("%v begins on the clock, got an anchor of %d", unit, from)
	case unit == Year && from != 0:
		return nil, fmt.Errorf("a year begins in January, got an anchor of %d", from)
	case unit < Day || unit > Year:
		return nil, fmt.Errorf("%v does not exist", unit)
	}
	z, err := load(zone)
	if err != nil {
		return nil, err
	}
	c := &Calendar{zone: z, unit: unit, from: int64(from)}
	switch unit {
	case Hour:
		c.clock = z.hours()
	case Minute:
		c.clock = z.minutes()
	}
	return c, nil
}

// NewAt is like New, for windows beginning at a time of their first day. The time is in whole
// minutes, from 0 to less than 24 h after midnight. It must be 0 for hours and minutes.
func NewAt(unit Unit, zone string, from int, at time.Duration) (*Calendar, error) {
	c, err := New(unit, zone, from)
	switch {
	case err != nil:
		return nil, err
	case at != 0 && c.clock != nil:
		return nil, fmt.Errorf("%v begins on the clock, got the time %v after midnight", unit, at)
	case at < 0 || at >= secondsADay*time.Second || at%time.Minute != 0:
		return nil, fmt.Errorf("the time is %v after midnight, want 0 to less than 24h in whole minutes", at)
	}
	c.at = int64(at / time.Second)
	return c, nil
}

// Of parses a text such as "day UTC", "day 04:00 UTC" or "month Europe/Berlin from 15". It returns the calendar and its unit.
func Of(text string) (*Calendar, Unit, error) {
	words := strings.Fields(text)
	if len(words) == 0 {
		return nil, 0, errors.New("there is no unit")
	}
	unit, ok := UnitOf(words[0])
	if !ok {
		return nil, 0, fmt.Errorf("%q does not exist", words[0])
	}
	zone, from, at, err := ParseAt(unit, words[1:])
	if err != nil {
		return nil, 0, err
	}
	c, err := NewAt(unit, zone, from, at)
	return c, unit, err
}

// Location returns the calendar's time zone.
func (c *Calendar) Location() *time.Location { return c.zone.loc }

// Window is a window of a calendar. It contains From, and ends before To.
type Window struct{ From, To int64 }

// The first and the last instant of a calendar. An instant outside of this range counts as the nearer one.
var (
	firstInstant = time.Date(1, 1, 2, 0, 0, 0, 0, time.UTC).Unix()
	lastInstant  = time.Date(9999, 12, 30, 0, 0, 0, 0, time.UTC).Unix()
)

// At returns an instant's window.
func (c *Calendar) At(unix int64) Window { return c.window(c.index(unix)) }

// After returns the k-th window after an instant's window.
func (c *Calendar) After(unix, k int64) Window { return c.window(c.index(unix) + k) }

// Count counts the windows after the first instant's window, up to the second instant's.
func (c *Calendar) Count(first, second int64) int64 { return c.index(second) - c.index(first) }

// Longest returns a window's maximum length. This is its days' length, plus the
// zone's largest step back, for example an hour. Steps before 1970 do not count.
func (c *Calendar) Longest() time.Duration {
	if c.clock != nil {
		return time.Duration(c.clock.longest) * time.Second
	}
	days := 1
	switch c.unit {
	case Week:
		days = 7
	case Month:
		days = 31
	case Year:
		return 366*24*time.Hour + 2*c.zone.back
	}
	return time.Duration(days)*24*time.Hour + c.zone.back
}

func (c *Calendar) window(i int64) Window {
	if c.clock != nil {
		return Window{c.clock.start(i), c.clock.start(i + 1)}
	}
	return Window{c.start(i), c.start(i + 1)}
}

// index returns the number of an instant's window. The local date may belong to the
// previous window, because clocks set back after midnight show the old date again.
func (c *Calendar) index(unix int64) int64 {
	unix = min(max(unix, firstInstant), lastInstant)
	if c.clock != nil {
		return c.clock.index(unix)
	}
	i := c.indexOf(c.zone.date(unix, c.at))
	for c.start(i+1) <= unix {
		i++
	}
	for c.at > 0 && c.start(i) > unix { // the time before the start belongs to a skipped date
		i--
	}
	return i
}

// start returns a window's first instant.
func (c *Calendar) start(i int64) int64 { return c.zone.start(c.first(i), c.at) }

// indexOf returns the number of a date's window.
func (c *Calendar) indexOf(day int64) int64 {
	switch c.unit {
	case Day:
		return day - int64(sort.Search(len(c.zone.left), func(i int) bool { return c.zone.left[i] >= day }))
	case Week:
		return floor(day-thursday-c.from, 7)
	}
	y, m, d := civil(day)
	if c.unit == Year {
		return y
	}
	i := 12*y + m
	if d < c.anchor(i) {
		i--
	}
	return i
}

// thursday converts dates to weekdays, because January 1, 1970 was a Thursday.
const thursday = -4

// first returns a window's first date.
func (c *Calendar) first(i int64) int64 {
	switch c.unit {
	case Day:
		for _, day := range c.zone.left {
			if day <= i {
				i++
			}
		}
		return i
	case Week:
		return 7*i + thursday + c.from
	case Year:
		return dayOf(12 * i)
	}
	return dayOf(i) + c.anchor(i) - 1
}

// anchor returns the day of the month when a window begins.
func (c *Calendar) anchor(i int64) int64 { return min(c.from, dayOf(i+1)-dayOf(i)) }

// dayOf returns a month's first date.
func dayOf(i int64) int64 {
	year := floor(i, 12)
	return floor(time.Date(int(year), time.Month(i-12*year+1), 1, 0, 0, 0, 0, time.UTC).Unix(), secondsADay)
}

func civil(day int64) (year, month, d int64) {
	y, m, dom := time.Unix(day*secondsADay, 0).UTC().Date()
	return int64(y), int64(m) - 1, int64(dom)
}

const secondsADay = 86400

// floor returns a/b, rounded down.
func floor(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// zone is a time zone with its irregular dates. A date is the number of days since January 1, 1970.
type zone struct {
	loc  *time.Location
	left []int64       // the skipped dates, in ascending order
	back time.Duration // the clocks' largest single step back

	hours, minutes func() *clockWindows
}

var zones sync.Map // the loaded zones, by name

// load returns the zone with the given name, and caches it. It does
// not cache unknown names, so that wrong names take no memory.
func load(name string) (*zone, error) {
	if z, ok := zones.Load(name); ok {
		return z.(*zone), nil
	}
	// These names depend on the machine, and a quota must not.
	switch name {
	case "", "Local", "localtime", "posixrules":
		return nil, fmt.Errorf("the zone is %q, want a name such as UTC or Europe/Berlin", name)
	}
	loc, err := time.LoadLocation(name)
	if err == nil && path.Clean(name) != name { // otherwise a zone would have any number of spellings
		err = errors.New("it is no clean path")
	}
	if err != nil {
		return nil, fmt.Errorf("the zone %q is not known: want a name of the IANA time zone database, such as UTC or Europe/Berlin; "+
			"on a machine without that database, the program has to import _ \"time/tzdata\" (%w)", name, err)
	}
	z := &zone{loc: loc}
	z.survey()
	z.hours = sync.OnceValue(func() *clockWindows { return newClockWindows(z, 3600) })
	z.minutes = sync.OnceValue(func() *clockWindows { return newClockWindows(z, 60) })
	zones.Store(strings.Clone(name), z)
	return z, nil
}

// survey finds the zone's irregular dates and its largest step back. The steps of the zone's last rule repeat each year.
func (z *zone) survey() {
	before, step := z.offset(firstInstant)
	for step < lastSurveyed {
		after, next := z.offset(step)
		if step >= 0 {
			z.back = max(z.back, time.Duration(before-after)*time.Second)
		}
		for day := -floor(-(step + before), secondsADay); (day+1)*secondsADay <= step+after; day++ {
			z.left = append(z.left, day)
		}
		before, step = after, next
	}
}

// lastSurveyed is later than each step listed individually.
var lastSurveyed = time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC).Unix()

// offset returns the offset of the zone's clocks from UTC at an instant,
// in seconds. The offset holds at least until the second result.
func (z *zone) offset(unix int64) (offset, until int64) {
	t := time.Unix(unix, 0).In(z.loc)
	_, seconds := t.Zone()
	switch _, end := t.ZoneBounds(); {
	case end.IsZero():
		until = math.MaxInt64
	case end.Unix() > unix:
		until = end.Unix()
	default:
		// If a zone has a rule for all future years, package time ends each year after 365
		// days. On the last day of a leap year there is no step before the year is over.
		until = secondsADay * (floor(unix, secondsADay) + 1)
	}
	return int64(seconds), until
}

// date returns an instant's local date, if dates begin the given number of seconds after midnight.
func (z *zone) date(unix, after int64) int64 {
	_, offset := time.Unix(unix, 0).In(z.loc).Zone()
	return floor(unix+int64(offset)-after, secondsADay)
}

// widest is larger than the offset of any zone from UTC.
const widest = 26 * 3600

// start returns the first instant when the clock shows at least the given number of seconds past midnight of a date.
func (z *zone) start(day, after int64) int64 {
	local := day*secondsADay + after
	for at := local - widest; ; {
		offset, until := z.offset(at)
		if first := max(at, local-offset); first < until {
			return first
		}
		at = until
	}
}

// Format returns a calendar's zone and anchor in Parse's form: "UTC",
// "Europe/Berlin from 15", "UTC from monday". The arguments need not be valid.
func Format(unit Unit, zone string, from int) string {
	switch unit {
	case Week:
		return zone + " from " + strings.ToLower(time.Weekday(from).String())
	case Month:
		return zone + " from " + strconv.Itoa(from)
	}
	return zone
}

// Parse parses Format's result. Without an anchor, a week begins on Monday and a month on the first.
func Parse(unit Unit, words []string) (zone string, from int, err error) {
	if len(words) == 0 {
		return "", 0, fmt.Errorf("no time zone after %v, want one such as UTC or Europe/Berlin", unit)
	}
	zone, words = words[0], words[1:]
	switch unit {
	case Week:
		from = int(time.Monday)
	case Month:
		from = 1
	}
	if (unit == Week || unit == Month) && len(words) > 1 && words[0] == "from" {
		if from, err = parseAnchor(unit, words[1]); err != nil {
			return "", 0, err
		}
		words = words[2:]
	}
	if len(words) > 0 {
		return "", 0, fmt.Errorf("%q does not belong after %q", strings.Join(words, " "), unit.String()+" "+Format(unit, zone, from))
	}
	return zone, from, nil
}

func parseAnchor(unit Unit, word string) (int, error) {
	if unit == Week {
		for day := time.Sunday; day <= time.Saturday; day++ {
			if strings.EqualFold(day.String(), word) {
				return int(day), nil
			}
		}
		return 0, fmt.Errorf("%q is no day of the week", word)
	}
	from, err := strconv.Atoi(word)
	if err != nil {
		return 0, fmt.Errorf("%q is no day of the month", word)
	}
	return from, nil
}

// FormatAt is like Format, with the time of the day before the zone unless it is midnight: "04:00 Europe/Berlin from 15".
func FormatAt(unit Unit, zone string, from int, at time.Duration) string {
	text := Format(unit, zone, from)
	switch {
	case at == 0:
		return text
	case at%time.Minute != 0 || at < 0:
		return at.String() + " " + text
	}
	return fmt.Sprintf("%02d:%02d %s", at/time.Hour, at%time.Hour/time.Minute, text)
}

// ParseAt parses FormatAt's result.
func ParseAt(unit Unit, words []string) (zone string, from int, at time.Duration, err error) {
	if len(words) > 0 {
		if hour, minute, isTime := strings.Cut(words[0], ":"); isTime {
			h, wrongHour := strconv.Atoi(hour)
			m, wrongMinute := strconv.Atoi(minute)
			if wrongHour != nil || wrongMinute != nil || h > 23 || m > 59 || words[0] != fmt.Sprintf("%02d:%02d", h, m) {
				return "", 0, 0, fmt.Errorf("%q is no time of the day such as 04:00", words[0])
			}
			at, words = time.Duration(h)*time.Hour+time.Duration(m)*time.Minute, words[1:]
			if unit == Hour || unit == Minute {
				return "", 0, 0, fmt.Errorf("%v begins on the clock, got the time %02d:%02d", unit, h, m)
			}
		}
	}
	zone, from, err = Parse(unit, words)
	return zone, from, at, err
}
