package redislimit

import (
	"fmt"
	"hash/fnv"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/calendar"
	"github.com/weir-go/ratelimit/internal/meter"
)

// A calendar's windows follow the server's clock, so all processes agree. The scripts have no time
// zones. So a call carries the beginning and the end of the present window and of the next one, and
// the server's time selects one. If this machine's clock is far off, or a window has just ended, the
// time may be in neither window. Then the script returns the server's time, and the call is repeated.

// maxOutside is the maximum number of times that a call is repeated because of the server's time.
const maxOutside = 2

// errOutside is returned if the server's time jumps between calls.
var errOutside = fmt.Errorf("%w: the server's time does not stay where it was answered to be", ratelimit.ErrUnavailable)

// dates are a calendar's windows in the server's microseconds.
type dates struct {
	*calendar.Calendar
	per  int64                           // identifies the calendar in the scripts
	mean int64                           // a window's mean length in seconds: 400 years have 146097 days
	last atomic.Pointer[[2]meter.Window] // the window used last, and the one after it
}

// prepareCalendar completes a calendar's plan.
func (p *plan) prepareCalendar() error {
	text := p.limit.Period.String()
	c, unit, err := calendar.Of(text)
	if err != nil {
		return fmt.Errorf("%w: Period: %s", ratelimit.ErrInvalidLimit, err)
	}
	// Two limits count alike if their figures are the same numbers. No window is longer than half the largest counted number.
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(text))
	p.per = most/2 | int64(hash.Sum64()>>13)
	p.dates = &dates{Calendar: c, per: p.per, mean: map[calendar.Unit]int64{
		calendar.Minute: 60, calendar.Hour: 3600, calendar.Day: 86400, calendar.Week: 7 * 86400, calendar.Month: 146097 * 86400 / 4800, calendar.Year: 146097 * 86400 / 400}[unit]}
	p.meter = meter.New(meter.Limit{Kind: meter.Calendar, Units: p.units, Per: c.Longest().Microseconds(),
		Windows: p.dates, Horizon: century, Most: most})
	return nil
}

func windowOf(w calendar.Window) meter.Window {
	return meter.Window{From: w.From * 1e6, To: w.To * 1e6, Ordinal: w.From + ordinalZero}
}

func seconds(micros int64) int64 {
	if micros < 0 {
		micros -= 999_999
	}
	return micros / 1e6
}

// two returns an instant's window, and the next one.
func (d *dates) two(instant int64) *[2]meter.Window {
	if w := d.last.Load(); w != nil && w[0].From <= instant && instant < w[0].To {
		return w
	}
	at := seconds(instant)
	w := &[2]meter.Window{windowOf(d.Calendar.At(at)), windowOf(d.Calendar.After(at, 1))}
	d.last.Store(w)
	return w
}

// At returns an instant's window.
func (d *dates) At(instant int64) meter.Window { return d.two(instant)[0] }

// After returns the k-th window after an ordinal's window.
func (d *dates) After(ordinal, k int64) meter.Window {
	if w := d.last.Load(); w != nil && k == 1 && w[0].Ordinal == ordinal {
		return w[1]
	}
	return windowOf(d.Calendar.After(ordinal-ordinalZero, k))
}

// before returns the window's beginning before w, as an ordinal.
func (d *dates) before(w meter.Window) int64 {
	return d.Calendar.At(seconds(w.From-1)).From + ordinalZero
}

// Count counts the windows from the first to the second.
func (d *dates) Count(first, second int64) int64 {
	return d.Calendar.Count(first-ordinalZero, second-ordinalZero)
}

// put appends a calendar's data for a script: the current windows, and the window of the limit's
// last change, because a key may be carried over as of the change long after it. It also returns
// the time it has used: now, or if now is 0, an estimate from this machine's clock.
func (d *dates) put(b []byte, s *store, now, since int64) ([]byte, int64) {
	if d == nil {
		return b, now
	}
	if now == 0 {
		now = s.guess()
	}
	w := d.two(now)
	var changed calendar.Window
	if since > always {
		changed = d.Calendar.At(seconds(since))
	}
	for _, n := range [...]int64{d.per, d.before(w[0]), w[0].Ordinal, w[1].Ordinal, seconds(w[1].To) + ordinalZero,
		d.mean, century / d.Longest().Microseconds(), changed.From + ordinalZero, changed.To + ordinalZero} {
		b = put7(b, n)
	}
	return b, now
}

// guess returns an estimate of the server's time, in microseconds.
func (s *store) guess() int64 { return s.now() + s.skew.Load() }

// learn records the server's time from a reply with the time.
func (s *store) learn(reply string) { s.skew.Store(get7(reply[1:]) - s.now()) }

func (s *store) now() int64 {
	if s.clock != nil {
		return s.clock()
	}
	return time.Now().UnixMicro()
}
