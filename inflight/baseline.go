package inflight

import "math"

// baseline finds the latency of a backend without a queue, and distinguishes a backend that has become slower from a backend
// that has a queue. Both show as a high latency. They differ in the effect of a lower limit: a queue shrinks in proportion, and
// latency with it; a slow backend stays slow.
//
// So the limit is lowered, which is called a probe, and the latency is measured: if it falls in proportion to the limit, there
// was a queue, and there may still be one; if not, it is the baseline. See probe for the instants at which probes begin.
//
// The baseline falls when latency falls below it by more than chance: where one request in ten takes ten times as long as the
// others, one window in eight lacks the slow ones and takes half as long. A probe waits until its mean is known well enough.
// The baseline never rises because of latency alone: the cause may as well be a queue, and a baseline that rises with a queue
// lets it grow without end.
type baseline struct {
	rtt    float64 // the baseline in nanoseconds; 0 if nothing was measured
	found  float64 // the limit under which it was measured
	proven bool    // by a probe, or by a limit that has grown without a queue
	low    float64 // latency, smoothed, for the fall of the baseline
	since  int     // windows with the limit in full use since the last probe
	queue  bool    // the window before was one with a queue
	ever   bool    // a baseline was proven once
	every  int     // windows with the limit in full use before the next probe that the start causes
	high   float64 // the highest limit in full use since then

	patience float64 // which part of the allowed queue the clients bear: less than 1 if they leave early
	jumped   bool    // latency has changed in this window by more than noise and the limit explain

	last  float64 // latency of the window before
	at    float64 // the limit in that window
	noise float64 // variance of the logarithm of a window's latency
	trend float64 // by which part the limit was to change after the window before, as a logarithm

	lost     float64 // the limit before the last windows that were dropped; 0 once it is found again
	dropping bool    // the window before was dropped

	varies float64 // square of the coefficient of variation of single requests' times without a queue
	known  float64 // the number of requests that it is from
	doubt  float64 // variance of the logarithm of rtt, as it is the mean of some requests only

	probe probe
	mixed mixed
}

// measure is a limit and the latency under it. Of a measure with clients that left, that is too low.
type measure struct {
	limit, rtt float64
	left       bool
}

// load is how much there was to do in a window: of the limit, inFlight was used on average, of
// which busy is no queue. Noise is b.unrest, and doubt the baseline's. The units that hung calls hold are in addition to the others. Sized means that
// latency is from amounts.
type load struct {
	limit, inFlight, busy, patience, noise, doubt, hung float64
	sized                                               bool
}

// aim returns the target of the whole limit, including the units that hung calls hold. Without a queue, a higher limit lets more calls
// succeed, and in proportion more hang. The length of a queue does not change their number.
func (l load) aim(target func(load) float64) float64 {
	to := target(l)
	if to > l.limit && l.inFlight <= longer*l.busy {
		return to / l.limit * (l.limit + l.hung)
	}
	return to + l.hung
}

// bears returns the part of a queue that clients bear, and at least the uncertainty of the baseline: with a baseline that is
// too low, and no queue, the limit would fall without end.
func (l load) bears(queue float64) float64 {
	return max(l.patience*queue, min(queue, 3*math.Sqrt(l.doubt)*l.busy))
}

// free is the part of the limit that was not used.
func (l load) free() float64 { return max(0, l.limit-l.inFlight) }

const (
	grown         = 1.8  // a limit that has grown that far without a queue proves the baseline
	half          = 0.5  // latency that has fallen that far in two windows is no noise
	fallen        = 0.8  // latency that has fallen that far is a lower baseline
	noisy         = 0.02 // variance from which windows are smoothed
	guess         = 0.03 // of the noise, at first
	step          = 0.7  // the most by which the limit changes in a window, as a logarithm
	clear         = 0.2  // a change that is not noise, as a logarithm
	jump          = 0.5  // a change of latency, as a logarithm, that is one of the backend
	leaving       = 0.2  // a part of clients that leave, from which on a window's latency is their patience, not the backend's
	mostly        = 0.5  // a share of clients that leave, above which a window counts as dropped
	leastPatience = 0.25 // part of the allowed queue, however many leave
	tolerated     = 0.02 // the part of clients that may leave: more shrink the queue, fewer let it grow again
	nearly        = 0.8  // of its target: a limit that far does not fall by itself
	bursts        = 1.5  // times the mean number of units in flight over time: if the mean over the time of each unit is above, work comes in bursts
	inUse         = 0.7  // of the limit, on average: it is used in full
	longer        = 1.2  // times the expected latency: too long
	memory        = 200  // requests from which the variance of their times is known
)

// gain is the weight of one window against the earlier ones: near 1 for windows
// without noise.
func (b *baseline) gain() float64 { return noisy / (noisy + b.noise) }

// unrest is the variance of the logarithm of a window's latency, also where b.noise is not yet known: that is learnt from windows in a row, of
// which each may lack the slow requests.
func (b *baseline) unrest() float64 { return max(b.noise, b.varies/minSamples) }

// observe takes in a window's latency, which is the mean of ended requests.
func (b *baseline) observe(rtt, limit, ended float64) {
	if b.rtt == 0 {
		b.rtt, b.found, b.low, b.noise, b.every = rtt, limit, rtt, guess, soon
		b.doubt = b.varies / ended
	}
	b.jumped = false
	if b.last > 0 {
		d, most, moved := math.Log(rtt/b.last), max(jump, 3*math.Sqrt(b.noise)), math.Log(limit/b.at)
		b.jumped = d > max(0, moved)+most || d < min(0, moved)-most
	}
	if b.last > 0 && math.Abs(limit-b.at) <= 0.1*limit {
		d := min(0.4, math.Abs(math.Log(rtt/b.last)))
		b.noise += 0.1 * (d*d/2 - b.noise)
	}
	noise := max(b.noise, b.varies/ended)
	gain := noisy / (noisy + noise)
	b.low += gain * (rtt - b.low)
	if twice := max(rtt, b.last); b.last > 0 && twice < b.rtt*min(half, math.Exp(-3*math.Sqrt(noise/2+b.doubt))) {
		b.low = twice
	}
	b.last, b.at = rtt, limit
	noise *= gain / (2 - gain)
	if b.low < b.rtt*min(fallen, math.Exp(-3*math.Sqrt(noise+b.doubt))) {
		b.rtt, b.found, b.proven, b.doubt = b.low, limit, false, noise // it may hold a queue already
	}
}

// vary takes in the variance of the times of a window's requests. With a queue they vary more, and are longer.
func (b *baseline) vary(s Sample) {
	if s.Ended <= 0 || s.RTT <= 0 {
		return
	}
	n, rtt, short := float64(s.Ended), float64(s.RTT), float64(s.RTT)
	if !b.probe.running && b.rtt > 0 {
		short = min(rtt, b.rtt)
	}
	b.known = min(memory, b.known+n)
	b.varies += min(1, n/b.known) * (float64(s.Deviation)*float64(s.Deviation)/(rtt*short) - b.varies)
}

// slope is the part of the work in flight that is not in a queue.
func (b *baseline) slope(rtt float64) float64 { return min(1, b.rtt/rtt) }

// toward moves the limit. A change in the same direction as that before counts in full, and the first
// window that is far too slow hardly: it may be an accident.
func (b *baseline) toward(to, limit float64, queue, idle bool) float64 {
	d, before := math.Log(to/limit), b.trend
	b.trend = d
	gain := b.gain()
	switch again := d*before > 0; {
	case again && math.Abs(d) > max(clear, 2*math.Sqrt(b.noise)):
		gain = min(1, 2*gain)
	case d < -clear:
		gain = min(gain, 0.1)
	}
	d = max(-step, min(step, gain*d))
	switch {
	case queue: // the backend cannot do more than this any longer
		b.lost = min(b.lost, limit)
	case limit >= b.lost/2:
		b.lost = 0
	case d > 0:
		d = min(2*step, math.Log(b.lost/2/limit))
	}
	b.dropping = false
	if d > 0 && (idle || b.jumped) {
		d = 0
	}
	return limit * math.Exp(d)
}

// dropped lowers the limit after a window that was dropped: a little, or to the target, if
// latency shows how far. One window may be an accident, such as a pause. If clients leave in a second one too, then the backend may be
// busy with abandoned work, and each request that it gets now is lost: so the limit falls at once.
func (b *baseline) dropped(to, limit float64, left bool) float64 {
	least := limit * math.Exp(-step)
	if left {
		b.high = 0 // that the limit has fallen is explained
	}
	switch {
	case !b.dropping:
		b.lost, b.dropping = limit, true
	case left:
		least = 0
	}
	if left && b.rtt == 0 {
		return limit / 2
	}
	return max(least, min(backoff*limit, to))
}

// bears records the part of the clients that left in a window. It adjusts the allowed queue until tolerated leave, slowly
// enough that in the steady state one window in fifty loses work, and not every other one. Where the limit is above its target,
// it was too high for the backend, which is no evidence of the clients' patience.
func (b *baseline) bears(left float64, near bool) {
	if left <= tolerated || near {
		b.patience = max(leastPatience, min(1, b.patience*math.Exp(tolerated-left)))
	}
}

// update moves the limit after a window to where the target is. Slope is the part of the limit
// that is no queue.
func (b *baseline) update(l *level, s Sample, target func(load) float64) int {
	s = s.sane()
	defer func() { b.probe.previous = s.At }()
	rtt, ended, left, gone := float64(s.RTT), max(1, float64(s.Ended)), s.Cancelled > leaving, s.Cancelled > mostly
	slow := l.timeout > 0 && s.served() > l.timeout
	if s.Ended <= 0 {
		ended = minSamples
	}
	b.vary(s)
	if b.rtt == 0 {
		b.patience = 1
	}
	if b.probe.running && slow { // its latency must not become the baseline
		b.probe.running, b.last, b.trend = false, 0, 0
	}
	if b.probe.running && rtt > 0 {
		return l.set(b.next(rtt, ended, left, s, target), s.Max)
	}
	if rtt > 0 && !left {
		b.mixed.observe(s)
	}
	x := load{l.limit, s.Mean, s.Mean, b.patience, b.unrest(), b.doubt, 0, s.sized}
	if s.Mean <= 0 {
		x.inFlight, x.busy = l.limit, l.limit
	}
	if b.rtt > 0 && rtt <= longer*b.rtt && s.Crowd > bursts*s.Mean { // no queue is seen: the backend can do as much as in a burst
		x.inFlight = s.Crowd
		x.busy = s.Crowd
	}
	if x.hung = min(s.Hung, x.inFlight, l.limit-1); x.hung > 0 {
		x.limit -= x.hung
		x.inFlight -= x.hung
		x.busy = x.inFlight
	}
	if b.rtt > 0 && rtt > 0 {
		rtt = b.mixed.latency(rtt, b.rtt, x.inFlight, b.varies, s)
		x.busy = x.inFlight * b.slope(rtt)
	}
	if b.rtt > 0 && rtt > longer*b.rtt && s.InFlight > 0 && s.Mean > 0 { // with a queue, the unused part of the limit would let it grow
		x.limit = min(x.limit, max(x.inFlight, float64(s.InFlight)))
	}
	b.bears(s.Cancelled, x.aim(target) >= nearly*l.limit)
	x.patience = b.patience
	lower, restore := l.drops.add(s, l.limit, l.min)
	if restore > 0 && !slow { // the fall is no evidence about the backend
		b.lost, b.dropping, b.high = math.Inf(1), false, 0
		return l.set(restore, s.Max)
	}
	switch {
	case left && !slow && b.dropping && !b.proven && rtt > 0: // the baseline may include a queue, in which clients did not wait longer
		return l.set(b.begin(l.limit, rtt, left), s.Max)
	case lower, gone, slow:
		if left { // the spare part of the limit is not needed
			x.limit = min(x.limit, x.inFlight)
		}
		return l.set(b.dropped(x.aim(target), l.limit, left), s.Max)
	case rtt <= 0:
		return l.set(l.limit, s.Max)
	case left && b.rtt == 0: // latency is the patience of the clients
		return l.set(b.begin(l.limit, rtt, left), s.Max)
	case !left:
		b.observe(float64(s.RTT), l.limit, ended)
		x.busy = x.inFlight * b.slope(rtt)
	}
	full := s.InFlight >= l.Limit() && x.inFlight+x.hung >= inUse*l.limit
	stuck := l.stuck(s) || s.sized && b.since >= soon // with amounts the limit grows so slowly that a queue may not show
	if b.begins(l.limit, rtt, full, stuck, s.At) {
		return l.set(b.begin(l.limit, rtt, left), s.Max)
	}
	idle := l.idle(s) || x.hung > 0 && s.InFlight < l.Limit() // the limit grows in proportion, so only if it is needed
	return l.set(l.drops.grow(l.limit, b.toward(x.aim(target), l.limit, rtt > longer*b.rtt, idle)), s.Max)
}
