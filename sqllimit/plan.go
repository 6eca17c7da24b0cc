package sqllimit

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/calendar"
	"github.com/weir-go/ratelimit/internal/meter"
	"github.com/weir-go/ratelimit/internal/outcome"
)

// Times are the database's, in whole microseconds since 1970.
const (
	century = 876_600 * 3600 * int64(1e6)
	most    = math.MaxInt64 / 2 // a key's maximum debt

	leastRetry = 10_000 // the minimum estimate of the time until units in use come back
)

// After its key is fresh, a row is kept for as long as the limit's capacity takes to be regained, within these bounds.
const (
	leastKept = 5 * int64(1e6)
	mostKept  = 24 * 3600 * int64(1e6)
)

// unset is the value of since before the first decision. always is a since before all readings of a clock.
const (
	unset  = math.MinInt64
	always = math.MinInt64 + 1
)

var kinds = map[ratelimit.Algorithm]meter.Kind{
	ratelimit.AlgorithmTokenBucket:    meter.TokenBucket,
	ratelimit.AlgorithmLeakyBucket:    meter.LeakyBucket,
	ratelimit.AlgorithmFixedWindow:    meter.FixedWindow,
	ratelimit.AlgorithmSlidingLog:     meter.SlidingLog,
	ratelimit.AlgorithmSlidingCounter: meter.SlidingCounter,
	ratelimit.AlgorithmCalendar:       meter.Calendar,
	ratelimit.AlgorithmConcurrent:     meter.Concurrent,
}

// plan is a limit, prepared for decisions. It is immutable, except since.
type plan struct {
	limit ratelimit.Limit
	text  string // the limit's text without its name: rows with equal texts count alike
	meter meter.Meter
	keep  int64 // how long a row is kept after the key is fresh

	// since is the first reading under the limit for keys stored under another one. If a key has changed later,
	// the limit applies from its change on. So all denials of a key name the same instant, although none writes.
	since atomic.Int64
}

// tracks reports whether the plan counts anything: neither Unlimited nor Blocked does.
func (p *plan) tracks() bool { return p.meter.Counts() }

// decided records a decision under the plan. The first one sets since.
func (p *plan) decided(reading int64) {
	if p.since.Load() == unset {
		p.since.CompareAndSwap(unset, reading)
	}
}

// newPlan returns a limit's plan, or an error if the limit cannot be counted exactly.
func newPlan(l ratelimit.Limit) (*plan, error) {
	if err := l.Validate(); err != nil {
		return nil, err
	}
	if _, known := kinds[l.Algorithm]; !known && l.Rate != (ratelimit.Rate{}) {
		return nil, invalid("package sqllimit does not count %v", l.Algorithm)
	}
	p := &plan{limit: l, text: l.Named("").String()}
	p.since.Store(unset)
	m := meter.Limit{Kind: kinds[l.Algorithm], Units: int64(l.Rate.Units), Burst: int64(l.Burst), Horizon: century, Most: most, Retry: leastRetry}
	switch l.Algorithm {
	case ratelimit.AlgorithmUnlimited, ratelimit.AlgorithmBlocked:
		return p, nil
	case ratelimit.AlgorithmTokenBucket, ratelimit.AlgorithmLeakyBucket:
		// Per may be any number of nanoseconds: Per/Units is kept as a fraction.
		g := meter.GCD(int64(l.Rate.Per), 1000)
		m.Per = int64(l.Rate.Per) / g
		units, over := meter.Mul(m.Units, 1000/g)
		if over {
			return nil, invalid("Rate.Units is %d, and too many to count at 1 µs in %v", m.Units, p.text)
		}
		m.Units = units
	case ratelimit.AlgorithmCalendar:
		d, err := datesOf(l.Period)
		if err != nil {
			return nil, invalid("Period: %s", err)
		}
		m.Per, m.Windows = d.Longest().Microseconds(), d
	default:
		m.Per = int64(l.Rate.Per) / 1000
		if l.Rate.Per%time.Microsecond != 0 {
			return nil, invalid("Rate.Per is %v, want whole microseconds for %v", l.Rate.Per, l.Algorithm)
		}
		if l.Algorithm == ratelimit.AlgorithmSlidingLog && m.Units > maxLog {
			return nil, invalid("Rate.Units is %d, want at most %d for a sliding log, which is stored in one row", m.Units, maxLog)
		}
		if l.Algorithm == ratelimit.AlgorithmConcurrent && m.Units > maxLog {
			return nil, invalid("Rate.Units is %d, want at most %d for %v, whose reservations are stored in one row", m.Units, maxLog, l.Algorithm)
		}
	}
	p.meter = meter.New(m) // panics for an unknown algorithm
	p.keep = min(max(l.RefillTime().Microseconds(), leastKept), mostKept)
	return p, nil
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("sqllimit: %w: "+format, append([]any{ratelimit.ErrInvalidLimit}, args...)...)
}

// check returns the error for an impossible cost under the plan, or nil.
func (p *plan) check(cost int) error {
	switch {
	case cost < 0:
		return fmt.Errorf("%w: %d", ratelimit.ErrNegativeCost, cost)
	case cost <= p.limit.Capacity():
		return nil
	}
	return outcome.Exceeding(p.limit, int64(cost))
}

// dates are a calendar's windows in microseconds. Equal periods
// share one dates, so spending carries over between their limits.
type dates struct {
	*calendar.Calendar
	last atomic.Pointer[meter.Window] // the last result
}

var allDates sync.Map // *dates by Period

func datesOf(p ratelimit.Period) (*dates, error) {
	if d, ok := allDates.Load(p); ok {
		return d.(*dates), nil
	}
	c, _, err := calendar.Of(p.String())
	if err != nil {
		return nil, err
	}
	d, _ := allDates.LoadOrStore(p, &dates{Calendar: c})
	return d.(*dates), nil
}

// ordinalZero shifts ordinals, seconds since 1970, so all windows' ordinals are above 0.
const ordinalZero = 1 << 37

func micros(w calendar.Window) meter.Window {
	return meter.Window{From: w.From * 1e6, To: w.To * 1e6, Ordinal: w.From + ordinalZero}
}

// At returns an instant's window.
func (d *dates) At(instant int64) meter.Window {
	if w := d.last.Load(); w != nil && w.From <= instant && instant < w.To {
		return *w
	}
	seconds := instant / 1e6
	if instant%1e6 < 0 {
		seconds--
	}
	w := micros(d.Calendar.At(seconds))
	d.last.Store(&w)
	return w
}

// After returns the k-th window after an ordinal's window.
func (d *dates) After(ordinal, k int64) meter.Window {
	return micros(d.Calendar.After(ordinal-ordinalZero, k))
}

// Count counts the windows from the first to the second.
func (d *dates) Count(first, second int64) int64 {
	return d.Calendar.Count(first-ordinalZero, second-ordinalZero)
}
