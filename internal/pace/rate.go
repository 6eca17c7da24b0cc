package pace

import (
	"math/rand/v2"
	"time"
)

// rate is the pace at which a server without figures serves this process, learnt from its refusals. Other processes of the account take the
// rest, and no answer shows how many there are.
//
// A refusal lengthens the gap between two requests by a fixed part, and each request that is served shortens it, by a part that is the
// larger the longer the gap is: of several processes the slower ones gain on the faster ones, which are refused as often in proportion.
type rate struct {
	gap    time.Duration // between two requests; 0 if any number may be sent
	next   time.Time     // when the next request may be sent
	began  time.Time     // of the measurement: the last refusal, later by the time in which there was nothing to send
	served int           // since then
	missed int           // refusals in a row
	since  time.Time     // the first of these
	before time.Duration // the gap before these, and
	waited time.Duration // the unit
	unit   time.Duration // the mean wait after a refusal: a gap is short or long in proportion to it
	steady bool          // the gap was measured over some requests: a refusal changes it little
	regain bool          // the server serves again: the gap returns to what it was before the refusals in a row
}

// The constants of a pace.
const (
	slower       = 1 / .85 // by a refusal
	faster       = .002    // by a request that is served, at a gap of one unit; the least
	fasterOfFew  = .008    // these two if the answers have figures of a few requests: a window is soon over
	fastestOfFew = .1
	fastest      = .005            // the most
	settles      = 128             // served requests after which the pace grows twice as fast
	steadyFrom   = 8               // served requests between two refusals from which on the pace is steady
	lost         = 3               // refusals in a row from which on it is not
	outage       = 6               // refusals in a row that do not come from a steady pace
	outageFrom   = 5 * time.Minute // the time after which they do not come from any
	leastGap     = time.Millisecond
	maxGap       = 10 * time.Minute
	maxUnits     = 64               // of a gap
	keepFor      = 10 * time.Minute // after the next request
)

// send counts a request that is sent.
func (r *rate) send(now time.Time) {
	if r.gap == 0 {
		return
	}
	if idle := now.Sub(r.next); idle > 0 {
		r.began = r.began.Add(idle)
		r.next = now
	}
	r.next = r.next.Add(r.gap)
}

// serve counts a request that was served. If the server's answers have figures, they are the better guide.
func (r *rate) serve(figures, few bool) {
	if figures {
		*r = rate{}
		return
	}
	r.regain = r.regain || r.missed > 0 && r.gap >= 2*r.before
	r.missed = 0
	r.served++
	if r.gap == 0 {
		return
	}
	if r.regain {
		r.halve()
		return
	}
	part, most := faster, fastest
	if few {
		part, most = fasterOfFew, fastestOfFew
	}
	grow := min(max(part, part*float64(r.gap)/float64(r.unit)), most) * (1 + float64(r.served)/settles)
	if r.gap = time.Duration(float64(r.gap) / (1 + grow)); r.gap < leastGap {
		r.gap = 0
	}
}

// halve halves a gap that several refusals in a row have lengthened, but not below its value before
// them. An outage may have caused them. If the server is really slower now, it refuses once more.
func (r *rate) halve() {
	shorter := max(r.gap/2, r.before)
	r.next = r.next.Add(shorter - r.gap)
	r.gap, r.regain = shorter, shorter > r.before
}

// refuse learns from a refusal that lets nothing be sent for a time.
func (r *rate) refuse(wait time.Duration, now time.Time) {
	if r.unit == 0 {
		r.unit = max(wait, leastGap)
	}
	if r.served > 0 || r.missed == 0 {
		r.waited = r.unit
	}
	r.unit += (max(wait, leastGap) - r.unit) / 8
	first := r.gap == 0
	r.regain = false
	switch {
	case first && r.served == 0: // a server that serves nothing has no pace
		return
	case first:
		r.gap, r.steady = min(wait/time.Duration(max(1, r.served)), firstBackoff), false
	case r.served == 0:
		if r.missed++; r.missed == 1 {
			r.before, r.since = r.gap, now
		}
		switch {
		case r.missed >= outage && (r.steady || now.Sub(r.since) >= outageFrom):
			r.gap, r.unit = r.before, r.waited
		case !r.steady || r.missed >= lost:
			r.gap = max(2*r.gap, min(wait, r.unit))
		default:
			r.gap = time.Duration(float64(r.gap) * slower)
		}
	case r.steady || r.served >= steadyFrom:
		r.gap, r.steady = time.Duration(float64(r.gap)*slower), true
	default:
		measured := now.Sub(r.began) / time.Duration(r.served)
		r.gap = max(time.Duration(float64(r.gap)*slower), min(measured, 4*r.gap))
	}
	r.gap = min(max(r.gap, leastGap), maxUnits*r.unit, maxGap)
	r.began, r.served = now, 0
	if r.next = now.Add(wait); !first {
		r.next = r.next.Add(rand.N(r.gap)) // not at one instant with other processes that were refused
	}
}

// expire forgets a pace that was last used long ago.
func (r *rate) expire(now time.Time) {
	if r.gap > 0 && now.Sub(r.next) > keepFor {
		*r = rate{}
	}
}

// ends returns the instant until which the pace is kept, or at least the given one.
func (r *rate) ends(least time.Time) time.Time {
	if keep := r.next.Add(keepFor); r.gap > 0 && keep.After(least) {
		return keep
	}
	return least
}

// measured returns the gap if it was measured over some requests, else 0.
func (r *rate) measured() time.Duration {
	if !r.steady {
		return 0
	}
	return r.gap
}

// opens returns the instant at which one more request may be sent, behind those that are booked.
func (r *rate) opens(booked int) time.Time {
	if r.gap == 0 {
		return time.Time{}
	}
	return r.next.Add(time.Duration(booked) * r.gap)
}
