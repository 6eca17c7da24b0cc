package edge

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/held"
)

// Stay is how long a request holds units of [ratelimit.Concurrent] or a similar limit. It lasts until the handler
// has returned and a hijacked connection is closed. Stay extends the hold until then. The units may lapse
// nevertheless, for example during an outage of the store. Then Stay ends the handler's context, except in a shadow.
type Stay[R Request] struct {
	core     *Core[R]
	request  R
	res      *ratelimit.Reservation
	interval time.Duration // the time from one extension to the next
	timer    *time.Timer
	within   context.Context // the handler's context
	lose     context.CancelCauseFunc
	parts    atomic.Int32 // open parts
	actual   atomic.Int64 // the cost to settle
}

// hold begins the stay of a request whose reservation holds units, and returns
// a context for it. If there are no such units, it returns the same context.
func (c *Charge[R]) hold(ctx context.Context) context.Context {
	hold := held.Hold(c.res)
	if hold <= 0 {
		return ctx
	}
	s := &Stay[R]{core: c.core, request: c.request, res: c.res, interval: max(hold/3, time.Millisecond)}
	s.within, s.lose = ctx, func(error) {}
	if !c.core.Shadow {
		s.within, s.lose = context.WithCancelCause(ctx)
	}
	s.parts.Store(1)
	set := make(chan struct{})
	s.timer = time.AfterFunc(s.interval, func() { <-set; s.extend() })
	close(set)
	c.stay = s
	return s.within
}

// Stay returns the request's stay, or nil if the request holds no units.
func (c *Charge[R]) Stay() *Stay[R] { return c.stay }

// Share adds a part to the stay. End ends it.
func (s *Stay[R]) Share() { s.parts.Add(1) }

// End ends a part of the stay. The end of the last part gives the units back.
func (s *Stay[R]) End() {
	if s.parts.Add(-1) > 0 {
		return
	}
	s.timer.Stop() // extend may run once more, but by then the reservation is settled
	s.core.settle(s.request, s.res, int(s.actual.Load()))
	s.lose(nil)
}

// leave ends the handler's part of the stay.
func (s *Stay[R]) leave(actual int) {
	s.actual.Store(int64(actual))
	s.End()
}

// extend extends the hold now and after each interval, until the stay has ended. While the store
// is down the units may still be held, so only [ratelimit.ErrLost] ends the handler's context.
func (s *Stay[R]) extend() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.within), s.interval)
	defer cancel()
	err := s.res.Extend(ctx)
	switch {
	case s.parts.Load() == 0:
	case errors.Is(err, ratelimit.ErrLost):
		s.core.settleLog.line(s.within, s.core.Logger, s.core.Now(), slog.LevelWarn, s.core.Package+": units lapsed while the "+s.core.Thing+" was served", "error", err)
		s.lose(err)
	default:
		s.timer.Reset(s.interval)
	}
}
