package inflight

// Gradient lowers the limit in proportion as latency is above its baseline: limit ×
// tolerance × baseline / latency, and adds headroom for a queue of a fifth of the
// limit, 4 at least. It settles where latency is about 1.9 times the baseline, without
// being told what is too slow. It is the default to choose where latency matters and the
// backend's capacity is unknown.
//
// The formula is that of Gradient2 in Netflix's concurrency-limits 0.5.4. There the baseline
// is a long-term average, which a backend that stays saturated draws up without end, and the
// headroom is 4, which finds a limit of some hundreds slowly. Here the baseline is
// probed: when latency first rises, when the limit has halved, and every 1000 saturated
// windows, the limit is halved for a few windows, again and again until latency no longer
// falls with it.
//
// It has the options [Min], [Max], [Start] and [Tolerance].
func Gradient(opts ...Option) Adaptive {
	t := tune("Gradient", opts)
	return func() Algorithm {
		g := &gradient{level: newLevel(t), base: baseline{every: reprobe}, tolerated: defaultTolerance}
		if t.tolerance != nil {
			g.tolerated = *t.tolerance
		}
		return g
	}
}

type gradient struct {
	level
	base      baseline
	tolerated float64 // latency, in baselines
}

const (
	defaultTolerance = 1.5
	leastGradient    = 0.5
	gradientWeight   = 0.5 // of a window's result against the limit before
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

// Update returns the limit after a window.
func (g *gradient) Update(s Sample) int {
	switch {
	case g.base.probing && s.RTT > 0:
		return g.set(g.base.next(float64(s.RTT), g.tolerated), s.Max)
	case s.Dropped:
		return g.set(g.limit*backoff, s.Max)
	case s.RTT <= 0:
		return g.set(g.limit, s.Max)
	}
	idle := g.idle(s)
	g.base.observe(float64(s.RTT), idle)
	slope := min(1, g.tolerated*g.base.rtt/g.base.smooth)
	if g.base.due(g.limit, slope < 1) {
		return g.set(g.base.begin(g.limit), s.Max)
	}
	to := g.limit*max(leastGradient, slope) + max(leastQueue, queueShare*g.limit)
	to = g.limit + gradientWeight*(to-g.limit)
	if idle {
		to = min(to, g.limit)
	}
	return g.set(to, s.Max)
}
