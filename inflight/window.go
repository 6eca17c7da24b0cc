package inflight

import "time"

// A window of samples is over with the first outcome that finds it at least minWindow
// long and with at least minSamples outcomes in it.
const (
	minWindow  = 100 * time.Millisecond
	minSamples = 20

	// longest is what a single time counts at most, so that a sum does not overflow.
	longest = 24 * time.Hour

	// dropShare is the part of outcomes, one in so many, that makes a window Dropped:
	// some failures among many successes do not say that the backend is overloaded,
	// and a limit that is lower does not cure them.
	dropShare = 4
)

// window gathers what one sample is made of.
type window struct {
	start   time.Duration
	open    bool // start is set
	done    int
	dropped int
	total   time.Duration // of done
	peak    int
}

// add takes in an outcome, and reports whether it counts.
func (w *window) add(now, rtt time.Duration, o Outcome) bool {
	switch o {
	case Success:
		w.done++
		w.total += min(max(0, rtt), longest)
	case Dropped:
		w.dropped++
	default:
		return false
	}
	if !w.open {
		w.start, w.open = now, true
	}
	return true
}

func (w *window) over(now time.Duration) bool {
	return w.done+w.dropped >= minSamples && now-w.start >= minWindow
}

func (w *window) sample() Sample {
	s := Sample{InFlight: w.peak, Dropped: w.dropped*dropShare >= w.done+w.dropped}
	if w.done > 0 {
		s.RTT = w.total / time.Duration(w.done)
	}
	return s
}
