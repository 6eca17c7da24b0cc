package inflight

import (
	"cmp"
	"fmt"
	"math"
	"time"
)

// LearnOptions configure [Learn]. Nil and the zero LearnOptions
// mean the defaults. [New] returns an error for an invalid value.
type LearnOptions struct {
	// Min is the algorithm's lowest limit, unless the key's upper bound is lower. It defaults to 1.
	Min int

	// Start is the initial limit. It defaults to 20.
	Start int

	// Timeout is the longest acceptable mean latency. If a window's successes take longer on average, the
	// window counts as Dropped, and its latency never becomes the baseline. If zero, there is no timeout.
	Timeout time.Duration

	// Tolerance bounds the queue in the backend, as a ratio from 1 to 1000. It defaults to 1.5. For example, a
	// backend for ten requests at once then has a queue of 10, and one for a hundred has a queue of 31. At a
	// Tolerance of 1 the queues are 4 and 9. If latency is steady, the queue is half as long, but at least 4.
	Tolerance float64
}

// Learn returns the adaptive algorithm, for Options.Adaptive and Options.Shared. It needs no settings.
// It compares latency with an idle backend's, and keeps a short queue in the backend. To measure an
// idle backend, it lowers the limit for a few windows from time to time. Processes with a common
// backend do so at the same instants of the system's clock. Their clocks may differ by at most 100 ms.
//
// The limit's formula is GradientLimit's in Netflix's concurrency-limits.
// The queue grows with the square root of the backend's capacity.
func Learn(opts *LearnOptions) func() Algorithm {
	var o LearnOptions
	if opts != nil {
		o = *opts
	}
	t := tuning{cmp.Or(o.Min, 1), cmp.Or(o.Start, startLimit), o.Timeout}
	tolerance := cmp.Or(o.Tolerance, defaultTolerance)
	return func() Algorithm { return &learnt{level: newLevel(t), tolerance: tolerance} }
}

// learnt is the algorithm of [Learn]. It sets the limit to the backend's
// simultaneous work, limit × baseline / latency, plus a queue.
type learnt struct {
	level
	base      baseline
	tolerance float64
	queue     float64 // the queue in the latest target
}

const (
	defaultTolerance = 1.5
	maxTolerance     = 1000
	queueShare       = 0.2
	rootQueue        = 3.5 // the queue, in square roots of the backend's simultaneous work
	growth           = 5   // the limit's maximum growth while there is no sign of a queue, in the same roots
	quiet            = 0.5 // the allowed part of the queue if latency does not vary
	unquiet          = 6   // if the logarithm of a window's latency has a standard deviation of 1/unquiet, all the queue is allowed
	leastQueue       = 4
	sizedQueue       = 0.7  // with amounts, the queue in the same roots: answers keep 0.8 of their speed with eight at once, and 0.9 with thirty
	sizedGrowth      = 2    // with amounts, the growth while no answer is slow, in the same roots
	unslowed         = 1.05 // no answer is slow up to this multiple of the backend's simultaneous work
)

func (a *learnt) validate() error {
	if !(a.tolerance >= 1 && a.tolerance <= maxTolerance) {
		return fmt.Errorf("inflight: LearnOptions.Tolerance is %v, want 0 for the default or 1 to %d", a.tolerance, maxTolerance)
	}
	return a.tuning.validate()
}

// target returns the limit by latency. It is the sum of the unused part, the backend's simultaneous work, and the queue.
//
// The queue grows more slowly than the work. So if two processes share a backend, the process with more work has the
// shorter queue for its work, and the shares become equal. If the queue grew in proportion, unequal shares would last.
//
// With amounts, the queue is much shorter. Work beyond what the backend does at once
// slows all answers. The time per amount is precise, so even a short queue shows.
func (a *learnt) target(l load) float64 {
	least := float64(leastQueue)
	if l.sized {
		least = 1
	}
	a.queue = l.bears(max(least, a.allowed(l)*(a.tolerance/(1-queueShare)-1)))
	return l.free() + l.busy + a.queue
}

// allowed returns the queue's length before the Tolerance multiplies it.
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

// Queue returns the limit's part for the queue in the backend.
func (a *learnt) Queue() int { return int(a.queue) }
