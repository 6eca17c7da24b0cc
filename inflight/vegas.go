package inflight

import (
	"math"
	"time"
)

// VegasOptions are the settings of [Vegas]. Nil and the zero VegasOptions mean the defaults. An invalid value is an error
// of [New].
type VegasOptions struct {
	// Min is the limit below which the algorithm does not go, unless the key's upper bound is lower. It defaults to 1.
	Min int

	// Start is the initial limit. It defaults to 20.
	Start int

	// Window is the minimum number of outcomes in a window. A larger window makes the limit steadier and slower to
	// adapt. It defaults to 20.
	Window int

	// Timeout is the mean latency of successes above which a window counts as Dropped. Such a latency never becomes the
	// baseline. If zero, there is none.
	Timeout time.Duration
}

// Vegas keeps a queue of 3 to 5 times log10(limit) in the backend: a shorter one than [Gradient], with less
// reserve for latency that varies by itself.
func Vegas(opts *VegasOptions) Adaptive {
	var o VegasOptions
	if opts != nil {
		o = *opts
	}
	t := newTuning("Vegas", o.Min, o.Start, o.Window, o.Timeout)
	return func() Algorithm { return &vegas{level: newLevel(t)} }
}

// vegas estimates the queue as limit × (1 − baseline / latency). It is the algorithm of L. S. Brakmo et al., "TCP Vegas",
// SIGCOMM 1994, with the thresholds of Netflix's concurrency-limits 0.5.4. Unlike there, if the queue is far too long, each
// window lowers the limit by a fourth of the excess, and the baseline is probed.
type vegas struct {
	level
	base baseline
}

// vegasShare of the limit is the least unit of the thresholds, and more where latency varies by itself: of a
// large limit, log10 would be lost in the noise.
const (
	vegasShare = 0.06
	noiseShare = 0.4 // of the standard deviation of latency
	mostShare  = 0.12
)

func (v *vegas) validate() error { return v.tuning.validate() }

// target is the limit with a queue of the right length.
func (v *vegas) target(l load) float64 {
	unit := max(1, math.Log10(l.limit), l.limit*min(mostShare, max(vegasShare, noiseShare*math.Sqrt(l.noise))))
	switch queue := l.inFlight - l.busy; {
	case queue < unit:
		return l.free() + l.busy + l.bears(max(6*unit, 0.9*l.limit))
	case queue < 3*unit, queue > 5*unit, l.patience < 1:
		return l.free() + l.busy + l.bears(4*unit)
	}
	return l.limit
}

// Update returns the limit after a window.
func (v *vegas) Update(s Sample) int { return v.base.update(&v.level, s, v.target) }
