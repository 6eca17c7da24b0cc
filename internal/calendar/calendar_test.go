package calendar

import (
	"flag"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// windows is how many windows of each calendar are checked. For a long run, set -windows 150000.
var windows = flag.Int64("windows", testsize.Of[int64](2000, 20_000), "windows of each calendar that are looked at")

// strange lists some ordinary zones, and zones with steps at midnight, of half an hour or of a day.
var strange = []string{
	"UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Havana",
	"Pacific/Apia", "America/St_Johns", "America/Sao_Paulo", "Pacific/Kwajalein", "Africa/Casablanca",
}

func calendarOf(t testing.TB, unit Unit, zone string, from int) *Calendar {
	t.Helper()
	c, err := New(unit, zone, from)
	require.NoError(t, err)
	return c
}

func instant(t testing.TB, zone, text string) int64 {
	t.Helper()
	loc, err := time.LoadLocation(zone)
	require.NoError(t, err)
	at, err := time.ParseInLocation("2006-01-02 15:04:05", text, loc)
	require.NoError(t, err)
	return at.Unix()
}

// Each window ends at the next one's beginning. No instant is in two windows. Each
// window begins with its first date: a second before, the local date is an earlier one.
func TestWindowsHaveNoGapAndDoNotOverlap(t *testing.T) {
	for _, zone := range strange {
		loc, err := time.LoadLocation(zone)
		require.NoError(t, err)
		for unit := Day; unit <= Month; unit++ {
			from := map[Unit]int{Day: 0, Week: 3, Month: 31}[unit]
			c := calendarOf(t, unit, zone, from)
			n := *windows
			if unit != Day {
				n = min(n, 20_000) // do not reach years with five digits
			}
			w := c.At(time.Date(1985, 1, 1, 0, 0, 0, 0, time.UTC).Unix())
			if n > 6000 {
				w = c.At(time.Date(1850, 1, 1, 0, 0, 0, 0, time.UTC).Unix())
			}
			first := w.From
			for i := range n {
				next := c.At(w.To)
				if w.From >= w.To || next.From != w.To || next != c.After(w.From, 1) || c.At(w.To-1) != w ||
					c.At((w.From+w.To)/2) != w || i%97 == 0 && (c.Count(first, w.To-1) != i || c.After(first, i) != w) {
					t.Fatalf("%s, %v %d: %v, then %v", zone, unit, i, w, next)
				}
				y, m, d := time.Unix(w.From, 0).In(loc).Date()
				date := time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
				y, m, d = time.Unix(w.From-1, 0).In(loc).Date()
				if !time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Before(date) {
					t.Fatalf("%s, %v: %v begins within a date", zone, unit, time.Unix(w.From, 0).In(loc))
				}
				switch skipped := zone == "Pacific/Apia" || zone == "Pacific/Kwajalein"; {
				case unit == Week && date.Weekday() != time.Wednesday && !skipped:
					t.Fatalf("%s: a week begins on %v", zone, date)
				case unit == Month && date.AddDate(0, 0, 1).Day() != 1 && date.Day() != 31:
					t.Fatalf("%s: a month begins on %v", zone, date)
				}
				w = next
			}
		}
	}
}

func TestDaysAreAsLongAsTheyAre(t *testing.T) {
	for _, row := range []struct {
		zone, at    string
		hours       float64
		begins, end string
	}{
		{"Europe/Berlin", "2026-03-29 12:00:00", 23, "2026-03-29 00:00:00", "2026-03-30 00:00:00"},
		{"Europe/Berlin", "2026-10-25 12:00:00", 25, "2026-10-25 00:00:00", "2026-10-26 00:00:00"},
		{"Australia/Lord_Howe", "2026-04-05 12:00:00", 24.5, "2026-04-05 00:00:00", "2026-04-06 00:00:00"},
		{"America/Havana", "2026-03-08 12:00:00", 23, "2026-03-08 01:00:00", "2026-03-09 00:00:00"}, // midnight is skipped
		{"Pacific/Apia", "2011-12-29 12:00:00", 24, "2011-12-29 00:00:00", "2011-12-31 00:00:00"},   // the 30th is skipped
		{"Pacific/Apia", "2011-12-31 12:00:00", 24, "2011-12-31 00:00:00", "2012-01-01 00:00:00"},
	} {
		w := calendarOf(t, Day, row.zone, 0).At(instant(t, row.zone, row.at))
		assert.InDelta(t, row.hours*3600, w.To-w.From, 0, row.at)
		assert.Equal(t, instant(t, row.zone, row.begins), w.From, row.at)
		assert.Equal(t, instant(t, row.zone, row.end), w.To, row.at)
	}
	apia := calendarOf(t, Day, "Pacific/Apia", 0)
	assert.EqualValues(t, 2, apia.Count(instant(t, "Pacific/Apia", "2011-12-29 12:00:00"), instant(t, "Pacific/Apia", "2012-01-01 12:00:00")))
}

// The clocks of St. John's were set back one minute after midnight. The first midnight counts.
func TestMidnightThatComesTwice(t *testing.T) {
	c := calendarOf(t, Day, "America/St_Johns", 0)
	old := c.At(instant(t, "America/St_Johns", "2010-11-06 12:00:00"))
	assert.Equal(t, int64(24*3600), old.To-old.From)
	assert.Equal(t, int64(25*3600), c.At(old.To).To-old.To)
	assert.Equal(t, c.At(old.To), c.At(old.To+1800), "half past eleven, again")
}

func TestAnAnchorThatAMonthDoesNotHaveIsItsLastDay(t *testing.T) {
	c := calendarOf(t, Month, "UTC", 31)
	at := instant(t, "UTC", "2027-12-31 00:00:00")
	for _, next := range []string{"2028-01-31", "2028-02-29", "2028-03-31", "2028-04-30", "2028-05-31"} {
		w := c.At(at)
		assert.Equal(t, at, w.From)
		assert.Equal(t, instant(t, "UTC", next+" 00:00:00"), w.To)
		at = w.To
	}
}

func TestLongestWindow(t *testing.T) {
	assert.Equal(t, 24*time.Hour, calendarOf(t, Day, "UTC", 0).Longest())
	assert.Equal(t, 25*time.Hour, calendarOf(t, Day, "Europe/Berlin", 0).Longest())
	assert.Equal(t, 25*time.Hour, calendarOf(t, Day, "Australia/Lord_Howe", 0).Longest()) // since 1985, the step has been only half an hour
	assert.Equal(t, 7*24*time.Hour, calendarOf(t, Week, "UTC", 0).Longest())
	assert.Equal(t, 31*24*time.Hour+time.Hour, calendarOf(t, Month, "America/New_York", 1).Longest())
}

func TestInvalidCalendarsAreErrors(t *testing.T) {
	for _, row := range []struct {
		unit Unit
		zone string
		from int
	}{
		{0, "UTC", 0}, {7, "UTC", 0}, {Year, "UTC", 1}, {Day, "", 0}, {Day, "Local", 0}, {Day, "localtime", 0}, {Day, "posixrules", 0}, {Day, "Europe//Berlin", 0}, {Day, "Europe/./Berlin", 0}, {Day, "./UTC", 0}, {Day, "Europe/Atlantis", 0}, {Day, "UTC", 1}, {Day, "../UTC", 0},
		{Week, "UTC", -1}, {Week, "UTC", 7}, {Month, "UTC", 0}, {Month, "UTC", 32}, {Month, "UTC", -1},
	} {
		_, err := New(row.unit, row.zone, row.from)
		assert.Error(t, err, row)
	}
}

// An instant outside a calendar's range counts as the range's first or last instant.
func TestInstantsFarAway(t *testing.T) {
	for unit := Day; unit <= Month; unit++ {
		c := calendarOf(t, unit, "Europe/Berlin", 1*min(1, int(unit-Day)))
		for _, at := range []int64{-1 << 63, -1 << 40, 1 << 40, 1<<63 - 1} {
			w := c.At(at)
			assert.Less(t, w.From, w.To)
		}
	}
}

func BenchmarkAt(b *testing.B) {
	c := calendarOf(b, Month, "Europe/Berlin", 15)
	for i := range b.N {
		c.At(1_700_000_000 + int64(i)*1000)
	}
}

// Windows may begin at a time of the day, or with a year. They follow
// each other without gaps, and begin when the clock first shows the time.
func TestWindowsThatBeginAtATimeOfTheDay(t *testing.T) {
	for _, zone := range strange {
		loc, err := time.LoadLocation(zone)
		require.NoError(t, err)
		for _, unit := range []Unit{Day, Week, Month, Year} {
			for _, at := range []time.Duration{0, time.Minute, 2*time.Hour + 30*time.Minute, 23*time.Hour + 59*time.Minute} {
				c, err := NewAt(unit, zone, map[Unit]int{Week: 3, Month: 31}[unit], at)
				require.NoError(t, err)
				w := c.At(time.Date(1985, 1, 1, 0, 0, 0, 0, time.UTC).Unix())
				first := w.From
				for i := range testsize.Of[int64](400, 12_000) {
					if unit == Year && i == 120 {
						break
					}
					next := c.At(w.To)
					if w.From >= w.To || next.From != w.To || next != c.After(w.From, 1) || c.At(w.To-1) != w || c.At((w.From+w.To)/2) != w ||
						time.Duration(w.To-w.From)*time.Second > c.Longest() || i%97 == 0 && (c.Count(first, w.To-1) != i || c.After(first, i) != w) {
						t.Fatalf("%s, %v at %v %d: %v, then %v", zone, unit, at, i, w, next)
					}
					shows := func(unix int64) time.Time { // returns the clock's time as a date in UTC
						now := time.Unix(unix, 0).In(loc)
						return time.Date(now.Year(), now.Month(), now.Day(), now.Hour(), now.Minute(), now.Second(), 0, time.UTC)
					}
					begin := shows(w.From)
					if want := begin.Truncate(24 * time.Hour).Add(at); !shows(w.From-1).Before(begin) || begin.Before(want) || shows(w.From-1).After(want) && !shows(w.From-1).Before(want) {
						t.Fatalf("%s, %v at %v: a window begins at %v", zone, unit, at, begin)
					}
					if unit == Year && begin.YearDay() != 1 {
						t.Fatalf("%s: a year begins at %v", zone, begin)
					}
					w = next
				}
			}
		}
	}
}

func TestTheTextOfATimeOfTheDay(t *testing.T) {
	for text, begins := range map[string]string{
		"day 04:00 Europe/Berlin":              "2026-03-29 04:00:00", // after that night's step
		"day 02:30 Europe/Berlin":              "2026-03-29 03:00:00", // within the step
		"year Europe/Berlin":                   "2026-01-01 00:00:00",
		"year 12:00 Europe/Berlin":             "2026-01-01 12:00:00",
		"month 23:59 Europe/Berlin from 31":    "2026-02-28 23:59:00",
		"week 00:01 Europe/Berlin from sunday": "2026-03-29 00:01:00",
		"day Europe/Berlin":                    "2026-03-29 00:00:00",
	} {
		c, _, err := Of(text)
		require.NoError(t, err, text)
		assert.Equal(t, instant(t, "Europe/Berlin", begins), c.At(instant(t, "Europe/Berlin", "2026-03-29 20:00:00")).From, text)
	}
	for _, wrong := range []string{"", "day", "day 4:00 UTC", "day 24:00 UTC", "day 12:60 UTC", "day 04:00", "hour 04:00 UTC", "minute 00:30 UTC", "day 04:00:00 UTC", "day UTC 04:00", "year UTC from 2", "decade UTC", "day -1:00 UTC"} {
		_, _, err := Of(wrong)
		require.Error(t, err, wrong)
	}
	for _, at := range []time.Duration{-time.Minute, 24 * time.Hour, time.Second} {
		_, err := NewAt(Day, "UTC", 0, at)
		require.Error(t, err)
	}
	_, err := NewAt(Hour, "UTC", 0, time.Minute)
	require.Error(t, err)
}
