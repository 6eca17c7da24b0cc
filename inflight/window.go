package inflight

import (
	"math/bits"
	"time"
)

// A window is over with the first outcome that finds it at least minWindow long, with at
// least so many outcomes in it as the algorithm wants, and with three in four of its first
// requests ended: so it lasts as long as requests do, and is not made of the quick ones.
const (
	minWindow  = 100 * time.Millisecond
	minSamples = 20

	// patience is how many times as long as the mean a window waits for its first requests: some
	// may be streams, or permits that are never released.
	patience = 8

	// longest is what a single time counts at most, so that a sum does not overflow.
	longest = 24 * time.Hour

	// dropShare is the part of outcomes, one in so many, that makes a window Dropped:
	// some failures among many successes do not say that the backend is overloaded,
	// and a limit that is lower does not cure them.
	dropShare = 4
)

// window gathers what one sample is made of: the outcomes of work that began within it. What
// began before has met another limit and another queue.
type window struct {
	count   int           // outcomes that it needs
	before  uint64        // the work that had begun before it
	start   time.Duration // when the first work began whose outcome counts, or the window before ended
	open    bool          // start is set
	quick   int           // of its first work, as much as count, has ended
	done    int           // succeeded
	total   time.Duration // of done
	late    int           // was cancelled after longer than usual
	dropped int
	peak    int
	filling bool          // the limit was raised, and what is in flight has not yet reached it
	usual   time.Duration // mean of the window before
	times   *times
}

func newWindow(count int) window { return window{count: count, filling: true, times: new(times)} }

// renew begins the window after this one, in which nothing has happened.
func (w *window) renew(now time.Duration, order uint64, inFlight int) {
	*w = window{count: w.count, before: order, start: now, open: true, peak: inFlight, filling: w.filling, usual: w.usual, times: w.times}
	*w.times = times{}
}

// add takes in the outcome of work, and reports whether it counts. Order is its place among
// all work of the learner.
func (w *window) add(now, start time.Duration, order uint64, o Outcome) bool {
	if order <= w.before {
		return false
	}
	if order <= w.before+uint64(w.count) {
		w.quick++
	}
	switch rtt := min(max(0, now-start), longest); o {
	case Success:
		w.done++
		w.total += rtt
		w.times.ended(rtt)
	case Dropped:
		w.dropped++
	case Cancelled:
		w.times.lasts(rtt)
		if w.done > 0 && rtt <= w.total/time.Duration(w.done) || w.done == 0 && rtt <= w.usual {
			return false
		}
		w.late++
	default:
		return false
	}
	if !w.open {
		w.start, w.open = start, true
	}
	return true
}

func (w *window) over(now time.Duration) bool {
	lasted, n := now-w.start, w.done+w.late+w.dropped
	if n < w.count || lasted < minWindow {
		return false
	}
	return w.quick >= w.count-w.count/4 || lasted/patience >= w.total/time.Duration(max(1, w.done))
}

// sample is what the window has shown. Under way are the ages of what began within it and has
// not ended.
func (w *window) sample(underWay func(yield func(age time.Duration) bool)) Sample {
	n := w.done + w.late + w.dropped
	s := Sample{InFlight: w.peak, Dropped: w.dropped*dropShare >= n || 2*w.late > n}
	if w.done+w.late > 0 {
		for age := range underWay {
			w.times.lasts(min(max(0, age), longest))
		}
		if s.RTT = w.times.mean(); s.RTT == 0 && w.done > 0 {
			s.RTT = w.total / time.Duration(w.done)
		}
	}
	return s
}

// times are how long work has taken, or takes at least, in steps of about 1.4: some that ended
// and some that did not in each.
type times [2 * 38]struct {
	ended, lasts   uint32
	endedSum, last time.Duration
}

// timeStep returns the index of a time.
func timeStep(d time.Duration) int {
	v := uint64(d)>>10 | 1
	n := bits.Len64(v)
	if n == 1 {
		return 0
	}
	return min(2*(n-1)+int(v>>(n-2)&1), len(times{})-1)
}

func (t *times) ended(d time.Duration) {
	x := &t[timeStep(d)]
	x.ended++
	x.endedSum += d
}

func (t *times) lasts(d time.Duration) {
	x := &t[timeStep(d)]
	x.lasts++
	x.last += d
}

// mean is the mean time, or 0 if all work has ended. It is by E. L. Kaplan and P. Meier, "Nonparametric estimation from
// incomplete observations", JASA 1958: work that has not ended, or whose client did not
// wait, counts as long as the work that is known to have taken longer, and as long as it has
// lasted if there is none.
func (t *times) mean() time.Duration {
	n, lasts := uint32(0), uint32(0)
	for i := range t {
		n += t[i].ended + t[i].lasts
		lasts += t[i].lasts
	}
	if lasts == 0 {
		return 0
	}
	mean, left := 0.0, 1.0 // left is the part of all work that takes longer
	for i := range t {
		if x := &t[i]; x.ended+x.lasts > 0 {
			each := left / float64(n)
			mean += each * float64(x.endedSum)
			left -= each * float64(x.ended)
			if n -= x.ended + x.lasts; n == 0 && x.lasts > 0 {
				mean += left * float64(x.last) / float64(x.lasts)
			}
		}
	}
	return time.Duration(mean + 0.5)
}
