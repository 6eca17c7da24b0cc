package inflight

import (
	"math"
	"time"
)

// AIMDOptions are the settings of [AIMD]. Nil and the zero AIMDOptions mean the defaults. An invalid value is an error of
// [New].
type AIMDOptions struct {
	// Min is the limit below which the algorithm does not go, unless the key's upper bound is lower. It defaults to 1.
	Min int

	// Start is the initial limit. It defaults to 20.
	Start int

	// Window is the minimum number of outcomes in a window. A larger window makes the limit steadier and slower to
	// adapt. It defaults to 20.
	Window int

	// Timeout is the mean latency above which a window counts as Dropped. Work of clients that leave counts; calls that
	// hang, many times as long as the successes take, do not. If zero, latency does not count.
	Timeout time.Duration
}

// AIMD raises the limit step by step while the backend copes, and lowers it by a tenth in each window that is Dropped.
// It needs a definition of too slow: report [Dropped] outcomes, or set Timeout.
func AIMD(opts *AIMDOptions) Adaptive {
	var o AIMDOptions
	if opts != nil {
		o = *opts
	}
	t := newTuning("AIMD", o.Min, o.Start, o.Window, o.Timeout)
	return func() Algorithm { return &aimd{level: newLevel(t)} }
}

// aimd is the algorithm of V. Jacobson, "Congestion avoidance and control", SIGCOMM 1988, with the factor of Netflix's
// concurrency-limits 0.5.4. The limit is found, and found again, within some 20 windows.
type aimd struct {
	level
	falling   int     // bad windows in a row
	high      float64 // the limit at which the last fall began; 0 if there was none
	successes float64 // since latency was last known well enough
	latency   float64 // the sum of their times, in timeouts
}

const (
	backoff   = 0.9
	leastCut  = 0.5
	fastStep  = 0.25
	surge     = 0.5
	smallStep = 0.05
	tiny      = 0.5
	near      = 0.7 // of Timeout
	leap      = 3   // times the limit, where it was far higher before, and nothing is slow
	known     = 0.7 // of high: below it, the limit was good before
	beyond    = 1.2 // times high: above it, the backend has grown
	hung      = 2   // times the latency of successes, the mean of all work: some of it hangs
)

func (a *aimd) validate() error { return a.tuning.validate() }

// Update returns the limit after a window.
func (a *aimd) Update(s Sample) int {
	s = s.sane()
	slow, enough := a.slowness(s)
	lower, restore := a.drops.add(s, a.limit, a.min)
	switch {
	case lower, slow > 1, s.Cancelled > mostly:
		if a.falling++; a.falling == 1 {
			a.high = a.limit
		}
		to := backoff
		if a.falling > 1 && slow > 1 { // one window that is far too slow may be an accident
			to = max(leastCut, min(to, 1/slow))
		}
		return a.set(a.limit*to, s.Max)
	case restore > 0:
		a.falling = 0
		return a.set(restore, s.Max)
	}
	if !enough {
		return a.set(a.limit, s.Max)
	}
	a.falling = 0
	if a.idle(s) {
		return a.set(a.limit, s.Max)
	}
	return a.set(a.drops.grow(a.limit, a.limit+a.step(slow)), s.Max)
}

// slowness returns the mean latency since it was last known well enough, in timeouts, and whether it is known now. Where
// most calls are dropped, a window has few successes, and their mean may differ by chance: so it takes as many successes as
// a window has outcomes, or latency so far above Timeout that chance does not explain it.
//
// Clients that leave a queue count, since they have waited about as long as the successes. Calls that hang take many times
// as long, at any limit: where they raise the mean that far, the successes count alone.
func (a *aimd) slowness(s Sample) (slow float64, enough bool) {
	if a.timeout <= 0 {
		return 0, true
	}
	latency := s.served()
	if 0 < s.RTT && s.RTT < hung*latency {
		latency = s.RTT
	}
	n := float64(a.window) // if the number of outcomes is not known
	if s.Outcomes > 0 {
		n = float64(s.Outcomes) * (1 - s.Drops)
	}
	a.successes += n
	a.latency += n * float64(latency) / float64(a.timeout)
	if a.successes < 1 {
		return 0, false
	}
	slow = a.latency / a.successes
	certain := slow > 1 && (1-1/slow)*math.Sqrt(a.successes) > 2 // latency differs by about its mean
	if a.successes < float64(a.window) && !certain {
		return 0, false
	}
	a.successes, a.latency = 0, 0
	return slow, true
}

// step returns the increase of the limit after a good window.
func (a *aimd) step(slow float64) float64 {
	switch {
	case a.limit < known*a.high && slow < 0.5:
		return min(leap*a.limit, max(1, known*a.high-a.limit))
	case slow >= near:
		return tiny
	case a.high > 0 && (a.limit < known*a.high || a.limit > beyond*a.high):
		return max(1, a.limit*surge)
	case a.high == 0:
		return max(1, a.limit*fastStep)
	}
	return max(1, a.limit*smallStep)
}
