package overload

import (
	"slices"
	"time"
)

// Goodput returns how many answers a second came within the deadline, of those requests
// that were sent from … to.
func (r *Run) Goodput(from, to time.Duration) float64 {
	n := 0
	for _, a := range r.Answers {
		if from <= a.At && a.At < to && a.Latency <= r.Deadline {
			n++
		}
	}
	return float64(n) / (to - from).Seconds()
}

// P99 returns the latency that 99 of 100 answers were not above, of the requests that were
// sent from … to. 0 if there was none.
func (r *Run) P99(from, to time.Duration) time.Duration {
	var all []time.Duration
	for _, a := range r.Answers {
		if from <= a.At && a.At < to {
			all = append(all, a.Latency)
		}
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[len(all)*99/100]
}

// Window returns when the n-th window after an instant was over.
func (r *Run) Window(after time.Duration, n int) time.Duration {
	for _, u := range r.Updates {
		if u.At > after {
			if n--; n == 0 {
				return u.At
			}
		}
	}
	return 1 << 62
}

// Fixed are the fixed limits that the best one is looked for among.
var Fixed = []int{3, 5, 8, 10, 13, 16, 20, 25, 32, 40, 60, 100, 130, 200}

// Best returns the best fixed limit of a scenario and its run: of those with a goodput of
// at least 99 % of the highest, the one with the lowest p99.
func Best(sc *Scenario, seed uint64) (Limit, *Run) {
	runs := make([]*Run, len(Fixed))
	highest, end := 0.0, sc.Length()
	for i, n := range Fixed {
		runs[i] = Simulate(sc, Limit{Most: n}, seed)
		highest = max(highest, runs[i].Goodput(0, end))
	}
	best := -1
	for i, r := range runs {
		if r.Goodput(0, end) >= 0.99*highest && (best < 0 || r.P99(0, end) < runs[best].P99(0, end)) {
			best = i
		}
	}
	return Limit{Name: "best fixed", Most: Fixed[best]}, runs[best]
}
