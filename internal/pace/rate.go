package pace

import (
	"math/rand/v2"
	"time"
)

// rate is the pace at which a server without figures in its answers serves this process. It is computed
// from the server's refusals. The account's other processes use the rest. No answer shows their number.
//
// A refusal lengthens the gap between two requests by a fixed fraction. Each served request
// shortens the gap, by a larger fraction the longer the gap is. So slower processes catch
// up with faster ones, although all are refused in proportion to their requests.
type rate struct {
	gap    time.Duration // the time between two requests; 0 if there is no pace
	next   time.Time     // when the next request may be sent
	began  time.Time     // the measurement's beginning: the last refusal, plus the idle time since
	served int           // requests served since then
	missed int           // refusals in a row
	since  time.Time     // the time of the first refusal in the row
	before time.Duration // the gap before the refusals in a row
	waited time.Duration // the unit before the refusals in a row
	unit   time.Duration // the mean wait after a refusal; gaps are short or long in relation to it
	steady bool          // whether the gap was measured over several requests, so that one refusal changes it little
	regain bool          // whether the server serves again, so the gap shrinks to the earlier one
}

// A pace's constants.
const (
	slower       = 1 / .85 // the factor of the gap after a refusal
	faster       = .002    // the fraction for each request served, at a gap of one unit; the minimum fraction
	fasterOfFew  = .008    // like faster, if the answers have only small budgets, because these end soon
	fastestOfFew = .1
	fastest      = .005            // the maximum fraction
	settles      = 128             // requests served until the pace grows twice as fast
	steadyFrom   = 8               // requests served between two refusals for the pace to count as steady
	lost         = 3               // refusals in a row for the pace to count as unsteady again
	outage       = 6               // more refusals in a row than a steady pace causes
	outageFrom   = 5 * time.Minute // how long refusals in a row must last to count as an outage
	leastGap     = time.Millisecond
	maxGap       = 10 * time.Minute
	maxUnits     = 64               // the maximum gap, in units
	keepFor      = 10 * time.Minute // how long a pace is kept after the next request
)

// send counts a sent request, and computes when the next one may follow.
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

// serve counts a served request. If the server's answers have figures, these replace the pace.
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

// halve halves a gap lengthened by several refusals in a row, but not below the gap before them. An
// outage may have caused the refusals. If the server is really slower now, it refuses once more.
func (r *rate) halve() {
	shorter := max(r.gap/2, r.before)
	r.next = r.next.Add(shorter - r.gap)
	r.gap, r.regain = shorter, shorter > r.before
}

// refuse updates the pace after a refusal with the given wait.
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
	case first && r.served == 0: // there is no pace to measure for a server that serves nothing
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
		r.next = r.next.Add(rand.N(r.gap)) // so that other refused processes are likely to choose another instant
	}
}

// expire forgets a pace last used long ago.
func (r *rate) expire(now time.Time) {
	if r.gap > 0 && now.Sub(r.next) > keepFor {
		*r = rate{}
	}
}

// ends returns the instant until which the pace is kept, or least if later.
func (r *rate) ends(least time.Time) time.Time {
	if keep := r.next.Add(keepFor); r.gap > 0 && keep.After(least) {
		return keep
	}
	return least
}

// measured returns the gap if it was measured over several requests, and otherwise 0.
func (r *rate) measured() time.Duration {
	if !r.steady {
		return 0
	}
	return r.gap
}

// opens returns the instant when one more request may be sent, after booked ones.
func (r *rate) opens(booked int) time.Time {
	if r.gap == 0 {
		return time.Time{}
	}
	return r.next.Add(time.Duration(booked) * r.gap)
}
