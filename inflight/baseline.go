package inflight

// baseline is the latency of a backend without a queue, as far as it is known. It falls
// when latency falls, and follows it slowly while the callers are the bound. It never rises
// for latency alone: that may as well be a queue, and a baseline that rises with it would
// let the queue grow without end. Whether there is one is found out by a probe.
//
// A probe halves the limit until latency no longer falls with it: what is left is no
// queue, and is the new baseline. It begins when latency is first above what is
// tolerated, as what was measured before may have been a queue already; when the
// limit has halved since the last probe, as either the backend has become smaller, or
// slower, which makes the baseline wrong; and after reprobe windows of saturation. So
// there is none while latency is steady and no queue is seen.
type baseline struct {
	rtt    float64 // the baseline in nanoseconds; 0 if nothing was measured
	smooth float64 // latency, smoothed over some windows
	proven bool    // a probe has measured rtt
	since  int     // saturated windows since the last probe
	every  int     // so many of them are due for the next
	high   float64 // the highest limit since then

	probing bool
	settle  int     // windows until the step is over
	sum     float64 // of its latencies that are measured
	cut     float64 // the limit of the step
	last    float64 // latency at the step before
	from    float64 // the limit at which the probe began
	above   float64 // latency at that time
}

const (
	smoothing = 0.4  // of latency: the weight of the last window
	follow    = 0.02 // of the baseline, while the callers are the bound
	dip       = 0.8  // latency this far below the baseline is hardly noise: it draws the baseline down
	fall      = 0.1  // by that part of the way in each window
	drop      = 0.5  // latency that far below is the new baseline at once
	fallen    = 0.7  // latency that has fallen that far, with half the limit, was queued
	settling  = 1    // windows in which a step takes effect
	measured  = 2    // windows after that
	reprobe   = 1000 // saturated windows, at most, between two probes
	shrunk    = 0.5  // a limit that has fallen that far is probed
)

// observe takes in a window's latency. Idle says that the callers are the bound.
func (b *baseline) observe(rtt float64, idle bool) {
	if b.rtt == 0 {
		b.rtt, b.smooth = rtt, rtt
	}
	b.smooth += smoothing * (rtt - b.smooth)
	switch {
	case b.smooth < drop*b.rtt:
		b.rtt, b.proven = b.smooth, false // it may hold a queue already
	case b.smooth < dip*b.rtt:
		b.rtt += fall * (b.smooth - b.rtt)
	case idle && b.smooth < b.rtt/dip:
		b.rtt += follow * (b.smooth - b.rtt)
	}
}

// due reports whether a probe is to begin. Saturated says that latency is above what is
// tolerated.
func (b *baseline) due(limit float64, saturated bool) bool {
	b.high = max(b.high, limit)
	if !saturated {
		return false
	}
	b.since++
	return !b.proven || limit <= shrunk*b.high || b.since >= b.every
}

// begin starts a probe at that limit, and returns the limit of its first step.
func (b *baseline) begin(limit float64) float64 {
	b.probing, b.from, b.above = true, limit, b.smooth
	b.last = b.smooth
	return b.step(limit)
}

func (b *baseline) step(limit float64) float64 {
	b.settle, b.sum, b.cut = settling+measured, 0, max(1, limit/2)
	return b.cut
}

// next takes in a window of the probe, and returns the limit from now on. When the probe is
// over, that is where latency would be headroom times the baseline.
func (b *baseline) next(rtt, headroom float64) float64 {
	if b.settle--; b.settle >= measured {
		return b.cut
	}
	b.sum += rtt
	if b.settle > 0 {
		return b.cut
	}
	b.smooth = b.sum / measured
	switch {
	case b.smooth >= fallen*b.last: // both are without a queue: more samples, less noise
		b.finish((b.smooth+b.last)/2, headroom)
	case b.cut > 1:
		b.last = b.smooth
		return b.step(b.cut)
	default:
		b.finish(b.smooth, headroom)
	}
	return b.high
}

// finish ends a probe that has measured the baseline.
func (b *baseline) finish(rtt, headroom float64) {
	b.rtt, b.proven, b.probing, b.since = rtt, true, false, 0
	b.every = min(2*b.every, reprobe)
	b.high = max(b.cut, min(b.from, b.from*headroom*b.rtt/b.above))
}
