package inflight

import (
	"math"
	"time"
)

// probe measures the baseline under a lower limit.
//
// Probes begin at boundaries, instants of a clock common to all processes. If a process probed alone, it could not
// empty a queue filled by others. It would mistake the queue for the backend's latency. Boundaries at a distance are
// also boundaries at half the distance. So processes probe together even if the lengths of their windows differ.
//
// At routine boundaries, all processes whose limits are in full use probe. A process also probes alone, for one of
// three causes. Nothing is proven yet, the limit has fallen to half its value without effect, or a young baseline
// needs confirmation. Only the first two causes may raise the baseline. A first baseline is raised only after a
// boundary has passed within the probe. By then other processes have begun their probes, and their queue is gone.
type probe struct {
	due      bool          // a probe begins at the next boundary for causes
	routine  bool          // whether the probe began at a routine boundary
	shrank   bool          // whether the limit has fallen to half without effect
	previous time.Duration // the end of the previous window, on the common clock

	running   bool
	from      measure // the limit and latency at the probe's beginning
	before    measure // the limit and latency of the previous step
	cut       float64 // this step's limit
	together  bool    // whether a boundary has passed within this step
	restarts  int     // how often the step's sums were restarted
	doubted   float64 // latency in the step with a slower backend; 0 if none
	confirmed float64 // the latest routine probe's baseline

	n      int     // windows in this step
	ended  float64 // requests in these windows
	left   int     // how many of these windows clients left early
	sum    float64 // the sum of their latencies
	middle float64 // the sum of their medians
}

const (
	cause    = 500 * time.Millisecond // the minimum distance between boundaries for probes with a cause
	routine  = 32 * time.Second       // the same for routine probes
	causes   = 2                      // the same distances in windows
	routines = 120
	blindly  = 1000 // windows with the limit in full use between routine probes if Sample.At is unknown

	soon  = 8  // windows with the limit in full use from the first baseline to its confirming probe
	later = 32 // windows with the limit in full use from the confirming probe to the next one

	below      = 0.7  // a probe for the known baseline lowers the limit to this part of the backend's simultaneous work
	shrunk     = 0.5  // a limit down at this part causes a probe, if latency is too high
	far        = 3    // latency above this multiple of the baseline is too high for a limit down at shrunk
	queued     = 1.4  // with a queue, a probe's latency would fall to a certain value; above this multiple of it, there is no queue
	confirming = 0.88 // with a queue, latency in a probe would be below this part of a proven baseline
	opinion    = 0.8  // latency below this part of the doubted step's, at a third of its limit, is due to others' queue
	raised     = 1.03 // a routine probe takes up to most windows if its baseline is beyond this multiple

	most        = 3     // the maximum number of windows in a step
	mostRoutine = 5     // the same for a routine probe
	precise     = 0.2   // the maximum standard error of a probe's baseline, as a part of it
	preciser    = 0.12  // the same for a routine probe: if baselines differ, processes get unequal shares
	surest      = 0.001 // the minimum variance of a measured baseline, because backends change

	draining     = 0.02 // if latency falls by more than this part from window to window, a queue drains
	drainingBy   = 3    // in standard deviations; a smaller difference may be chance
	mostRestarts = 4
)

// begins reports whether a probe begins after a window, ended at the instant at.
func (b *baseline) begins(limit, rtt float64, full, stuck bool, at time.Duration) bool {
	p := &b.probe
	unproven := !b.ever || at == 0 && !b.proven
	p.due = b.causes(limit, rtt, unproven, full, stuck) || p.due && full && !b.ever
	if at == 0 { // the instant is unknown
		p.routine = p.due || b.since >= blindly
		return full && p.routine
	}
	p.routine = p.crossed(at, routine, routines)
	return full && (p.routine || p.due && p.crossed(at, cause, causes))
}

// causes reports whether there is a cause for a probe. If unproven, the baseline
// may contain a queue. If full, the limit is in full use. If stuck, it cannot grow.
func (b *baseline) causes(limit, rtt float64, unproven, full, stuck bool) bool {
	queue := rtt > longer*b.rtt
	growing := queue && !b.queue && !b.proven // a growing queue has caused the latency
	b.queue, b.probe.shrank = queue, false
	if !full {
		return false
	}
	b.since++
	if !queue { // otherwise the baseline may include a queue
		b.proven = b.proven || limit >= grown*b.found
		b.ever = b.ever || b.proven
		return unproven && stuck || b.since >= b.every && (b.doubt > surest || b.probe.confirmed > 0)
	}
	b.high = max(b.high, limit)
	b.probe.shrank = limit <= shrunk*b.high && rtt > far*b.rtt
	return !growing && (unproven || b.probe.shrank || b.since >= b.every)
}

// crossed reports whether a boundary has passed in a window, ended at the instant at. It
// doubles the boundaries' distance until it is as long as the given number of windows.
func (p *probe) crossed(at, distance time.Duration, windows int) bool {
	elapsed := at - p.previous
	switch {
	case p.previous == 0 || elapsed <= 0: // this is the first window, or the clock was set back
		return false
	case elapsed > longest:
		return true
	}
	for distance < time.Duration(windows)*elapsed {
		distance *= 2
	}
	return at/distance != p.previous/distance
}

// begin starts a probe and returns the limit of its first step.
func (b *baseline) begin(limit, rtt float64, left bool) float64 {
	p := &b.probe
	p.running, p.due, p.doubted, p.from = true, false, 0, measure{limit, rtt, left}
	if b.proven {
		return p.step(p.from, limit*b.slope(rtt)*below)
	}
	return p.step(p.from, limit/2)
}

// step begins a step of the probe and returns its limit.
func (p *probe) step(before measure, to float64) float64 {
	p.before, p.cut, p.together, p.restarts = before, max(1, math.Floor(to)), false, 0
	p.restart()
	return p.cut
}

// restart forgets the step's windows.
func (p *probe) restart() { p.n, p.ended, p.left, p.sum, p.middle = 0, 0, 0, 0, 0 }

// add adds a window to the step. While a queue drains, only the last window counts.
func (p *probe) add(rtt, ended, median, varies float64, left bool) {
	if p.routine && p.n > 0 && p.restarts < mostRestarts {
		noise := varies/ended + varies/p.ended
		if rtt < p.sum/p.ended*math.Exp(-max(draining, drainingBy*math.Sqrt(noise))) {
			p.restart()
			p.restarts++
		}
	}
	p.n++
	p.ended += ended
	p.sum += rtt * ended
	p.middle += median * ended
	if left {
		p.left++
	}
}

// measure returns the limit and the step's latency.
func (p *probe) measure() measure { return measure{p.cut, p.sum / p.ended, 2*p.left > p.n} }

// verdict is the result of a probe's step.
type verdict int

const (
	undecided verdict = iota // the step needs more windows
	queueing                 // latency fell in proportion to the limit: there was a queue, and may still be one
	confirmed                // latency equals the known baseline
	doubted                  // latency shows a slower backend or a queue of others; a much lower limit shows which
	replaced                 // latency shows a backend without a queue, and differs from the baseline
)

// next adds a window to the probe's step. It returns the limit from now on.
func (b *baseline) next(rtt, ended float64, left bool, s Sample, target func(load) float64) float64 {
	p := &b.probe
	p.add(rtt, ended, float64(s.Median), b.varies, left)
	step := p.measure()
	doubt := b.varies / p.ended
	v := b.judge(step.rtt, doubt)
	if v == replaced && !p.together && !b.ever && s.At != 0 && p.cut > 1 {
		if p.crossed(s.At, cause, causes) {
			p.together = true
			p.restart()
		}
		v = undecided
	}
	switch v {
	case undecided:
		return p.cut
	case queueing:
		return p.step(step, p.cut/2)
	case doubted:
		p.doubted = step.rtt
		return p.step(step, p.cut/3)
	case confirmed:
		before := max(b.doubt, surest)
		part := before / (before + max(doubt, surest)) // two measurements of one baseline are more precise than one
		b.measured(b.rtt*math.Pow(step.rtt/b.rtt, part), before*(1-part))
	case replaced:
		if step.rtt < b.rtt {
			b.every = 0
		}
		b.measured(step.rtt, doubt)
	}
	b.mixed.measured(p.middle / p.ended)
	return b.finish(s.sized, target)
}

// measured applies a probe's result. If the process has probed alone, the result may include the
// queue of others. So it raises the baseline at most to the last routine probe's value. There
// are two exceptions: nothing was proven before, or the limit has fallen to half without effect.
func (b *baseline) measured(rtt, doubt float64) {
	p := &b.probe
	switch {
	case p.routine, !b.ever, p.shrank:
		p.confirmed = rtt
	case rtt > b.rtt:
		rtt = max(b.rtt, min(rtt, p.confirmed))
	}
	b.rtt, b.doubt = rtt, doubt
}

// judge returns the verdict on a step of a probe, from its mean latency and the variance of the mean's logarithm.
func (b *baseline) judge(mean, doubt float64) verdict {
	p := &b.probe
	// With a queue alone, latency would have fallen in proportion to the limit, and the ratio would be 1.
	ratio := mean / (p.before.rtt * p.cut / p.before.limit)
	near := math.Abs(math.Log(mean/b.rtt)) < 2*clear
	// A queue would have shrunk, but latency has fallen no further than chance explains.
	same := b.proven && mean <= longer*b.rtt && mean > b.rtt*min(confirming, math.Exp(-2*math.Sqrt(doubt+b.doubt)))
	measured := !p.before.left && 2*p.left <= p.n // the latency is the backend's, not its clients' patience
	flat := p.cut <= 1 || measured && ratio >= queued
	switch {
	case p.cut > 1 && b.needsMore(mean, ratio, doubt, flat || same || b.proven):
		return undecided
	case same, flat && b.proven && near: // the backend has become smaller, or nothing has changed
		return confirmed
	case flat && b.ever && p.cut > 1 && p.doubted == 0 && mean > longer*b.rtt:
		return doubted
	case p.cut > 1 && flat && p.doubted > 0 && mean < opinion*p.doubted: // there is no lower limit than 1
		return queueing
	case flat:
		return replaced
	}
	return queueing
}

// needsMore reports whether the step needs more windows before it is judged. If conclusive, the mean may become the
// baseline, so it must be precise.
func (b *baseline) needsMore(mean, ratio, doubt float64, conclusive bool) bool {
	p := &b.probe
	unsteady := b.noise > noisy/4
	if unsteady && p.n < 2 {
		return true
	}
	d := math.Log(ratio / queued)
	borderline := d*d*float64(p.n) < 2*b.noise
	slower := ratio >= queued && mean > longer*b.rtt && unsteady
	if p.n < most && (borderline || slower || conclusive && doubt > precise*precise) {
		return true
	}
	if !p.routine || !conclusive {
		return false
	}
	return p.n < most && b.proven && mean > raised*b.rtt || p.n < mostRoutine && doubt > preciser*preciser
}

// finish ends a probe with a baseline and returns the limit from now on.
func (b *baseline) finish(sized bool, target func(load) float64) float64 {
	p := &b.probe
	p.running, b.proven, b.ever, b.since, b.last, b.trend = false, true, true, 0, 0, 0
	b.low, b.found = b.rtt, p.cut
	switch b.every {
	case 0:
		b.every = soon
	case soon:
		b.every = later
	default:
		b.every = math.MaxInt
	}
	from := p.from.limit
	b.high = max(p.cut, min(from, target(load{from, from, from * b.slope(p.from.rtt), b.patience, b.unrest(), b.doubt, 0, sized})))
	return b.high
}
