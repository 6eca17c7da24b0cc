package inflight

import "math"

// Vegas estimates how much of what is in flight is a queue, limit × (1 − baseline /
// latency), and keeps that between 3 and 5 times log10(limit): a short queue, and so a
// lower latency than by [Gradient], and less reserve for latency that varies by itself. From
// L. S. Brakmo et al., "TCP Vegas", SIGCOMM 1994, with the thresholds of Netflix's
// concurrency-limits 0.5.4.
//
// Where the queue is far too long, a fourth of the excess goes in each window, instead of
// log10(limit). The baseline is not the lowest latency ever seen, but probed, as
// Gradient's is.
//
// It has the options [Min], [Max], [Start] and [Window].
func Vegas(opts ...Option) Adaptive {
	t := tune("Vegas", opts)
	return func() Algorithm { return &vegas{level: newLevel(t)} }
}

type vegas struct {
	level
	base baseline
}

// vegasShare of the limit is the unit of the thresholds where log10(limit) is less: of a
// large limit, log10 would be lost in the noise of the baseline.
const vegasShare = 0.06

func (v *vegas) validate() error { return v.has(false, false) }

// target is the limit with a queue of the right length, if a part of the limit is no queue.
func (v *vegas) target(limit, slope float64) float64 {
	unit := max(1, math.Log10(limit), limit*vegasShare)
	switch queue := limit * (1 - slope); {
	case queue < unit:
		return limit*slope + max(6*unit, 0.9*limit)
	case queue < 3*unit, queue > 5*unit:
		return limit*slope + 4*unit
	}
	return limit
}

// Update returns the limit after a window.
func (v *vegas) Update(s Sample) int { return v.base.update(&v.level, s, v.target) }
