package inflight

import "math"

// baseline finds a backend's latency without a queue. Latency rises with a queue, but also when the backend becomes slower.
// A lower limit distinguishes the two cases. A queue shrinks in proportion, and latency with it. A slow backend stays slow.
//
// So baseline lowers the limit for a short time and measures latency. This is called a probe.
// If latency falls in proportion to the limit, there was a queue, and there may still be one.
// Otherwise the measured latency is the baseline. See probe for the beginnings of probes.
//
// The baseline falls when latency falls below it by more than chance explains. For example, if one request in
// ten takes ten times as long as the others, one window in eight has no slow request, and its mean is half as
// long. So a probe waits until its mean is precise enough. The baseline never rises because of latency alone.
// The cause may be a queue, and if the baseline rose with a queue, the queue would grow without end.
type baseline struct {
	rtt    float64 // the baseline in nanoseconds; 0 if nothing was measured
	found  float64 // the limit of its measurement
	proven bool    // whether a probe found it, or a limit grown without a queue
	low    float64 // latency, smoothed, for the baseline's fall
	since  int     // windows with the limit in full use since the last probe
	queue  bool    // whether the previous window had a queue
	ever   bool    // whether a baseline was ever proven
	every  int     // windows with the limit in full use before the next of the early probes
	high   float64 // the highest limit in full use since the last probe

	patience float64 // the part of the allowed queue that clients accept; below 1 if they leave early
	jumped   bool    // whether latency changed in this window by more than noise and the limit explain

	last  float64 // latency of the previous window
	at    float64 // the limit in that window
	noise float64 // the variance of a window's latency, as a logarithm
	trend float64 // the logarithm of the limit's intended factor after the previous window

	lost     float64 // the limit before the last dropped windows; 0 once the limit has recovered
	dropping bool    // whether the previous window was dropped

	varies float64 // single requests' variance in time without a queue, in squares of their mean
	known  float64 // requests contributing to varies
	doubt  float64 // the variance of rtt's logarithm; rtt is a mean of few requests

	probe probe
	mixed mixed
}

// measure is a limit and the latency under that limit. If left is true, clients left early, so the latency is too low.
type measure struct {
	limit, rtt float64
	left       bool
}

// load describes a window's work. On average inFlight units of the limit were in use, and busy of
// these were not in a queue. Hung calls held hung further units. The other fields are those of
// baseline: patience, doubt, and unrest as noise. If sized is true, latency was computed from amounts.
type load struct {
	limit, inFlight, busy, patience, noise, doubt, hung float64
	sized                                               bool
}

// aim returns the target for the whole limit, including hung calls' units. Without a queue, a higher limit lets more calls
// succeed and, in proportion, more calls hang. With a queue, its length does not change the number of hanging calls.
func (l load) aim(target func(load) float64) float64 {
	to := target(l)
	if to > l.limit && l.inFlight <= longer*l.busy {
		return to / l.limit * (l.limit + l.hung)
	}
	return to + l.hung
}

// bears returns the part of a queue that clients accept. It is never below the baseline's uncertainty.
// Otherwise, with a baseline too low, the limit would fall without end, although there is no queue.
func (l load) bears(queue float64) float64 {
	return max(l.patience*queue, min(queue, 3*math.Sqrt(l.doubt)*l.busy))
}

// free returns the unused part of the limit.
func (l load) free() float64 { return max(0, l.limit-l.inFlight) }

const (
	grown         = 1.8  // a limit's growth by this factor without a queue proves the baseline
	half          = 0.5  // latency down at this part for two windows is not noise
	fallen        = 0.8  // latency down at this part is a lower baseline
	noisy         = 0.02 // the variance above which windows are smoothed
	guess         = 0.03 // the noise's first guess
	step          = 0.7  // the limit's largest change in one window, as a logarithm
	clear         = 0.2  // the least change above noise, as a logarithm
	jump          = 0.5  // the least change of latency due to a change of the backend, as a logarithm
	leaving       = 0.2  // if more clients leave, latency shows their patience, not the backend
	mostly        = 0.5  // if more clients leave, a window counts as dropped
	leastPatience = 0.25 // the least part of the allowed queue, even if all clients leave
	tolerated     = 0.02 // the part of clients that may leave: if more leave, the queue shrinks; if fewer do, it grows again
	nearly        = 0.8  // a limit whose target is at least this part of it is not too high
	bursts        = 1.5  // work comes in bursts if Sample.Crowd is above this multiple of Sample.Mean
	inUse         = 0.7  // the limit is in full use if this part of it is used on average
	longer        = 1.2  // latency is too long above this multiple of the expected latency
	memory        = 200  // requests until their times' variance counts as known
)

// gain is the weight of one window against the earlier ones. It is near 1 for windows without noise.
func (b *baseline) gain() float64 { return noisy / (noisy + b.noise) }

// unrest returns the variance of the logarithm of a window's latency. It is b.noise, or
// an estimate from single requests if that is higher. The estimate is needed because
// b.noise comes from consecutive windows, and several of them may lack the slow requests.
func (b *baseline) unrest() float64 { return max(b.noise, b.varies/minSamples) }

// observe records a window's latency, the mean of ended requests.
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
		b.rtt, b.found, b.proven, b.doubt = b.low, limit, false, noise // this may already include a queue
	}
}

// vary records the variation of the times of a window's requests. In a queue, times are longer and vary more.
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

// slope is the part of the work in flight outside queues.
func (b *baseline) slope(rtt float64) float64 { return min(1, b.rtt/rtt) }

// toward moves the limit toward a target. A second change in the same direction counts
// in full. The first far too slow window hardly counts, because it may be an accident.
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
	case queue: // the backend can do no more than this
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

// dropped lowers the limit after a dropped window: a little, or to the target if latency shows one.
// One such window may be an accident, for example a pause. If clients leave in a second one, too, the
// backend may be busy with abandoned work, and new requests may starve. So the limit falls at once.
func (b *baseline) dropped(to, limit float64, left bool) float64 {
	least := limit * math.Exp(-step)
	if left {
		b.high = 0 // this fall of the limit has a known cause
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

// bears records the part of the clients that left in a window. It adjusts the allowed queue until only the fraction tolerated
// of them leaves. It does so slowly: in the steady state one window in fifty loses work, and not every other one. If the
// limit was above its target, it was too high for the backend. If clients leave then, it shows nothing about their patience.
func (b *baseline) bears(left float64, near bool) {
	if left <= tolerated || near {
		b.patience = max(leastPatience, min(1, b.patience*math.Exp(tolerated-left)))
	}
}

// update moves the limit toward its target after a window, and returns it.
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
	if b.probe.running && slow { // such a latency must not become the baseline
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
	if b.rtt > 0 && rtt <= longer*b.rtt && s.Crowd > bursts*s.Mean { // without a queue, the backend can do as much as in a burst
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
	if b.rtt > 0 && rtt > longer*b.rtt && s.InFlight > 0 && s.Mean > 0 { // if there is a queue, the unused part of the limit would let it grow
		x.limit = min(x.limit, max(x.inFlight, float64(s.InFlight)))
	}
	b.bears(s.Cancelled, x.aim(target) >= nearly*l.limit)
	x.patience = b.patience
	lower, restore := l.drops.add(s, l.limit, l.min)
	if restore > 0 && !slow { // such a fall shows nothing about the backend
		b.lost, b.dropping, b.high = math.Inf(1), false, 0
		return l.set(restore, s.Max)
	}
	switch {
	case left && !slow && b.dropping && !b.proven && rtt > 0: // the baseline may include a queue too long for clients
		return l.set(b.begin(l.limit, rtt, left), s.Max)
	case lower, gone, slow:
		if left { // the spare part of the limit is not needed
			x.limit = min(x.limit, x.inFlight)
		}
		return l.set(b.dropped(x.aim(target), l.limit, left), s.Max)
	case rtt <= 0:
		return l.set(l.limit, s.Max)
	case left && b.rtt == 0: // here latency is the clients' patience
		return l.set(b.begin(l.limit, rtt, left), s.Max)
	case !left:
		b.observe(float64(s.RTT), l.limit, ended)
		x.busy = x.inFlight * b.slope(rtt)
	}
	full := s.InFlight >= l.Limit() && x.inFlight+x.hung >= inUse*l.limit
	stuck := l.stuck(s) || s.sized && b.since >= soon // with amounts the limit grows slowly, and a queue may not show
	if b.begins(l.limit, rtt, full, stuck, s.At) {
		return l.set(b.begin(l.limit, rtt, left), s.Max)
	}
	// hung calls make the limit grow in proportion, so it must grow only if needed
	idle := l.idle(s) || x.hung > 0 && s.InFlight < l.Limit()
	return l.set(l.drops.grow(l.limit, b.toward(x.aim(target), l.limit, rtt > longer*b.rtt, idle)), s.Max)
}
