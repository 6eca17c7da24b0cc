// Package peergate has gates for the overload simulation, with other libraries' limits.
package peergate

import (
	"time"

	"github.com/failsafe-go/failsafe-go/adaptivelimiter"

	"github.com/weir-go/ratelimit/inflight"
	grid "github.com/weir-go/ratelimit/internal/dev/overload"
)

// Failsafe is a gate with failsafe-go's adaptive limiter. The limiter reads the time itself.
// So the gate must run in a synctest bubble whose clock agrees with the simulation's.
type Failsafe struct {
	limiter adaptivelimiter.AdaptiveLimiter[any]
	start   time.Time

	windows, samples int
	began            time.Duration // the window's beginning
}

// NewFailsafe returns a gate with failsafe-go's defaults, except for the highest limit. It must be called in the bubble.
func NewFailsafe(bound int) *Failsafe {
	return &Failsafe{
		limiter: adaptivelimiter.NewBuilder[any]().WithLimits(1, uint(bound), uint(min(20, bound))).Build(),
		start:   time.Now(),
	}
}

func (f *Failsafe) set(now time.Duration) { time.Sleep(time.Until(f.start.Add(now))) }

// Enter implements the simulation's Gate.
func (f *Failsafe) Enter(now time.Duration, r *grid.Request) bool {
	f.set(now)
	p, ok := f.limiter.TryAcquirePermit()
	r.Token = p
	return ok
}

// Leave implements the simulation's Gate.
func (f *Failsafe) Leave(now time.Duration, r *grid.Request, o inflight.Outcome) {
	f.set(now)
	p := r.Token.(adaptivelimiter.Permit)
	if o != inflight.Success {
		p.Drop()
		return
	}
	p.Record()
	if f.samples++; f.samples >= 50 && now-f.began >= time.Second { // the defaults of failsafe-go
		f.windows, f.samples, f.began = f.windows+1, 0, now
	}
}

// State implements the simulation's Gated.
func (f *Failsafe) State() (windows, limit int) { return f.windows, f.limiter.Limit() }
