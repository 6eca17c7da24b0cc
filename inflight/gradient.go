package inflight

// Gradient lets latency be about 1.9 times its baseline, or keeps a queue of 4 where that is longer. Choose it
// where latency matters and the backend's capacity is unknown.
func Gradient(opts ...Option) Adaptive {
	t := tune("Gradient", opts)
	return func() Algorithm {
		g := &gradient{level: newLevel(t), tolerated: defaultTolerance, headroom: leastQueue}
		if t.tolerance != nil {
			g.tolerated = *t.tolerance
		}
		if t.headroom != nil {
			g.headroom = float64(*t.headroom)
		}
		return g
	}
}

// gradient sets the limit to limit × baseline / latency, which is what the backend works on at once, and the queue
// on top.
type gradient struct {
	level
	base      baseline
	tolerated float64 // latency, in baselines
	headroom  float64 // the shortest queue
}

const (
	defaultTolerance = 1.5
	queueShare       = 0.2
	leastQueue       = 4
)

func (g *gradient) validate() error {
	if err := g.has(false, true); err != nil {
		return err
	}
	if !(g.tolerated >= 1) || g.tolerated > maxTolerance {
		return errTolerance(g.tolerated)
	}
	return nil
}

const maxTolerance = 1000

// target is the limit that latency and headroom allow: what was not used of it, what the backend
// works on at once, and the queue.
func (g *gradient) target(l load) float64 {
	return l.free() + l.busy + l.bears(max(g.headroom, l.busy*(g.tolerated/(1-queueShare)-1)))
}

// Update returns the limit after a window.
func (g *gradient) Update(s Sample) int { return g.base.update(&g.level, s, g.target) }
