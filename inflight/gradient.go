package inflight

import (
	"cmp"
	"fmt"
	"time"
)

// GradientOptions are the settings of [Gradient]. Nil and the zero GradientOptions mean the defaults. An invalid value is
// an error of [New].
type GradientOptions struct {
	// Min is the limit below which the algorithm does not go, unless the key's upper bound is lower. It defaults to 1.
	Min int

	// Start is the initial limit. It defaults to 20.
	Start int

	// Window is the minimum number of outcomes in a window. A larger window makes the limit steadier and slower to
	// adapt. It defaults to 20.
	Window int

	// Timeout is the mean latency of successes above which a window counts as Dropped. Such a latency never becomes the
	// baseline. If zero, there is none.
	Timeout time.Duration

	// Tolerance is the ratio of latency to its baseline above which the limit falls, from 1 to 1000. It defaults to 1.5.
	Tolerance float64

	// Headroom is the length of the shortest queue that is allowed in the backend, in units. It defaults to 4.
	Headroom int
}

// Gradient lets latency be about 1.9 times its baseline, or keeps a queue of 4 where that is longer. Choose it
// where latency matters and the backend's capacity is unknown.
func Gradient(opts *GradientOptions) Adaptive {
	var o GradientOptions
	if opts != nil {
		o = *opts
	}
	t := newTuning("Gradient", o.Min, o.Start, o.Window, o.Timeout)
	tolerance, headroom := cmp.Or(o.Tolerance, defaultTolerance), float64(cmp.Or(o.Headroom, leastQueue))
	return func() Algorithm { return &gradient{level: newLevel(t), tolerance: tolerance, headroom: headroom} }
}

// gradient sets the limit to limit × baseline / latency, the work that the backend does at once, and the queue
// on top.
type gradient struct {
	level
	base      baseline
	tolerance float64 // the allowed ratio of latency to its baseline
	headroom  float64 // the shortest queue
}

const (
	defaultTolerance = 1.5
	queueShare       = 0.2
	leastQueue       = 4
)

func (g *gradient) validate() error {
	switch {
	case !(g.tolerance >= 1 && g.tolerance <= maxTolerance):
		return fmt.Errorf("inflight: GradientOptions.Tolerance is %v, want 0 for the default or 1 to %d", g.tolerance, maxTolerance)
	case g.headroom < 1:
		return fmt.Errorf("inflight: GradientOptions.Headroom is %v, want 0 for the default or more", g.headroom)
	}
	return g.tuning.validate()
}

const maxTolerance = 1000

// target is the limit that latency and headroom allow: its unused part, the work that the backend
// does at once, and the queue.
func (g *gradient) target(l load) float64 {
	return l.free() + l.busy + l.bears(max(g.headroom, l.busy*(g.tolerance/(1-queueShare)-1)))
}

// Update returns the limit after a window.
func (g *gradient) Update(s Sample) int { return g.base.update(&g.level, s, g.target) }
