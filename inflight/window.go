package inflight

import (
	"math"
	"math/bits"
	"time"
)

// A window ends at an outcome, once three conditions hold. It has lasted for minWindow.
// It has as many outcomes as the algorithm wants. And three in four of its first requests
// have ended. So a window lasts as long as its requests do, and includes the slow ones.
const (
	minWindow  = 100 * time.Millisecond
	minSamples = 20

	// patience is how many mean times a window waits for its first requests.
	// Some may never end: for example streams, or unreleased permits.
	patience = 8

	// lower is a fraction of the highest limit so far. Latency under a limit below it is not comparable.
	lower = 0.8
	// higher is a multiple of the previous limit. Latency under a limit above it is not comparable.
	higher = 2.2

	// longest is the maximum of a single time. A longer time counts as longest.
	longest = 24 * time.Hour

	// A window is Dropped if one in dropShare of its outcomes is Dropped. Fewer failures are no sign of overload, and a
	// lower limit does not cure them.
	dropShare = 4

	// hungDeviations is the least distance of hung work from the successes' mean time, in their standard
	// deviations. By Cantelli's inequality, at most one in 17 values of any distribution is so far above the mean.
	hungDeviations = 4

	// hungTail is a number of expected slow successes. If hung work were merely all work's slow part,
	// and hungTail slow successes were expected in a window, there would be none in one case in fifty.
	hungTail = 4

	// leastGood bounds the number of outcomes for each success, while some calls hang.
	leastGood = 20
)

// window gathers one sample's data, mostly from work begun within
// the window. Earlier work has met another limit and another queue.
type window struct {
	count   int           // outcomes needed
	before  uint64        // the number of the last work before it
	start   time.Duration // the end of the previous window, or the beginning of the first work whose outcome counts
	open    bool          // whether start is set
	quick   int           // how many of its first count calls have ended
	done    int           // successes
	good    sums          // the successes, including earlier work's
	earlier sums          // good in the previous window
	total   time.Duration // the sum of the times of done
	longest time.Duration // the longest success, including earlier work's
	known   time.Duration // longest in the previous window
	late    int           // cancelled calls longer than each success of this window and the previous one
	unsure  int           // calls cancelled before that time, but not at once
	dropped int           // calls ended as Dropped
	older   int           // outcomes of earlier work, if not too old to count
	refused int           // the dropped part of older
	expired int           // the part of dropped that took as long as work counted in late
	hung    int           // the hung part of late and expired
	stuck   int           // hung calls, including earlier work
	stalled int           // stuck in the previous window
	hanging time.Duration // until this instant, calls count as hanging
	other   float64       // units × time, in ns, of all ended work except hung calls
	peak    int
	since   time.Duration // held is counted up to this instant
	held    float64       // units × time, in ns
	crowd   float64       // units² × time, in ns
	begun   time.Duration // held is counted from this instant on
	filling bool          // whether the limit was raised and the work in flight has not reached it yet
	usual   time.Duration // the mean time of the previous window
	low     time.Duration // when the limit was last lowered by much
	fresh   bool          // whether this is the first window since low
	from    time.Duration // work from before this instant is too old to count in times
	times   *times
	sized   sized
}

// sized holds sums over successes with an amount, including earlier work.
type sized struct {
	known                                      int // successes with an amount
	n                                          int // how many of these began after the limit was last lowered by much
	time, amount, squares, products, quadratic float64
	base                                       fixedPart
}

// fixedPart finds the part of a call's time that does not depend on its amount, for example the time until the
// first token. It expresses this time as an amount. Otherwise windows of short answers would look like a slower
// backend's. The part comes from a straight line through the times of recent windows. Each window's times are
// divided by its time per amount, so the load plays no part. The unit of amounts is the mean of the first window.
type fixedPart struct {
	unit                             float64
	windows, time, amount, with, own float64 // sums over recent windows: of their means, their covariance and their variance
	part                             float64
}

const (
	fixedMemory = 0.95 // the weight of all earlier windows
	fixedMost   = 100  // in mean amounts; with a larger part, time would not depend on the amount
)

// add records a window.
func (f *fixedPart) add(z *sized) {
	n := float64(z.n)
	if f.unit == 0 {
		f.unit = z.amount / n
	}
	time, amount, each := z.time/n, z.amount/n, z.amount/max(1, z.time)
	for _, x := range []struct {
		sum *float64
		of  float64
	}{
		{&f.windows, 1}, {&f.time, time * each}, {&f.amount, amount}, {&f.with, (z.products/n - time*amount) * each}, {&f.own, z.quadratic/n - amount*amount},
	} {
		*x.sum = fixedMemory**x.sum + x.of
	}
	f.part = 0
	if mean := f.amount / f.windows; f.own > 0.001*f.windows*mean*mean { // otherwise all amounts are alike
		slope := max(1.0/fixedMost, f.with/f.own)
		f.part = max(0, (f.time-slope*f.amount)/f.windows/slope)
	}
}

// addSized records a success with an amount.
func (w *window) addSized(d, start time.Duration, amount float64) {
	z := &w.sized
	if !(amount > 0 && amount <= mostFigure) {
		return
	}
	z.known++
	if start < w.low { // for most of the time, a higher limit may have been in force
		return
	}
	t := float64(d)
	z.n++
	z.time += t
	z.amount += amount
	z.squares += t * t
	z.products += t * amount
	z.quadratic += amount * amount
}

// moments returns the time for the unit of amounts, and the standard deviation of single calls from this time.
func (z *sized) moments() (mean, deviation float64) {
	z.base.add(z)
	n, part := float64(z.n), z.base.part
	amount := z.amount + n*part
	r := z.time / amount
	v := max(0, z.squares-2*r*(z.products+part*z.time)+r*r*(z.quadratic+2*part*z.amount+n*part*part)) / n // the variance of time - r × amount
	unit := z.base.unit + part
	return r * unit, math.Sqrt(v) * unit / (amount / n)
}

// sums holds sums over times.
type sums struct {
	n       int
	total   time.Duration
	squares float64 // in ns²
}

func (s *sums) add(d time.Duration) {
	s.n++
	s.total = plus(s.total, d)
	s.squares += float64(d) * float64(d)
}

func newWindow(count int) window {
	return window{count: count, filling: true, fresh: true, hanging: math.MinInt64, low: math.MinInt64, times: new(times)}
}

// renew begins the next window, an empty one.
func (w *window) renew(now time.Duration, seq uint64, inFlight int, each eachWork) {
	*w = window{count: w.count, before: seq, start: now, since: now, begun: now, open: true, peak: inFlight, filling: w.filling, usual: w.usual, known: w.longest, low: w.low, earlier: w.good, stalled: w.stuck, hanging: w.hanging, times: w.times, sized: sized{base: w.sized.base}}
	w.times.reset(w.usual)
	w.from = max(w.low, now-patience*w.usual)
	each(func(_ uint64, start time.Duration) bool {
		if start < w.from {
			return false
		}
		w.times.entered(now - start)
		return true
	})
}

// eachWork calls f with the work in flight.
type eachWork func(f func(seq uint64, start time.Duration) bool)

// lasts counts the work in flight until now.
func (w *window) lasts(now time.Duration, inFlight int) {
	if now > w.since {
		held := float64(inFlight) * float64(now-w.since)
		w.held += held
		w.crowd += held * float64(inFlight)
		w.since = now
	}
}

// add records the outcome of work, and reports whether it counts. seq is the work's number.
func (w *window) add(now, start time.Duration, seq uint64, units int, o Outcome) bool {
	rtt := min(max(0, now-start), longest)
	if o == Success {
		w.good.add(rtt)
	}
	hung := (o == Dropped || o == Cancelled) && w.hangs(rtt)
	if hung {
		w.stuck++
		// If hung work were the slow part of all work, some successes would be as slow, in all but one case of fifty.
		if n, h := w.good.n+w.earlier.n, w.stuck+w.stalled; n*h >= hungTail*(n+h) {
			w.hanging = max(w.hanging, now+rtt)
		}
	} else {
		w.other += float64(units) * float64(rtt)
	}
	if seq <= w.before {
		if start >= w.from {
			w.addOlder(rtt, o)
		}
		switch {
		case start < w.from:
		case o == Success:
			w.longest = max(w.longest, rtt)
			w.times.ended(rtt)
		case o == Cancelled && rtt <= max(w.longest, w.known), o > Cancelled, o == Ignored:
			w.times.left(w.begun - start)
		default:
			w.times.lasts(rtt)
		}
		return false
	}
	if seq <= w.before+uint64(w.count) {
		w.quick++
	}
	switch o {
	case Success:
		w.done++
		w.total = plus(w.total, rtt)
		w.longest = max(w.longest, rtt)
		w.times.entered(0)
		w.times.ended(rtt)
	case Dropped:
		w.dropped++
		if rtt > max(w.longest, w.known, w.usual) && w.usual > 0 { // a deadline has passed
			w.expired++
			if hung {
				w.hung++
			}
			w.times.entered(0)
			w.times.lasts(rtt)
		}
	case Cancelled:
		switch {
		case rtt > max(w.longest, w.known, w.usual/2):
			w.late++
			if hung {
				w.hung++
			}
			w.times.entered(0)
			w.times.lasts(rtt)
		case rtt <= w.usual/2: // load did not cause this failure
			return false
		default:
			w.unsure++
		}
	default:
		return false
	}
	if !w.open {
		w.start, w.open = start, true
	}
	return true
}

// addOlder adds the outcome of earlier work to the share of drops. Without such outcomes, quick drops would
// be overrepresented: most begin and end within the window, but successes after a queue do not. A lower limit
// would remove the queue and with it the excess, so the excess would look like drops from overload. Drops do
// not count if they take longer than every success. They are not overrepresented, and hang at any limit.
func (w *window) addOlder(rtt time.Duration, o Outcome) {
	switch {
	case o == Success, o == Cancelled && rtt > w.usual/2:
		w.older++
	case o == Dropped && rtt <= max(w.longest, w.known):
		w.older++
		w.refused++
	}
}

// plus adds two non-negative times. If the sum overflows, it returns the longest time.
func plus(a, b time.Duration) time.Duration { return a + min(b, math.MaxInt64-a) }

// hangs reports whether failed work has hung. It is compared with this window's successes and the
// previous one. Hung work took longer than each, longer than twice their mean, and more than
// hungDeviations standard deviations longer than their mean. A queue does not explain such a time: if
// clients leave a queue, or timeouts end the wait, other work succeeds after nearly as long a wait.
func (w *window) hangs(rtt time.Duration) bool {
	n := float64(w.good.n + w.earlier.n)
	if n == 0 || rtt <= max(w.longest, w.known) {
		return false
	}
	mean := (float64(w.good.total) + float64(w.earlier.total)) / n
	variance := max(0, (w.good.squares+w.earlier.squares)/n-mean*mean)
	return float64(rtt) > mean+max(mean, hungDeviations*math.Sqrt(variance))
}

// successesAlone reports whether some calls hang while others succeed. Then only the successes show the backend's latency. A
// hanging call takes equally long at any limit. If hung calls keep the backend busy, the successes include the wait for it.
//
// After a call has hung, the result is true for as long as the call took. Hung calls begin together, so they also
// end together, in windows far apart. If hardly any call succeeds, the whole backend hangs, and the result is false.
func (w *window) successesAlone(now time.Duration, outcomes int) bool {
	return now < w.hanging && w.good.n > 0 && w.good.n*leastGood >= outcomes
}

// cancelled estimates how many calls ended because a client left.
// If only the successes count, the estimate excludes hung work.
//
// A client leaves after a certain time, and all successful work has ended within it. Work that fails for
// another reason takes at most as long as successful work. Some may be counted in late: about unsure /
// done, and rarely twice as much. So cancelled subtracts 2 × unsure / done. If fewer than one in five calls
// succeed, it counts all: clients of different patience may all leave before the longest success would end.
func (w *window) cancelled(successesAlone bool) float64 {
	late := w.late + w.expired
	if successesAlone {
		late -= w.hung
	}
	if all := late + w.unsure; all > 4*w.done {
		return float64(all)
	}
	return max(0, float64(late)-2*float64(w.unsure)/float64(max(1, w.done)))
}

func (w *window) over(now time.Duration) bool {
	lasted, n := now-w.start, w.done+w.late+w.unsure+w.dropped
	if n < w.count || lasted < minWindow {
		return false
	}
	missing := w.count / 4
	if w.fresh { // no earlier window contains the slow calls
		missing = w.count / 20
	}
	return w.quick >= w.count-missing || lasted/patience >= w.total/time.Duration(max(1, w.done))
}

// sample returns the window's Sample.
func (w *window) sample(now time.Duration, each eachWork) Sample {
	n := w.done + w.late + w.unsure + w.dropped
	alone := w.successesAlone(now, n)
	left := w.cancelled(alone)
	all, dropped := n+w.older, w.dropped+w.refused
	s := Sample{InFlight: w.peak, Dropped: dropped*dropShare >= all || 2*left > float64(n), Outcomes: all}
	if n > 0 {
		s.Cancelled, s.Drops = left/float64(n), float64(dropped)/float64(all)
	}
	if now > w.begun {
		s.Mean = w.held / float64(now-w.begun)
		s.Goodput = float64(w.good.n) / (now - w.begun).Seconds()
	}
	if w.good.n > 0 {
		s.Served = w.good.total / time.Duration(w.good.n)
	}
	if w.held > 0 {
		s.Crowd = w.crowd / w.held
	}
	switch {
	case alone:
		mean := float64(s.Served)
		s.RTT, s.Deviation, s.Ended = s.Served, time.Duration(math.Sqrt(max(0, w.good.squares/float64(w.good.n)-mean*mean))), w.good.n
		s.Hung = max(0, s.Mean-w.other/float64(max(1, now-w.begun)))
	case w.done+w.late+w.expired > 0:
		each(func(seq uint64, start time.Duration) bool {
			if start < w.from && seq <= w.before {
				return false
			}
			if seq > w.before {
				w.times.entered(0)
			}
			w.times.lasts(min(max(0, now-start), longest))
			return true
		})
		s.RTT, s.Deviation, s.Median, s.Ended = w.times.moments()
	}
	if z := &w.sized; z.n > 0 && z.known >= w.good.n {
		mean, deviation := z.moments()
		s.RTT, s.Deviation, s.Median, s.Ended = time.Duration(mean), time.Duration(deviation), 0, z.n
		s.sized = true
	}
	return s
}

// times is a histogram of work's age, in steps of an eighth of the age or less. For each age it counts the work entering
// the window, ending, and lasting longer. Wider steps would not separate work about to end from work just begun.
type times struct {
	unit time.Duration // the width of the first step; 0 until a time is known
	at   [1 + 11*8]struct {
		entered, ended, lasts uint32
		endedSum, last        time.Duration
	}
}

// span is the usual time of work, in first steps.
const span = 32

// reset clears the histogram and sets its steps' width for the usual time of work.
func (t *times) reset(usual time.Duration) { *t = times{unit: usual / span} }

// step returns a time's step.
func (t *times) step(d time.Duration) int {
	if d <= 0 {
		return 0
	}
	if t.unit <= 0 {
		t.unit = max(1, d/span)
	}
	r := uint64(d) * 8 / uint64(t.unit)
	n := bits.Len64(r) - 4
	if n < 0 {
		return 0
	}
	return min(1+8*n+int(r>>n&7), len(t.at)-1)
}

func (t *times) entered(d time.Duration) { t.at[t.step(d)].entered++ }

// left removes failed work that entered at an age. Such work shows nothing about the time of work. If it
// counted as lasting longer, the mean would be too high, because it would have ended at about this age.
func (t *times) left(d time.Duration) { t.at[t.step(d)].entered-- }

func (t *times) ended(d time.Duration) {
	x := &t.at[t.step(d)]
	x.ended++
	x.endedSum = plus(x.endedSum, d)
}

func (t *times) lasts(d time.Duration) {
	x := &t.at[t.step(d)]
	x.lasts++
	x.last = plus(x.last, d)
}

// moments returns the mean time, its standard deviation, the median, and the number of ends. The estimate is a life
// table with delayed entry, by E. L. Kaplan and P. Meier, "Nonparametric estimation from incomplete observations", JASA
// 1958. At each age it takes the share of ended work, among the work that reached this age in the window.
//
// So if work has not ended, or its client did not wait, it counts like work known to have taken
// longer. If there is none, it counts with its time so far. Earlier work counts from its age at the
// window's beginning. A mean over work begun and ended within the window would favour quick work.
func (t *times) moments() (mean, deviation, median time.Duration, ended int) {
	sum, squares, left, last := 0.0, 0.0, 1.0, 0.0 // left is the lasting part of all work
	n := 0
	for i := range t.at {
		x := &t.at[i]
		n += int(x.entered)
		if n <= 0 || x.ended+x.lasts == 0 {
			continue
		}
		risk := n
		if x.lasts > 0 {
			last = float64(x.last) / float64(x.lasts)
			if x.ended > 0 && last < float64(x.endedSum)/float64(x.ended) {
				risk = max(int(x.ended), n-int(x.lasts)) // lasting work has not reached the age at which the others ended
			}
		}
		if x.ended > 0 {
			part := left * float64(x.ended) / float64(risk)
			each := float64(x.endedSum) / float64(x.ended)
			sum += part * each
			squares += part * each * each
			if left -= part; left <= 0.5 && median == 0 {
				median = time.Duration(each)
			}
			ended += int(x.ended)
		}
		if n -= int(x.ended + x.lasts); left <= 0 {
			left = 0
			break
		}
	}
	sum += left * last
	squares += left * last * last
	return time.Duration(sum + 0.5), time.Duration(math.Sqrt(max(0, squares-sum*sum))), median, ended
}
