package ratelimittest

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weir-go/ratelimit"
)

// dates computes a Period's windows by reading a wall calendar. A window begins with the first
// minute on the window's first date in the zone, or on a later date. With a time of the day, it
// begins with the first minute when the clock shows this time on the date, or a later time. This
// module's limiters use none of this code, so a fault in one does not hide a fault in the other.
type dates struct {
	loc   *time.Location
	unit  string        // minute, hour, day, week, month or year
	after time.Duration // a window begins this long after midnight of its first date
	first time.Weekday  // a week's first day
	day   int           // a month's first day

	mu     sync.Mutex // guards starts
	starts map[time.Time]time.Time
}

// window is one of a calendar's windows: it contains from, and ends before to.
type window struct{ from, to time.Time }

var allDates sync.Map // from a Period to its *dates

// datesOf returns the dates of a valid Period. It reads only the Period's text.
func datesOf(p ratelimit.Period) *dates {
	if d, ok := allDates.Load(p); ok {
		return d.(*dates)
	}
	words := strings.Fields(p.String()) // for example "month 04:00 Europe/Berlin from 15"
	var after time.Duration
	if hour, minute, isTime := strings.Cut(words[1], ":"); isTime {
		h, _ := strconv.Atoi(hour)
		m, _ := strconv.Atoi(minute)
		after = time.Duration(h)*time.Hour + time.Duration(m)*time.Minute
		words = append(words[:1], words[2:]...)
	}
	loc, err := time.LoadLocation(words[1])
	if err != nil {
		panic(fmt.Sprintf("ratelimittest: %v is valid, and its zone is not found: %v", p, err))
	}
	d := &dates{loc: loc, unit: words[0], after: after, starts: make(map[time.Time]time.Time)}
	switch d.unit {
	case "week":
		for !strings.EqualFold(d.first.String(), words[3]) {
			d.first++
		}
	case "month":
		d.day, _ = strconv.Atoi(words[3])
	}
	kept, _ := allDates.LoadOrStore(p, d)
	return kept.(*dates)
}

// at returns an instant's window. If clocks are set back over a window's beginning, the window continues.
func (d *dates) at(instant time.Time) window {
	if length := d.clock(); length > 0 {
		from := instant.Truncate(time.Minute)
		for length == time.Hour && from.In(d.loc).Minute() != 0 {
			from = from.Add(-time.Minute)
		}
		return window{from, from.Add(length)}
	}
	date := d.begins(d.dateOf(instant))
	for {
		next := d.next(date)
		if to := d.start(next); to.After(instant) {
			return window{d.start(date), to}
		}
		date = next
	}
}

// count counts the windows from first to last, both included.
func (d *dates) count(first, last window) (n int64) {
	if length := d.clock(); length > 0 {
		return int64(last.from.Sub(first.from)/length) + 1
	}
	for w := first; !w.from.After(last.from); w = d.at(w.to) {
		n++
	}
	return n
}

// clock returns the length of windows of an hour or a minute, and 0 for other windows. The length
// does not vary, because in the tested zones of such windows clocks are set by whole hours only.
func (d *dates) clock() time.Duration {
	return map[string]time.Duration{"minute": time.Minute, "hour": time.Hour}[d.unit]
}

// dateOf returns an instant's date if dates begin at the windows'
// time. In a zone with skipped dates it may return the date before.
func (d *dates) dateOf(instant time.Time) time.Time {
	y, m, day := instant.In(d.loc).Date()
	hour, minute, _ := instant.In(d.loc).Clock()
	date := time.Date(y, m, day, 0, 0, 0, 0, time.UTC)
	for time.Duration(hour)*time.Hour+time.Duration(minute)*time.Minute < d.after || d.start(date).After(instant) {
		date, hour = date.AddDate(0, 0, -1), 24
	}
	return date
}

// begins returns the first date of a date's window.
func (d *dates) begins(date time.Time) time.Time {
	switch d.unit {
	case "week":
		for date.Weekday() != d.first {
			date = date.AddDate(0, 0, -1)
		}
	case "month":
		y, m, _ := date.Date()
		if from := d.inMonth(y, m); !from.After(date) {
			return from
		}
		return d.inMonth(y, m-1)
	case "year":
		return time.Date(date.Year(), 1, 1, 0, 0, 0, 0, time.UTC)
	case "day":
		for d.skipped(date) {
			date = date.AddDate(0, 0, -1)
		}
	}
	return date
}

// skipped reports whether the clock never shows the windows' time on a
// date, because the zone has skipped the date. Then the date has no window.
func (d *dates) skipped(date time.Time) bool {
	y, m, day := d.start(date).In(d.loc).Date()
	return d.after > 0 && time.Date(y, m, day, 0, 0, 0, 0, time.UTC).After(date)
}

// next returns the first date of the next window. The given date is its own window's first.
func (d *dates) next(date time.Time) time.Time {
	switch d.unit {
	case "week":
		return date.AddDate(0, 0, 7)
	case "month":
		return d.inMonth(date.Year(), date.Month()+1)
	case "year":
		return date.AddDate(1, 0, 0)
	}
	for date = date.AddDate(0, 0, 1); d.unit == "day" && d.skipped(date); {
		date = date.AddDate(0, 0, 1)
	}
	return date
}

// inMonth returns the date on which a month's window begins. In a shorter month, it is the last date.
func (d *dates) inMonth(y int, m time.Month) time.Time {
	last := time.Date(y, m+1, 0, 0, 0, 0, 0, time.UTC)
	return last.AddDate(0, 0, min(0, d.day-last.Day()))
}

// start returns the first minute when the clock shows the windows' time on the date, or a later
// time. It searches by quarters of an hour, and then by minutes. In UTC, every zone's midnight
// is at a quarter of an hour, unless the zone skips it. Then clocks are set at a whole minute.
func (d *dates) start(date time.Time) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	if at, known := d.starts[date]; known {
		return at
	}
	const quarter = 15 * time.Minute
	at := date.Add(-15 * time.Hour) // no zone is so far ahead
	before := func(at time.Time) bool {
		y, m, day := at.In(d.loc).Date()
		hour, minute, second := at.In(d.loc).Clock()
		return time.Date(y, m, day, hour, minute, second, 0, time.UTC).Before(date.Add(d.after))
	}
	for before(at) {
		at = at.Add(quarter)
	}
	for at = at.Add(time.Minute - quarter); before(at); {
		at = at.Add(time.Minute)
	}
	d.starts[date] = at
	return at
}

// ---- calendars in histories ----

// zones are the tested periods' zones. Some never set their clocks, others by an hour
// or half an hour, also at midnight or a minute after it. One zone has skipped a date.
var zones = []string{"UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Havana", "America/St_Johns", "Pacific/Apia"}

// periods are the tested periods. Zones unknown to the machine are left out.
var periods = sync.OnceValue(func() (all []ratelimit.Period) {
	for i, zone := range zones {
		for _, p := range []ratelimit.Period{
			ratelimit.Day(zone), ratelimit.Week(zone, time.Weekday(i)), ratelimit.Month(zone, []int{31, 15, 1, 30, 29, 31, 30}[i]),
		} {
			if ratelimit.Calendar(1, p).Validate() == nil {
				all = append(all, p)
			}
		}
	}
	for _, p := range []ratelimit.Period{ratelimit.Hour("UTC"), ratelimit.Minute("UTC"), ratelimit.Hour("Europe/Berlin"), ratelimit.Hour("America/St_Johns"),
		ratelimit.Day("Europe/Berlin").At(2*time.Hour + 30*time.Minute), ratelimit.Day("Pacific/Apia").At(4 * time.Hour), ratelimit.Month("America/Havana", 31).At(23*time.Hour + 59*time.Minute),
		ratelimit.Year("UTC"), ratelimit.Year("Australia/Lord_Howe").At(time.Hour), ratelimit.Minute("America/St_Johns")} {
		if ratelimit.Calendar(1, p).Validate() == nil {
			all = append(all, p)
		}
	}
	return all
})

func isCalendar(l ratelimit.Limit) bool { return l.Algorithm == ratelimit.AlgorithmCalendar }

// per returns the time in which a limit's units are regained: its Rate.Per, or a calendar's longest window.
func per(l ratelimit.Limit) time.Duration {
	if isCalendar(l) {
		return ratelimit.Calendar(1, l.Period).RefillTime() // the same for any number of units
	}
	return l.Rate.Per
}

func (h *history) per() time.Duration { return per(h.limit) }

// wallAt returns the wall time at an instant of the history, if the wall clock is not set before then.
func (h *history) wallAt(at time.Duration) time.Time { return h.cfg.Clock.Wall().Add(at - h.now) }

// windowAt returns the window of the history's limit at an instant.
func (h *history) windowAt(at time.Duration) window {
	return datesOf(h.limit.Period).at(h.wallAt(at))
}

// untilNext returns the time until the present window ends.
func (h *history) untilNext() time.Duration { return h.windowAt(h.now).to.Sub(h.wallAt(h.now)) }

// Histories begin between these dates. By then zones have had their rules for some
// time, and an engine counting microseconds in 53 bits can still count 230 years more.
var (
	earliestWall = time.Date(1996, 1, 1, 0, 0, 0, 0, time.UTC)
	latestWall   = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
)

// firstWall returns the wall time when a history begins. For a calendar it
// is often near a window's end, or near an instant when clocks are set.
func (h *history) firstWall(rng *rand.Rand) time.Time {
	at := earliestWall.Add(h.cfg.upto(rng, latestWall.Sub(earliestWall)))
	if !isCalendar(h.limit) {
		return at
	}
	d := datesOf(h.limit.Period)
	near := []time.Duration{h.cfg.Resolution, h.cfg.upto(rng, time.Minute), h.cfg.upto(rng, 3*time.Hour), h.cfg.upto(rng, h.per())}[rng.IntN(4)]
	_, set := at.In(d.loc).ZoneBounds()
	switch n := rng.IntN(6); {
	case n == 0:
		return at
	case n < 3 || set.IsZero() || set.After(latestWall):
		return d.at(at).to.Add(-near)
	case n < 5:
		return set.Add(-near)
	default:
		return d.at(set).from.Add(-near)
	}
}
