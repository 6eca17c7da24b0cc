package inflight

import "time"

// A window of samples is over with the first outcome that finds it at least minWindow
// long and with at least minSamples outcomes in it.
const (
	minWindow  = 100 * time.Millisecond
	minSamples = 10

	// dropShare is the part of outcomes that makes a window Dropped: single failures
	// among many successes do not say that the backend is overloaded.
	dropShare = 10
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

func (w *window) add(now, rtt time.Duration, o Outcome) {
	if !w.open {
		w.start, w.open = now, true
	}
	switch o {
	case Success:
		w.done++
		w.total += max(0, rtt)
	case Dropped:
		w.dropped++
	}
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
