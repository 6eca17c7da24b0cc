package grpclimit

import (
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/ctxwait"
	"github.com/weir-go/ratelimit/internal/edge"
	"github.com/weir-go/ratelimit/internal/refused"
)

// enforce is pass, and gives the charge back if the call is not served.
func (i *Interceptor) enforce(e *event, t trailers, res *ratelimit.Reservation) (err error) {
	if res == nil {
		return i.pass(e, t)
	}
	served := false
	defer func() {
		if !served {
			i.core.Settle(e.Request, res, 0)
		}
	}()
	err = i.pass(e, t)
	served = err == nil
	return err
}

// pass reports the decision to everyone, and holds the call for as long as it is delayed.
// If the call may not be served, the error is the client's answer.
func (i *Interceptor) pass(e *event, t trailers) error {
	i.core.Report(e)
	if i.opts.Shadow {
		return nil
	}
	if e.Decision.Degraded && i.opts.DegradedTrailer != "" {
		t.set(func() metadata.MD { return metadata.MD{i.opts.DegradedTrailer: {"true"}} })
	}
	if i.opts.LimitTrailers && t.tells(e.Outcome) {
		t.set(func() metadata.MD { return i.limits(e) })
	}
	switch e.Outcome {
	case edge.Allowed:
		if ctx := e.Request.Context(); ctxwait.Sleep(ctx, e.Decision.Delay) != nil {
			refused.Mark(ctx)
			return gone(ctx)
		}
		return nil
	case edge.FailedOpen:
		return nil
	}
	refused.Mark(e.Request.Context())
	return i.refuse(e, t)
}

// tooLate reports whether the call's deadline comes before its delay is over.
func tooLate(c *Call, delay time.Duration) bool {
	deadline, ok := c.Context().Deadline()
	return ok && time.Until(deadline) <= delay
}
