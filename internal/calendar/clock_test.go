package calendar

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// A window begins when the clock shows a full hour or minute, and at no other instant.
func TestHoursAndMinutesBeginWhenTheClockShowsThemFull(t *testing.T) {
	testsize.Extra(t)
	for _, zone := range append([]string{"Asia/Kolkata", "Asia/Kathmandu", "Africa/Monrovia", "Antarctica/Troll"}, strange...) {
		loc, err := time.LoadLocation(zone)
		require.NoError(t, err)
		for _, unit := range []Unit{Hour, Minute} {
			c := calendarOf(t, unit, zone, 0)
			full := func(unix int64) bool {
				at := time.Unix(unix, 0).In(loc)
				return at.Second() == 0 && (unit == Minute || at.Minute() == 0)
			}
			for _, begin := range []string{"1969-12-01", "1972-01-06", "1991-03-01", "2011-12-29", "2026-03-01", "2026-10-01", "2099-09-25", "9999-10-01"} {
				if zone == "Australia/Lord_Howe" && begin > "2100" {
					continue // the zone's half hours are unknown so far ahead
				}
				day, err := time.Parse(time.DateOnly, begin)
				require.NoError(t, err)
				at := day.Unix()
				w := c.At(at)
				first, n := w, int64(0)
				for n < 1200 {
					next := c.At(w.To)
					require.True(t, w.From < w.To && next.From == w.To && next == c.After(w.From, 1) && c.At(w.To-1) == w && c.At(w.From) == w,
						"%s, %v: %v, then %v", zone, unit, w, next)
					require.True(t, full(w.From), "%s, %v: %v", zone, unit, time.Unix(w.From, 0).In(loc))
					for inner := w.From - w.From%60 + 60; inner < w.To; inner += 60 {
						require.False(t, full(inner), "%s, %v: within %v", zone, unit, w)
					}
					require.LessOrEqual(t, w.To-w.From, int64(c.Longest()/time.Second), "%s, %v: %v", zone, unit, w)
					w, n = next, n+1
					require.Equal(t, n, c.Count(first.From, w.From))
					require.Equal(t, w, c.After(first.From, n))
				}
			}
		}
	}
}

func TestHoursWhereClocksAreSet(t *testing.T) {
	berlin := calendarOf(t, Hour, "Europe/Berlin", 0)
	autumn := instant(t, "UTC", "2026-10-25 00:30:00") // 2:30 for the first time
	assert.Equal(t, int64(1), berlin.Count(autumn, autumn+3600), "the hour that comes twice is two")
	assert.Equal(t, time.Hour, berlin.Longest())
	howe := calendarOf(t, Hour, "Australia/Lord_Howe", 0)
	w := howe.At(instant(t, "UTC", "2026-04-04 15:10:00"))
	assert.Equal(t, int64(5400), w.To-w.From, "from 1:00 to the second 2:00")
	assert.Equal(t, 90*time.Minute, howe.Longest())
	assert.Equal(t, time.Minute, calendarOf(t, Minute, "Australia/Lord_Howe", 0).Longest())
	kolkata := calendarOf(t, Hour, "Asia/Kolkata", 0).At(instant(t, "UTC", "2026-04-04 15:10:00"))
	assert.Equal(t, instant(t, "UTC", "2026-04-04 14:30:00"), kolkata.From)
	for _, unit := range []Unit{Hour, Minute} {
		_, err := New(unit, "UTC", 1)
		require.Error(t, err)
		_, _, err = Parse(unit, []string{"UTC", "from", "1"})
		require.ErrorContains(t, err, "does not belong")
		got, known := UnitOf(unit.String())
		assert.Equal(t, []any{unit, true}, []any{got, known})
	}
}
