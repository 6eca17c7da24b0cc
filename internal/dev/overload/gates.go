package overload

import (
	"math"
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

// Limiter is a gate with one of package inflight's limits, on the simulated clock.
type Limiter struct {
	Windows int           // how many windows the algorithm has seen
	Limit   int           // the algorithm's latest value
	Timeout time.Duration // the algorithm's Timeout, if the best fixed limit must keep it, too
	Trace   func(now time.Duration, s inflight.Sample, limit int)

	l   *inflight.Limiter[string]
	now time.Duration
}

// NewLimiter returns a gate with an adaptive limit of at most bound.
func NewLimiter(bound int, a func() inflight.Algorithm) *Limiter {
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

// Fleet is several gates, one for each process, in front of one backend. Requests use the gates in turn.
type Fleet struct {
	Gates []Gate
	next  int
}

// Enter implements Gate.
func (f *Fleet) Enter(now time.Duration, r *Request) bool {
	g := f.Gates[f.next]
	f.next = (f.next + 1) % len(f.Gates)
	r.via = g
	return g.Enter(now, r)
}

// Leave implements Gate.
func (f *Fleet) Leave(now time.Duration, r *Request, o inflight.Outcome) { r.via.Leave(now, r, o) }

// Gradient2 is a gate with Gradient2Limit from Netflix's concurrency-limits 0.5.4, with
// its default options. It divides the mean latency over about 600 requests by one
// request's latency. The limit follows this ratio, at most 1, plus a queue of 4, smoothed.
type Gradient2 struct {
	Most     float64
	limit    float64
	long     float64 // the mean latency
	samples  float64
	inFlight int
}

const (
	gradient2Start     = 20
	gradient2Memory    = 600
	gradient2Tolerance = 1.5
	gradient2Queue     = 4
	gradient2Smoothing = 0.2
)

func (g *Gradient2) current() float64 {
	if g.limit == 0 {
		return min(gradient2Start, g.Most)
	}
	return g.limit
}

// Enter implements Gate.
func (g *Gradient2) Enter(time.Duration, *Request) bool {
	if float64(g.inFlight) >= math.Floor(g.current()) {
		return false
	}
	g.inFlight++
	return true
}

// Leave implements Gate. As in the original, all requests count, whatever their outcome.
func (g *Gradient2) Leave(now time.Duration, r *Request, _ inflight.Outcome) {
	rtt, inFlight := max(1, float64(now-r.Sent)), float64(g.inFlight)
	g.inFlight--
	g.samples = min(g.samples+1, gradient2Memory)
	g.long += (rtt - g.long) * max(1/g.samples, 2/(gradient2Memory+1.))
	if g.long > 2*rtt {
		g.long *= 0.95 // long still measures an overload that has ended
	}
	limit := g.current()
	if inFlight < limit/2 {
		return
	}
	gradient := max(0.5, min(1, gradient2Tolerance*g.long/rtt))
	to := limit*gradient + gradient2Queue
	g.limit = max(1, min(g.Most, limit+(to-limit)*gradient2Smoothing))
}
