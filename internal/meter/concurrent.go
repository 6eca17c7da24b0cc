package meter

import "math"

// Units in use are counted as a sliding log counts: each reservation is an
// entry until hold has passed, or until End removes it. The differences are:
//
//   - Nothing is booked ahead, and there is no debt. A charge is an entry, whether it fits or not.
//   - More may be in use than the units, after the limit was lowered: no entry is set aside.
//   - The instant when a cost fits is an estimate: see estimate. It is now if and only if the cost fits now.

// sampled is the maximum number of entries whose ages an estimate reads.
const sampled = 64

// estimate returns now if a cost fits. Otherwise it estimates when the cost fits, as if in each time span as many
// calls ended as began. So a unit comes back after the mean age of the units in use, divided by their number.
func (l *slidingLog) estimate(s State, now, cost int64) int64 {
	used := l.counts(s, now)
	excess := used - (l.units - cost)
	if excess <= 0 {
		return now
	}
	return now + l.after(s, now, used, excess)
}

// back returns the estimated time until one unit comes back, if any is in use.
func (l *slidingLog) back(s State, now int64) int64 {
	if s.detail == nil {
		return math.MinInt64
	}
	used := l.counts(s, now)
	if used == 0 {
		return math.MinInt64
	}
	return now + l.after(s, now, used, 1)
}

// after returns the estimated time until the given number of the used
// units come back. If there are many entries, it reads a sample.
func (l *slidingLog) after(s State, now, used, units int64) int64 {
	r := &s.log
	first := r.search(now - l.per + 1)
	n := r.len() - first
	step := 1 + (n-1)/sampled
	sum, weight := 0.0, 0.0 // floats suffice for an estimate: no budget depends on it
	for i := first; i < r.len(); i += step {
		e := r.get(i)
		sum += float64(now-e.at) * float64(e.cost)
		weight += float64(e.cost)
	}
	wait := sum / weight / float64(used) * float64(units)
	if wait >= float64(l.per) {
		return l.per
	}
	return min(max(int64(wait), l.retry), l.per)
}
