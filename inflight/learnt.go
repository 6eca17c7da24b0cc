package inflight

import (
	"cmp"
	"fmt"
	"math"
	"time"
)

// LearnOptions are the settings of [Learn]. Nil and the zero LearnOptions mean the defaults. An invalid value is an error of [New].
type LearnOptions struct {
	// Min is the limit below which the algorithm does not go, unless the key's upper bound is lower. It defaults to 1.
	Min int

	// Start is the initial limit. It defaults to 20.
	Start int

	// Timeout is the mean latency of successes above which a window counts as Dropped. Such a latency never becomes the
	// baseline. If zero, there is none.
	Timeout time.Duration

	// Tolerance is the length of the queue that is allowed in the backend, as a ratio, from 1 to 1000. At the default of 1.5, ten servers
	// have a queue of 10, and a hundred a queue of 31; at 1, of 4 and 9. Where latency is steady it is half as long, but at least 4.
	Tolerance float64
}

// Learn returns the adaptive algorithm, for Options.Adaptive and Options.Shared. It compares latency with the latency of an idle backend, which it finds by lowering the limit
// for a few windows from time to time, and keeps a short queue in the backend. It needs no setting. Several processes in front of one backend
// lower their limits at the same instants of the system's clock, so their clocks may differ by 100 ms.
//
// The limit is that of Netflix's concurrency-limits (GradientLimit), with a queue in proportion to the root of the backend's capacity.
func Learn(opts *LearnOptions) func() Algorithm {
	var o LearnOptions
	if opts != nil {
		o = *opts
	}
	t := tuning{cmp.Or(o.Min, 1), cmp.Or(o.Start, startLimit), o.Timeout}
	tolerance := cmp.Or(o.Tolerance, defaultTolerance)
	return func() Algorithm { return &learnt{level: newLevel(t), tolerance: tolerance} }
}

// learnt sets the limit to limit × baseline / latency, the work that the backend does at once, and the queue on top.
type learnt struct {
	level
	base      baseline
	tolerance float64
	queue     float64 // of the latest target
}

const (
	defaultTolerance = 1.5
	maxTolerance     = 1000
	queueShare       = 0.2
	rootQueue        = 3.5 // the queue, in roots of the work that the backend does at once
	growth           = 5   // the same, by which the limit grows at most while no queue is seen
	quiet            = 0.5 // of the queue, where latency does not vary
	unquiet          = 6   // standard deviations of the logarithm of a window's latency from which on all of the queue is allowed
	leastQueue       = 4
	sizedQueue       = 0.7  // with amounts: the queue, in the same roots, so that answers keep 0.8 of their speed with eight at once, and 0.9 with thirty
	sizedGrowth      = 2    // the same, by which the limit grows while no answer is slow
	unslowed         = 1.05 // times the work that the backend does at once: no answer is slow
)

func (a *learnt) validate() error {
	if !(a.tolerance >= 1 && a.tolerance <= maxTolerance) {
		return fmt.Errorf("inflight: LearnOptions.Tolerance is %v, want 0 for the default or 1 to %d", a.tolerance, maxTolerance)
	}
	return a.tuning.validate()
}

// target is the limit that latency and the queue allow: its unused part, the work that the backend does at once, and the queue. The queue grows
// less than in proportion to the work. So, of two processes in front of one backend, the process with more work has a shorter queue in
// proportion, and shares become equal; in proportion, any shares would last. With amounts it is much shorter: work that is more than the backend
// does at once slows all of it, and the time per amount is known so well that a short queue is seen.
func (a *learnt) target(l load) float64 {
	least := float64(leastQueue)
	if l.sized {
		least = 1
	}
	a.queue = l.bears(max(least, a.allowed(l)*(a.tolerance/(1-queueShare)-1)))
	return l.free() + l.busy + a.queue
}

// allowed is the queue at a factor of 1.
func (a *learnt) allowed(l load) float64 {
	root := math.Sqrt(l.busy)
	switch {
	case l.sized && l.inFlight < unslowed*l.busy:
		return sizedGrowth * root
	case l.sized:
		return sizedQueue * root
	}
	queue := min(l.busy, growth*root)
	if l.inFlight > longer*l.busy {
		queue = rootQueue * root
	}
	return queue * max(quiet, min(1, unquiet*math.Sqrt(l.noise)))
}

// Update returns the limit after a window.
func (a *learnt) Update(s Sample) int { return a.base.update(&a.level, s, a.target) }

// Queue returns the part of the limit that is the queue in the backend.
func (a *learnt) Queue() int { return int(a.queue) }
