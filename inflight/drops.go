package inflight

import "math"

// drops distinguishes drops that overload causes from drops that occur at any limit, such as the errors of a dead
// replica, of a bug or of a quota. Both raise the share of drops. They differ in the effect of a lower limit: drops of the first kind
// go away; drops of the second kind stay, and fewer calls succeed.
//
// So many drops begin a run, in which the limit falls from window to window. Its result is one of three:
//
//   - The drops go away: a cure. From then on the limit grows slowly near the limit at which they began.
//   - The share of drops stays, and goodput falls with the limit: the run was in vain. The limit returns to the value
//     before the run, and that share becomes the floor: only drops above the floor count from then on.
//   - The share of drops stays, and goodput does too: the limit was not what bounded the load. The run goes on.
//
// Several processes in front of one backend make a single run misleading: what one of them gives up, the others take. So
// each cure, as evidence that the drops depend on the limit, lets one later run in vain be disregarded.
type drops struct {
	floor  float64  // the share of drops that a lower limit does not cure
	recent float64  // the share of drops, smoothed
	state  dropping // how far a run is
	start  float64  // the limit at which the run began
	before dropSum  // the first windows of the run
	after  dropSum  // its windows at a much lower limit, or after its end
	trust  int      // runs in vain to disregard
	calm   int      // windows since the last run, or since trust last fell
	knee   float64  // the limit at which cured drops began; 0 for none
}

// dropping is the state of a run.
type dropping int

const (
	steady   dropping = iota // no run
	falling                  // the limit falls
	checking                 // the drops have gone away: a few windows show whether by chance
)

const (
	firstDrops  = 2    // windows before the limit is much lower
	laterDrops  = 3    // windows at a much lower limit, before a run is judged
	mostDrops   = 8    // the same, at most
	checkDrops  = 3    // windows in which a cure may be confirmed
	muchLower   = 0.7  // of the limit at the start of the run
	asMany      = 0.8  // of the share before: the drops have stayed
	lessGood    = 0.85 // of the goodput before: it has fallen with the limit
	cure        = 0.5  // of the share before, without the floor: the drops have gone away
	leastFloor  = 0.05 // a smaller share is not worth a floor
	mostFloor   = 0.95 // a larger share is an outage of the whole backend
	allLost     = 0.9  // of what is not below the floor: no window has more by chance alone
	forget      = 0.01 // the part of the floor that fades in a window with fewer drops
	smoothing   = 100  // outcomes over which the share of drops is smoothed
	firstTrust  = 2    // nothing is known yet: drops at the start may well be those of overload
	mostTrust   = 6    // the maximum of trust
	calmWindows = 20   // windows without a run after which trust falls by one
)

// dropSum is a sum over windows.
type dropSum struct{ windows, outcomes, dropped, goodput float64 }

func (d *dropSum) add(share, outcomes, goodput float64) {
	d.windows++
	d.outcomes += outcomes
	d.dropped += share * outcomes
	d.goodput += goodput
}

// share is the share of drops.
func (d *dropSum) share() float64 { return d.dropped / max(1, d.outcomes) }

// mean is the mean goodput.
func (d *dropSum) mean() float64 { return d.goodput / max(1, d.windows) }

// others is the number of outcomes that were not dropped.
func (d *dropSum) others() float64 { return max(1, d.outcomes-d.dropped) }

// chance is the standard deviation of a share of n outcomes.
func chance(share, n float64) float64 { return math.Sqrt(share * (1 - share) / n) }

// fewer reports whether e has fewer drops than d, by far more than chance explains.
func (d *dropSum) fewer(e *dropSum) bool {
	n, m := max(1, d.outcomes), max(1, e.outcomes)
	return d.share()-e.share() > 4*chance((d.dropped+e.dropped)/(n+m), 1/(1/n+1/m))
}

// add takes in a window under a limit, and reports whether it lowers the limit. If not, and restore is above 0, the limit
// returns to restore.
func (d *drops) add(s Sample, limit float64) (lower bool, restore float64) {
	share, n, goodput := min(1, sane(s.Drops)), float64(max(1, s.Outcomes)), sane(s.Goodput)
	d.recent += n / (n + smoothing) * (share - d.recent)
	if share < d.floor {
		d.floor += forget * (share - d.floor)
	}
	if d.state == checking {
		d.after.add(share, n, goodput)
		d.check()
	}
	if s.Dropped && share < 1./dropShare { // clients left, or a wrapper of the algorithm has set Dropped
		d.state, d.calm = steady, 0
		return true, 0
	}
	excess := share - d.floor
	least := max(d.threshold(), min(3*chance(d.floor, n), allLost*(1-d.floor)))
	many := s.Dropped && excess >= least
	switch {
	case d.state == falling && excess >= cure*(d.before.share()-d.floor): // also if one window has fewer drops
	case d.state == falling && !many:
		d.state, d.after = checking, dropSum{}
		d.after.add(share, n, goodput)
		d.check()
		return false, 0
	case !many, d.trust == 0 && d.recent-d.floor < d.threshold() && excess-least < 2*chance(share, n): // or by chance
		if d.calm++; d.calm >= calmWindows {
			d.calm, d.trust = 0, max(0, d.trust-1)
		}
		return false, 0
	}
	d.calm = 0
	if d.state != falling {
		d.state, d.start, d.before, d.after = falling, limit, dropSum{}, dropSum{}
	}
	switch {
	case d.before.windows < firstDrops:
		d.before.add(share, n, goodput)
	case limit <= muchLower*d.start:
		d.after.add(share, n, goodput)
	}
	return d.judge(limit)
}

// sane returns x, or 0 for a value that makes no sense.
func sane(x float64) float64 {
	if !(x > 0) || math.IsInf(x, 0) {
		return 0
	}
	return x
}

// threshold is the share of drops above the floor from which on they are many.
func (d *drops) threshold() float64 { return (1 - d.floor) / dropShare }

// judge returns the effect of a window of a run.
func (d *drops) judge(limit float64) (lower bool, restore float64) {
	if d.after.windows < laterDrops {
		return true, 0
	}
	share, ratio := d.after.share(), d.after.mean()/max(1e-9, d.before.mean())
	if share >= asMany*d.before.share() && leastFloor <= share && share <= mostFloor {
		inexact := 0.7 * math.Sqrt(1/d.before.others()+1/d.after.others()) // most of the standard deviation of the ratio
		switch {
		case ratio < min(lessGood, 1-inexact) && d.trust > 0:
			d.trust--
			d.after = dropSum{}
			return true, 0
		case ratio < min(lessGood, 1-inexact):
			d.state, d.floor, d.knee = steady, share, 0
			return false, d.start
		case ratio < lessGood && d.after.windows < mostDrops:
			return true, 0
		}
	}
	if share-d.floor < d.threshold() { // few are left
		d.state = steady
		return false, 0
	}
	d.before, d.after, d.start = d.after, dropSum{}, limit
	return true, 0
}

// check ends a run after which the drops have gone away, once that is certain, or after some windows.
func (d *drops) check() {
	switch {
	case d.before.fewer(&d.after) && d.after.share()-d.floor < cure*(d.before.share()-d.floor):
		if d.before.share() <= mostFloor {
			d.knee, d.trust = d.start, min(mostTrust, d.trust+1)
		}
		d.state = steady
	case d.after.windows >= checkDrops:
		d.state = steady
	}
}

// grow returns the limit that is to grow to another one. It grows slowly near the knee, and not at all while a cure is
// checked.
func (d *drops) grow(limit, to float64) float64 {
	switch {
	case to <= limit:
		return to
	case d.state == checking:
		return limit
	case limit > beyond*d.knee:
		d.knee = 0
		return to
	}
	return min(to, max(limit+tiny, backoff*backoff*d.knee))
}
