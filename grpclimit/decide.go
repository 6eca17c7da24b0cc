package grpclimit

import (
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/weir-go/ratelimit/internal/edge"
	"github.com/weir-go/ratelimit/internal/outcome"
)

// serve decides a call or a message, calls next if it may be served, and settles its charge in any case. A panic continues after that. The
// stream is the one whose response is settled, nil for a unary call.
func (i *Interceptor) serve(e *event, t trailers, s *watchedStream, settles bool, next func() (any, error)) (resp any, err error) {
	res := i.core.Decide(e, settles)
	if t.first {
		i.waitForMessage(e)
	}
	if res != nil {
		charge := i.core.Charge(e, res)
		defer charge.End()
		if err = i.pass(e, t); err != nil {
			return nil, err
		}
		charge.Serve()
		if settles {
			return i.settled(e, charge, s, next)
		}
	} else if err = i.pass(e, t); err != nil {
		return nil, err
	}
	return next()
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
		t.set(func() metadata.MD { return i.limits(e, t) })
	}
	switch e.Outcome {
	case edge.Allowed:
		if i.core.Hold(e) {
			return nil
		}
		if ctx := e.Request.Context(); e.Outcome == edge.Allowed {
			outcome.MarkRefused(ctx)
			return gone(ctx)
		}
	case edge.FailedOpen:
		return nil
	}
	outcome.MarkRefused(e.Request.Context())
	return i.refuse(e, t)
}

// tooLate reports whether the call's deadline comes before its delay is over.
func tooLate(c *Call, delay time.Duration) bool {
	deadline, ok := c.Context().Deadline()
	return ok && time.Until(deadline) <= delay
}
