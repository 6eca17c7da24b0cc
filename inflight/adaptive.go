package inflight

import (
	"time"

	"github.com/weir-go/ratelimit/internal/optional"
)

// Sample describes one window by the work begun and ended within it. A zero figure is unknown.
type Sample struct {
	// RTT is the mean time of successful work, from the permit to Done. With [Permit.DoneAmount] it is the time
	// for the first window's mean amount. Longer work raises it, if [Cancelled], [Dropped] or not finished.
	//
	// Some calls may hang while others succeed. RTT is then the mean time of the successes alone. A call hangs
	// if it fails after a longer time than any recent success took. Its time must be more than twice their mean,
	// and more than four standard deviations above it. One such call may be chance, so several are needed.
	RTT time.Duration
	// Deviation is the standard deviation of RTT's times. Ended counts the calls whose full time is known.
	Deviation time.Duration
	Ended     int
	// InFlight is how many units were in flight at most.
	InFlight int
	// Mean is the mean number of units in flight over time.
	Mean float64
	// Hung is the hung calls' part of Mean; RTT defines them. If zero, no call hung.
	Hung float64
	// Crowd is the mean number of units in flight as a unit in flight
	// finds it, itself included. Unlike in Mean, idle time does not count.
	Crowd float64
	// Cancelled is the share of outcomes, from 0 to 1, whose clients had stopped waiting.
	// If it is large, the true mean time is longer than RTT. Hung calls do not count.
	Cancelled float64
	// Dropped is true if at least a quarter of the outcomes were [Dropped], or if Cancelled is above one half.
	Dropped bool
	// Drops is the share of [Dropped] outcomes, from 0 to 1. Outcomes
	// counts all outcomes. Both include work that began before the window.
	Drops    float64
	Outcomes int
	// Goodput counts the successes per second.
	Goodput float64
	// Served is the mean time of the successes alone, including work that began before the window.
	Served time.Duration
	// Max is the limit's upper bound, or 0 if there is none.
	Max int
	// At is when the window ended, on a clock shared by processes. It
	// counts from the Unix epoch, or is a reading of Options.Clock if set.
	At time.Duration
	// Median is the median of RTT's times.
	Median time.Duration
	sized  bool // whether RTT was computed from amounts
	mixed  bool // whether priorities have work of different length
}

// served is the successes' mean time, or all work's if nothing succeeded.
func (s *Sample) served() time.Duration {
	if s.Served > 0 {
		return s.Served
	}
	return s.RTT
}

// sane returns s with each impossible figure set to unknown. Such a figure may come from a wrapper of an algorithm.
func (s Sample) sane() Sample {
	for _, x := range []*float64{&s.Mean, &s.Hung, &s.Crowd, &s.Cancelled, &s.Drops, &s.Goodput} {
		if !(*x > 0 && *x <= mostFigure) {
			*x = 0
		}
	}
	s.Cancelled, s.Drops = min(1, s.Cancelled), min(1, s.Drops)
	for _, d := range []*time.Duration{&s.RTT, &s.Deviation, &s.Served, &s.Median} {
		*d = min(max(0, *d), longest)
	}
	s.Ended, s.InFlight, s.Outcomes = max(0, s.Ended), max(0, s.InFlight), max(0, s.Outcomes)
	return s
}

// mostFigure is the largest possible figure.
const mostFigure = 1e18

// Algorithm finds a limit from samples. The limiter calls Update once for each window, from
// one goroutine at a time. Update returns the limit from now on. A value below 1 counts as 1.
// A value above the key's upper bound counts as the bound. Update must not call the limiter.
//
// An algorithm may have three more methods. Limit() int returns the initial limit, and Window() int the
// minimum number of outcomes in a window. Both default to 20. Queue() int returns how much of the limit
// is a queue in the backend. Low-priority calls leave this part to higher priorities. It defaults to 0.
type Algorithm interface {
	Update(s Sample) (limit int)
}

// startLimit is the default of the initial limit.
const startLimit = 20

// checkAlgorithm makes an algorithm, and returns an error if the result is nil or has invalid options.
func checkAlgorithm(option string, make func() Algorithm) error {
	if make == nil {
		return nil
	}
	alg := make()
	if optional.IsNil(alg) {
		return optional.Nil("inflight: the result of Options." + option)
	}
	if v, ok := alg.(interface{ validate() error }); ok {
		return v.validate()
	}
	return nil
}

// learner holds a key's algorithm and current window. The key's lock guards
// it. The fields alg and due belong to the caller updating the algorithm.
type learner struct {
	alg      Algorithm
	at       int    // the algorithm's latest result
	queue    int    // the limit's part for the queue in the backend
	seq      uint64 // the number of the latest work
	inFlight int    // the units in flight, except ignored ones
	ignored  int    // units in flight after Permit.Ignore
	high     int    // the highest limit since window.low
	draining bool   // whether more units are in flight than the lowered limit
	window   window
	updating bool
	due      Sample
	each     func(f func(seq uint64, start time.Duration) bool) // calls f with the work in flight, each key's newest first, until f returns false
	levels   levels                                             // used with Options.Shared
	busy     []*semaphore                                       // with Options.Shared: keys with something in flight
	report   func(old, new int)                                 // receives each change of the limit; or nil
	system   bool                                               // whether readings come from the system's clock
}

func newLearner(alg Algorithm) *learner {
	at := startLimit
	if s, ok := alg.(interface{ Limit() int }); ok {
		at = s.Limit()
	}
	count := minSamples
	if w, ok := alg.(interface{ Window() int }); ok {
		count = max(1, w.Window())
	}
	return &learner{alg: alg, at: at, window: newWindow(count)}
}

// limit returns the learnt limit, within the bound.
func (l *learner) limit(bound int) int { return min(l.at, bound) }

// began records the beginning of work, and returns its number. After the limit was raised, the first
// work meets a shorter queue than later work. So a new window begins as soon as the new limit is full.
func (l *learner) began(now time.Duration, inFlight, limit int) uint64 {
	l.window.lasts(now, l.inFlight)
	l.inFlight = inFlight
	l.window.peak = max(l.window.peak, inFlight)
	l.seq++
	if !l.window.open && l.seq == 1 {
		l.window.since, l.window.begun = now, now
	}
	if l.window.filling && inFlight >= limit {
		fresh := l.window.fresh
		l.window.filling = false
		l.window.renew(now, l.seq-1, inFlight, l.each)
		l.window.fresh = fresh
	}
	return l.seq
}

// ended records the end of work. It reports whether the caller must take the window and update the algorithm.
func (l *learner) ended(now time.Duration, w *work, o Outcome) bool {
	l.window.lasts(now, l.inFlight)
	l.inFlight -= w.n
	if l.draining && l.inFlight <= l.at {
		l.drained(now)
		return false
	}
	return l.window.add(now, w.start, w.seq, w.n, o) && !l.updating && l.window.over(now)
}

// take ends the window. Until updating is false again, no other goroutine may update the algorithm.
func (l *learner) take(now time.Duration, bound, inFlight int) {
	w := &l.window
	l.due = w.sample(now, l.each)
	l.due.Max, l.due.At, l.due.mixed = bound, now, l.levels.differ()
	if w.done > 0 {
		w.usual = w.total / time.Duration(w.done)
	}
	w.filling = false
	w.renew(now, l.seq, inFlight, l.each)
	l.updating = true
}

// changed records a change of the limit. If the new limit is much lower, earlier work has met a longer queue
// and no longer counts. Neither does work if it begins while more units are in flight than the new limit.
func (l *learner) changed(now time.Duration, old, limit int) {
	l.high = max(l.high, old)
	l.window.filling, l.draining = limit > old, false
	switch {
	case float64(limit) > higher*float64(old): // a probe has ended
		l.high, l.window.low = limit, now
	case float64(limit) >= lower*float64(l.high):
	case l.inFlight > limit:
		l.draining = true
	default:
		l.drained(now)
	}
}

func (l *learner) drained(now time.Duration) {
	l.draining, l.high, l.window.low = false, 0, now
	l.window.renew(now, l.seq, l.inFlight, l.each)
	l.window.fresh = true
}

// eachOfBusy calls f with each key's work, the newest first, until f returns false.
func (l *learner) eachOfBusy(f func(seq uint64, start time.Duration) bool) {
	for _, s := range l.busy {
		s.works.each(f)
	}
}

// idleLocked removes a key once it has nothing in flight.
func (l *learner) idleLocked(s *semaphore) {
	end := len(l.busy) - 1
	last := l.busy[end]
	l.busy[s.busyAt], last.busyAt = last, s.busyAt
	l.busy[end] = nil
	l.busy, s.busyAt = l.busy[:end], -1
}
