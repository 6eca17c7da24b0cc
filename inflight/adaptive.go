package inflight

import (
	"fmt"
	"time"
)

// Sample is what a window has shown: the work that began and ended within it.
type Sample struct {
	// RTT is the mean time of the work that succeeded, from the permit to Done. Work that is still under way takes at least as
	// long as it has lasted: it raises the mean, and never lowers it. So does what was [Cancelled] or [Dropped] after more time than all
	// that succeeded took: its client did not wait, or a deadline has ended. 0 if nothing succeeded, and there is nothing of these.
	RTT time.Duration
	// Deviation is the standard deviation of the times whose mean is RTT, and Ended how many of them
	// are known in full. So Deviation / √Ended is about how far RTT may be off. 0 if it is not known.
	Deviation time.Duration
	Ended     int
	// InFlight is the most units that were in flight in the window.
	InFlight int
	// Mean is how many units were in flight on average. 0 if it is not known.
	Mean float64
	// Crowd is how many units were in flight on average while a unit was in flight: the mean over the units' time, where Mean is
	// that over all time. Where work comes in bursts, Mean is mostly that of the pauses. 0 if it is not known.
	Crowd float64
	// Cancelled is the share of outcomes, 0 to 1, whose clients did not wait any longer: those [Cancelled], or [Dropped] by a
	// deadline, after more time than all that succeeded in this window and the one before took. What fails for another reason is
	// now and then the longest too: how often follows from what was Cancelled sooner, and is taken off. Where fewer than one in
	// five succeed, all that was Cancelled counts, but not what took less than half of the usual. Where the share is not small, the
	// true mean time is longer than RTT.
	Cancelled float64
	// Dropped says that at least one in four of the window's outcomes were [Dropped], or that
	// Cancelled is more than half.
	Dropped bool
	// Max is the upper bound of the limit at present. 0 means that there is none.
	Max int
}

// Algorithm finds a limit from samples. It is a state machine that reads no clock and
// knows no key: the same samples give the same limits. Update is called once for each
// window of a key's samples, from one goroutine at a time and under no lock, and
// returns the limit from now on. It must not call the limiter. A limit below 1 counts
// as 1, and one above the key's upper bound as that.
type Algorithm interface {
	Update(s Sample) (limit int)
}

// Adaptive makes an Algorithm for a key. It is called for each key that is first seen, and
// once by [New]. An Algorithm with a method Limit() int says by it where it starts;
// others start at 20. One with a method Window() int says by it how many outcomes a window
// has at least; those of others have 20.
type Adaptive func() Algorithm

// startLimit is where an algorithm starts that says nothing else.
const startLimit = 20

// validate makes one algorithm, and asks it what is wrong with it.
func (a Adaptive) validate(option string) error {
	if a == nil {
		return nil
	}
	alg := a()
	if alg == nil {
		return fmt.Errorf("inflight: Options.%s returns nil", option)
	}
	if v, ok := alg.(interface{ validate() error }); ok {
		return v.validate()
	}
	return nil
}

// learner is a key's algorithm and the window that it will hear of next. Its key's lock
// guards it, but alg and due, which belong to who has been told to update.
type learner struct {
	alg      Algorithm
	at       int    // what the algorithm has said last
	order    uint64 // of the work that began last
	inFlight int    // units
	high     int    // the highest limit since the window.low
	draining bool   // the limit was lowered, and more is in flight
	window   window
	updating bool
	due      Sample
	each     func(f func(order uint64, start time.Duration) bool) // what is in flight, per key the newest first until f returns false
	busy     []*slot                                              // with Options.Shared: keys with something in flight
	report   func(old, new int)                                   // says that the limit has changed; nil if nobody asks
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

// limit is what has been learnt, within the bound.
func (l *learner) limit(bound int) int { return min(l.at, bound) }

// began notes that work has begun, and returns its place among all work. Work that begins
// while a raised limit fills finds a shorter queue than that limit will have, so the
// window begins anew once it is full.
func (l *learner) began(now time.Duration, inFlight, limit int) uint64 {
	l.window.lasts(now, l.inFlight)
	l.inFlight = inFlight
	l.window.peak = max(l.window.peak, inFlight)
	l.order++
	if !l.window.open && l.order == 1 {
		l.window.since, l.window.begun = now, now
	}
	if l.window.filling && inFlight >= limit {
		fresh := l.window.fresh
		l.window.filling = false
		l.window.renew(now, l.order-1, inFlight, l.each)
		l.window.fresh = fresh
	}
	return l.order
}

// ended notes that work has ended, and reports whether the caller is to take the window
// and update the algorithm.
func (l *learner) ended(now time.Duration, w *work, o Outcome) bool {
	l.window.lasts(now, l.inFlight)
	l.inFlight -= w.n
	if l.draining && l.inFlight <= l.at {
		l.drained(now)
		return false
	}
	return l.window.add(now, w.start, w.order, o) && !l.updating && l.window.over(now)
}

// take ends the window. Nobody else updates the algorithm until updating is false again.
func (l *learner) take(now time.Duration, bound, inFlight int) {
	w := &l.window
	l.due = w.sample(now, l.each)
	l.due.Max = bound
	if w.done > 0 {
		w.usual = w.total / time.Duration(w.done)
	}
	w.filling = false
	w.renew(now, l.order, inFlight, l.each)
	l.updating = true
}

// changed notes that the limit has changed. What began under a limit that was much higher has met a
// longer queue, so it does not count from then on; nor does what begins until what is in flight is
// down to the limit.
func (l *learner) changed(now time.Duration, old, limit int) {
	l.high = max(l.high, old)
	l.window.filling, l.draining = limit > old, false
	switch {
	case float64(limit) > higher*float64(old): // a probe is over
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
	l.window.renew(now, l.order, l.inFlight, l.each)
	l.window.fresh = true
}

// eachOfBusy calls f with the work of each key, the one that began last first, until f returns
// false.
func (l *learner) eachOfBusy(f func(order uint64, start time.Duration) bool) {
	for _, s := range l.busy {
		s.works.each(f)
	}
}

// idleLocked takes out a key that has nothing in flight any more.
func (l *learner) idleLocked(s *slot) {
	end := len(l.busy) - 1
	last := l.busy[end]
	l.busy[s.busyAt], last.busyAt = last, s.busyAt
	l.busy[end] = nil
	l.busy, s.busyAt = l.busy[:end], -1
}
