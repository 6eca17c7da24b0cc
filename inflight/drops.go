package inflight

import "math"

// drops distinguishes drops by overload from drops at any limit. For example, a dead replica, a
// bug or a quota causes errors at any limit. Both kinds raise the share of drops. They differ in
// the effect of a lower limit: drops by overload go away; others stay, and fewer calls succeed.
//
// So a window with many drops begins a run. In a run the limit falls from window to
// window, at most to its initial value × deepest. A run ends in one of three ways:
//
//   - The drops go away. This is a cure. If the limit was much lower by then, the drops may
//     have gone away by themselves. So the limit climbs back step by step, until the drops
//     return. After a cure, the limit grows carefully near the value where the drops began.
//   - The share of drops stays, and goodput falls with the limit. The run had no effect. The limit returns to its value
//     before the run, and the share of drops becomes the floor. From then on only drops above the floor count.
//   - The share of drops stays, and goodput stays, too. The limit did not bound the load. The run goes on, and is
//     compared with this share from then on.
//
// A window may have few drops by chance. Such a window interrupts a run, and the run then goes
// on where it was. If it started again at its latest limit, each run would be compared with
// the previous one, and the limit would fall to its minimum step by step without any result.
//
// If several processes share a backend, a single run can mislead, because other processes use the capacity given up by
// one. A cure is evidence that drops depend on the limit. So after each cure, one later run without effect is ignored.
//
// An outage of the whole backend lowers the limit to its minimum. When some calls succeed again, a lower
// limit is not possible, so only a higher limit can show the kind of the remaining drops: see lift.
type drops struct {
	floor  float64  // the share of drops without a cure by a lower limit
	recent float64  // the share of drops, smoothed
	state  dropping // the run's stage
	top    float64  // the limit at the run's beginning
	start  float64  // the limit at the comparison's beginning; 0 if the next window with many drops begins a new run
	last   float64  // the limit in the last window with many drops
	good   float64  // the limit after a climb or a lift
	quick  bool     // whether drops take no longer than successes
	before dropSum  // the comparison's first windows
	after  dropSum  // the windows at a much lower limit
	trial  dropSum  // a check's windows, a climb or a lift
	trust  int      // runs without effect to ignore
	calm   int      // windows since the last run, or since trust last fell
	knee   float64  // the limit where the cured drops began; 0 without a cure
	tardy  float64  // windows of careful growth since the cure

	bottom dropSum // the last windows at the least limit
	total  bool    // whether the run has reached the least limit, and nearly all calls were dropped there
	wait   int     // windows at the least limit since the last lift
	pause  int     // windows at the least limit before the next lift
}

// dropping is a run's state.
type dropping int

const (
	steady   dropping = iota // no run
	falling                  // the limit falls
	checking                 // the drops have gone away; a few windows show whether it was chance
	climbing                 // the limit climbs back to its value before the run
	lifted                   // the limit has left its least value, as an experiment
)

const (
	firstDrops   = 2    // windows before the limit is much lower
	laterDrops   = 3    // windows at a much lower limit before the run is judged
	mostDrops    = 8    // the maximum number of windows at a much lower limit
	checkDrops   = 3    // the maximum number of windows to confirm a cure
	muchLower    = 0.7  // as a part of the limit at the comparison's start
	deepest      = 0.4  // as a part of the limit at the run's start; a comparison needs no lower limit
	asMany       = 0.8  // as a part of the earlier share; if at least this part is left, the drops have stayed
	lessGood     = 0.85 // as a part of the earlier goodput; below it, goodput has fallen with the limit
	moreGood     = 1.3  // as a multiple of the earlier goodput; above it, goodput has grown with the limit
	cure         = 0.5  // as a part of the earlier share above the floor; if less is left, the drops have gone away
	unequal      = 2    // in standard deviations; a smaller difference of shares may be chance
	certain      = 4    // in standard deviations; a larger difference is not chance
	leastFloor   = 0.05 // a smaller share is too small for a floor
	mostFloor    = 0.95 // a larger share is an outage of the whole backend
	allLost      = 0.9  // as a part of the share above the floor; no window has more by chance alone
	forget       = 0.01 // the part of the floor that fades in a window with fewer drops
	smoothing    = 100  // outcomes over which the share of drops is smoothed
	firstTrust   = 2    // trust at the start, when overload is a likely cause of drops
	mostTrust    = 6    // the maximum of trust
	calmWindows  = 20   // windows without a run until trust falls by one
	climbStep    = 2    // the factor of each step of a climb
	liftStep     = 8    // a lift's factor; other limiters of the same backend cannot balance so much
	liftPause    = 8    // windows between the first two lifts
	mostPause    = 64   // the maximum number of windows between two lifts
	carefulLeast = 6    // the minimum number of careful growth's windows
	carefulShare = 0.5  // the same for larger limits, in windows for each unit of the knee
)

// dropSum is a sum over windows.
type dropSum struct{ windows, outcomes, dropped, goodput float64 }

func (d *dropSum) add(share, outcomes, goodput float64) {
	d.windows++
	d.outcomes += outcomes
	d.dropped += share * outcomes
	d.goodput += goodput
}

func (d *dropSum) merge(e *dropSum) {
	d.windows += e.windows
	d.outcomes += e.outcomes
	d.dropped += e.dropped
	d.goodput += e.goodput
}

// share returns the share of drops.
func (d *dropSum) share() float64 { return d.dropped / max(1, d.outcomes) }

// mean returns the mean goodput.
func (d *dropSum) mean() float64 { return d.goodput / max(1, d.windows) }

// others counts the outcomes other than drops.
func (d *dropSum) others() float64 { return max(1, d.outcomes-d.dropped) }

// chance returns the standard deviation of a share of n outcomes.
func chance(share, n float64) float64 { return math.Sqrt(share * (1 - share) / n) }

// differ returns the difference between the shares of d and e, in units of the standard deviation by chance alone.
func (d *dropSum) differ(e *dropSum) float64 {
	n, m := max(1, d.outcomes), max(1, e.outcomes)
	x := d.share() - e.share()
	if by := chance((d.dropped+e.dropped)/(n+m), 1/(1/n+1/m)); by > 0 {
		return x / by
	}
	return 0 // both are 0, or both are 1
}

// add records a window under a limit, and reports whether the limit must fall. Otherwise,
// if restore is above 0, the limit becomes restore. least is the limit's minimum.
func (d *drops) add(s Sample, limit float64, least int) (lower bool, restore float64) {
	share, n, goodput := s.Drops, float64(max(1, s.Outcomes)), s.Goodput
	d.recent += n / (n + smoothing) * (share - d.recent)
	if share < d.floor {
		d.floor += forget * (share - d.floor)
	}
	if s.Dropped && share < 1./dropShare { // clients left, or a wrapper of the algorithm set Dropped
		d.state, d.calm, d.start = steady, 0, 0
		return true, 0
	}
	excess := share - d.floor
	needed := max(d.threshold(), min(3*chance(d.floor, n), allLost*(1-d.floor)))
	many := s.Dropped && excess >= needed
	if d.state == checking || d.state == climbing || d.state == lifted {
		d.trial.add(share, n, goodput)
	}
	switch d.state {
	case climbing:
		return false, d.climb(limit, many)
	case lifted:
		return false, d.lifting(limit, many)
	case checking:
		if restore = d.check(limit); restore > 0 {
			return false, restore
		}
	}
	switch {
	case d.state == falling && excess >= cure*(d.before.share()-d.floor): // the run goes on even if one window has fewer drops
	case d.state == falling && !many:
		d.state, d.trial = checking, dropSum{}
		d.trial.add(share, n, goodput)
		return false, d.check(limit)
	// or fewer by chance
	case !many, d.trust == 0 && d.recent-d.floor < d.threshold() && excess-needed < 2*chance(share, n):
		if d.calm++; d.calm >= calmWindows {
			d.calm, d.trust, d.start = 0, max(0, d.trust-1), 0
		}
		return false, 0
	}
	d.calm = 0
	if d.state != falling && (d.trust > 0 || limit >= d.start) {
		*d = drops{
			floor: d.floor, recent: d.recent, trust: d.trust, knee: d.knee, tardy: d.tardy,
			top: limit, start: limit, quick: true,
		}
	}
	d.state, d.last = falling, limit
	d.quick = d.quick && s.Served > 0 && 2*s.RTT < 3*s.Served
	switch {
	case d.before.windows < firstDrops:
		d.before.add(share, n, goodput)
	case limit <= muchLower*d.start:
		d.after.add(share, n, goodput)
	}
	if limit <= float64(least) {
		if to := d.lift(limit, share, n, goodput); to > 0 {
			return false, to
		}
	}
	lower, restore = d.judge(limit)
	if lower && limit <= deepest*d.start && share <= mostFloor {
		return false, limit
	}
	return lower, restore
}

// threshold returns the share of drops above the floor that counts as many.
func (d *drops) threshold() float64 { return (1 - d.floor) / dropShare }

// judge returns the limit's change after a window of a run: whether the limit falls further, or the value to return to.
func (d *drops) judge(limit float64) (lower bool, restore float64) {
	if d.after.windows < laterDrops {
		return true, 0
	}
	share, ratio := d.after.share(), d.after.mean()/max(1e-9, d.before.mean())
	// A run's first window may have many drops by chance, so a slightly smaller share is no sign of fewer
	// drops. After a cure, drops may depend on the limit, so any smaller share counts as fewer drops.
	stayed := share >= asMany*d.before.share() || d.trust == 0 && d.before.differ(&d.after) < unequal
	if stayed && leastFloor <= share && share <= mostFloor {
		inexact := 0.7 * math.Sqrt(1/d.before.others()+1/d.after.others()) // most of the ratio's standard deviation
		switch {
		case ratio < min(lessGood, 1-inexact) && d.trust > 0:
			d.trust--
			d.after = dropSum{}
			return true, 0
		case ratio < min(lessGood, 1-inexact):
			restore = d.start
			d.learn(share)
			return false, restore
		case ratio < lessGood+inexact/2 && d.after.windows < mostDrops:
			return true, 0
		}
	}
	if share-d.floor < d.threshold() { // few drops are left
		d.state = steady
		return false, 0
	}
	d.before, d.after, d.start = d.after, dropSum{}, limit
	return true, 0
}

// learn ends a run without effect. The share of drops becomes the floor.
func (d *drops) learn(floor float64) { d.state, d.floor, d.knee, d.start = steady, floor, 0, 0 }

// check ends a run once the drops have certainly gone away. If it is uncertain after some windows, the run goes
// on, either at once or with the next window with many drops. check returns the new limit, or 0 for no change.
func (d *drops) check(limit float64) (to float64) {
	cured := d.before.differ(&d.trial) > certain && d.trial.share()-d.floor < cure*(d.before.share()-d.floor)
	switch {
	case !cured && d.trial.windows < checkDrops:
		return 0
	case !cured:
		if d.before.windows >= firstDrops && limit <= muchLower*d.start {
			d.after.merge(&d.trial)
		}
		d.state = steady
		if d.trial.share()-d.floor >= d.threshold() {
			d.state = falling
		}
		return 0
	}
	start := d.start
	d.state, d.start = steady, 0
	switch {
	case d.before.share() > mostFloor:
	case d.quick && limit <= muchLower*d.top:
		d.state, d.good = climbing, limit
		return min(d.top, climbStep*limit)
	default:
		d.careful(start)
	}
	return 0
}

// careful makes the limit grow slowly near a knee. It also raises trust: one more run without effect will be ignored.
func (d *drops) careful(knee float64) {
	d.knee, d.tardy, d.trust = knee, 0, min(mostTrust, d.trust+1)
}

// climb returns the limit after a step of a climb. Only quick drops
// lead to a climb: slow drops would return too late to be noticed.
func (d *drops) climb(limit float64, many bool) (to float64) {
	switch {
	case many:
		d.state = steady
		d.careful(d.last)
		return d.good
	case limit < d.top:
		d.good = limit
		return min(d.top, climbStep*limit)
	}
	d.state = steady
	return 0
}

// lift records a window of a run at the least limit. It returns a higher limit to try, or 0. It tries one
// in two cases, because no lower limit can show anything there. Either an outage of the whole backend has
// become an outage of a part of it. Or the run began so low that there is nothing to compare it with.
//
// A lift misleads if other processes use all remaining capacity of the same
// backend. Cures are a sign of such processes, so each cure delays a lift.
func (d *drops) lift(limit, share, n, goodput float64) (to float64) {
	if d.bottom.windows >= laterDrops {
		d.bottom = dropSum{}
	}
	d.bottom.add(share, n, goodput)
	d.wait++
	switch {
	case d.bottom.windows < laterDrops:
		return 0
	case d.bottom.share() > mostFloor:
		d.total = true
		return 0
	case d.total:
		to = min(liftStep*limit, d.top/2)
	case muchLower*d.start >= limit:
		return 0
	case d.trust > 0:
		if d.wait >= liftPause {
			d.wait, d.trust = 0, d.trust-1
		}
		return 0
	default:
		to = liftStep * limit
	}
	if d.wait < d.pause {
		return 0
	}
	d.wait, d.pause = 0, min(mostPause, max(liftPause, 2*d.pause))
	d.state, d.good, d.trial = lifted, limit, dropSum{}
	return max(limit+1, to)
}

// lifting returns the limit after a window of a lift. If the share of drops has not risen, and goodput has grown with
// the limit, the share becomes the floor.
func (d *drops) lifting(limit float64, many bool) (to float64) {
	higher := d.trial.differ(&d.bottom)
	better := d.trial.share() <= mostFloor && d.trial.mean() > moreGood*d.bottom.mean()
	last := d.trial.windows >= mostDrops
	switch {
	case !many:
		d.state = steady
		return 0
	case d.trial.windows < laterDrops:
		return limit
	case better && (higher < 1 || last && higher < unequal):
		d.learn(d.trial.share())
		return 0
	case !last && higher < unequal:
		return limit
	}
	d.state, d.before, d.after, d.bottom = falling, d.bottom, dropSum{}, dropSum{}
	return d.good
}

// grow returns the next limit on the way up to a target. Near the knee the limit grows carefully for some time. While a
// cure is checked, it does not grow.
func (d *drops) grow(limit, to float64) float64 {
	switch {
	case to <= limit:
		return to
	case d.state == checking:
		return limit
	case limit > beyond*d.knee, d.tardy > max(carefulLeast, carefulShare*d.knee):
		d.knee = 0
		return to
	}
	d.tardy++
	return min(to, max(limit+tiny, backoff*backoff*d.knee))
}
