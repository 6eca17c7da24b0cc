package inflight

import "time"

// AIMDOptions are the settings of [AIMD]. Nil and the zero AIMDOptions mean the defaults. An invalid value is an error of
// [New].
type AIMDOptions struct {
	// Min is the limit below which the algorithm does not go, unless the key's upper bound is lower. It defaults to 1.
	Min int

	// Start is the initial limit. It defaults to 20.
	Start int

	// Window is the minimum number of outcomes in a window. A larger window makes the limit steadier and slower to
	// adapt. It defaults to 20.
	Window int

	// Timeout is the mean latency of successes above which a window counts as Dropped. If zero, latency does not count.
	Timeout time.Duration
}

// AIMD raises the limit step by step while the backend copes, and lowers it by a tenth in each window that is Dropped.
// It needs a definition of too slow: report [Dropped] outcomes, or set Timeout.
func AIMD(opts *AIMDOptions) Adaptive {
	var o AIMDOptions
	if opts != nil {
		o = *opts
	}
	t := newTuning("AIMD", o.Min, o.Start, o.Window, o.Timeout)
	return func() Algorithm { return &aimd{level: newLevel(t)} }
}

// aimd is that of V. Jacobson, "Congestion avoidance and control", SIGCOMM 1988, with the factor of Netflix's
// concurrency-limits 0.5.4. The limit is found, and found again, within some 20 windows.
type aimd struct {
	level
	falling int     // bad windows in a row
	high    float64 // the limit at which the last fall began; 0 if there was none
}

const (
	backoff   = 0.9
	leastCut  = 0.5
	fastStep  = 0.25
	surge     = 0.5
	smallStep = 0.05
	tiny      = 0.5
	near      = 0.7 // of Timeout
	leap      = 3   // times the limit, where it was far higher before, and nothing is slow
	known     = 0.7 // of high: below it, the limit was good before
	beyond    = 1.2 // times high: above it, the backend has grown
)

func (a *aimd) validate() error { return a.tuning.validate() }

// Update returns the limit after a window.
func (a *aimd) Update(s Sample) int {
	slow := 0.0 // latency of successes, in timeouts
	if a.timeout > 0 {
		slow = float64(s.served()) / float64(a.timeout)
	}
	lower, restore := a.drops.add(s, a.limit)
	switch {
	case lower, slow > 1, s.Cancelled > mostly:
		if a.falling++; a.falling == 1 {
			a.high = a.limit
		}
		to := backoff
		if a.falling > 1 && slow > 1 { // one window that is far too slow may be an accident
			to = max(leastCut, min(to, 1/slow))
		}
		return a.set(a.limit*to, s.Max)
	case restore > 0:
		a.falling = 0
		return a.set(restore, s.Max)
	}
	a.falling = 0
	if a.idle(s) {
		return a.set(a.limit, s.Max)
	}
	return a.set(a.drops.grow(a.limit, a.limit+a.step(slow)), s.Max)
}

// step is by how much the limit grows after a good window.
func (a *aimd) step(slow float64) float64 {
	switch {
	case a.limit < known*a.high && slow < 0.5:
		return min(leap*a.limit, max(1, known*a.high-a.limit))
	case slow >= near:
		return tiny
	case a.high > 0 && (a.limit < known*a.high || a.limit > beyond*a.high):
		return max(1, a.limit*surge)
	case a.high == 0:
		return max(1, a.limit*fastStep)
	}
	return max(1, a.limit*smallStep)
}
