package overload

import (
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/inflight"
)

// Fixed is a gate with a limit that stays the same.
type Fixed struct{ Limit, inFlight int }

// Enter implements Gate.
func (f *Fixed) Enter(time.Duration, *Request) bool {
	if f.inFlight >= f.Limit {
		return false
	}
	f.inFlight++
	return true
}

// Leave implements Gate.
func (f *Fixed) Leave(time.Duration, *Request, inflight.Outcome) { f.inFlight-- }

// Limiter is a gate with a limit of package inflight, on the simulation's clock.
type Limiter struct {
	Windows int           // that the algorithm has learnt from
	Limit   int           // what it has said last
	Timeout time.Duration // that the algorithm was told, if the best fixed limit is to keep to it as well
	Trace   func(now time.Duration, s inflight.Sample, limit int)

	l   *inflight.Limiter[string]
	now time.Duration
}

// NewLimiter returns a gate whose limit adapts, up to a bound.
func NewLimiter(bound int, a inflight.Adaptive) *Limiter {
	g := &Limiter{}
	g.l = ratelimit.Must(inflight.New(bound, &inflight.Options[string]{
		Clock:    g,
		Adaptive: func() inflight.Algorithm { return &counted{a(), g} },
	}))
	return g
}

// Now implements ratelimit.Clock.
func (g *Limiter) Now() time.Duration { return g.now }

// Enter implements Gate.
func (g *Limiter) Enter(now time.Duration, r *Request) bool {
	g.now = now
	var err error
	r.Permit, err = g.l.TryAcquire("backend", 1)
	return err == nil
}

// Leave implements Gate.
func (g *Limiter) Leave(now time.Duration, r *Request, o inflight.Outcome) {
	g.now = now
	r.Permit.Done(o)
}

// counted counts an algorithm's windows.
type counted struct {
	inflight.Algorithm
	g *Limiter
}

func (c *counted) Limit() int {
	if l, ok := c.Algorithm.(interface{ Limit() int }); ok {
		return l.Limit()
	}
	return 20
}

func (c *counted) Update(s inflight.Sample) int {
	c.g.Limit = c.Algorithm.Update(s)
	c.g.Windows++
	if c.g.Trace != nil {
		c.g.Trace(c.g.now, s, c.g.Limit)
	}
	return c.g.Limit
}

// Allows implements Allows.
func (g *Limiter) Allows() time.Duration { return g.Timeout }

// State implements Gated.
func (g *Limiter) State() (windows, limit int) { return g.Windows, g.Limit }

// State implements Gated.
func (f *Fixed) State() (windows, limit int) { return -1, f.Limit }
