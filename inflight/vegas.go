package inflight

import "math"

// Vegas estimates how much of what is in flight is a queue, limit × (1 − baseline /
// latency), and keeps that between 3 and 6 times log10(limit): a short queue, and so a
// lower latency than by [Gradient], and less reserve for latency that varies by itself. From
// L. S. Brakmo et al., "TCP Vegas", SIGCOMM 1994, with the thresholds of Netflix's
// concurrency-limits 0.5.4.
//
// Where the queue is far too long, a fourth of the excess goes in each window, instead of
// log10(limit). The baseline is not the lowest latency ever seen, but probed, as
// Gradient's is.
//
// It has the options [Min], [Max] and [Start].
func Vegas(opts ...Option) Adaptive {
	t := tune("Vegas", opts)
	return func() Algorithm { return &vegas{level: newLevel(t), base: baseline{every: reprobe}} }
}

type vegas struct {
	level
	base baseline
}

// vegasHeadroom is where a probe resumes, in baselines of latency.
const vegasHeadroom = 1.2

// vegasShare of the limit is the unit of the thresholds where log10(limit) is less: of a
// large limit, log10 would be lost in the noise of the baseline.
const vegasShare = 0.04

func (v *vegas) validate() error { return v.has(false, false) }

// Update returns the limit after a window.
func (v *vegas) Update(s Sample) int {
	switch {
	case v.base.probing && s.RTT > 0:
		return v.set(v.base.next(float64(s.RTT), vegasHeadroom), s.Max)
	case s.Dropped:
		return v.set(v.limit*backoff, s.Max)
	case s.RTT <= 0:
		return v.set(v.limit, s.Max)
	}
	idle := v.idle(s)
	v.base.observe(float64(s.RTT), idle)
	unit := max(1, math.Log10(v.limit), v.limit*vegasShare)
	queue := v.limit * (1 - v.base.rtt/max(v.base.smooth, v.base.rtt))
	if v.base.due(v.limit, queue >= 3*unit) {
		return v.set(v.base.begin(v.limit), s.Max)
	}
	to := v.limit + vegasStep(queue, unit)
	if idle {
		to = min(to, v.limit)
	}
	return v.set(to, s.Max)
}

// vegasStep is by how much the limit changes with a queue that long.
func vegasStep(queue, unit float64) float64 {
	switch {
	case queue <= unit:
		return 6 * unit
	case queue < 3*unit:
		return unit
	case queue > 6*unit:
		return -max(unit, (queue-6*unit)/4)
	}
	return 0
}
