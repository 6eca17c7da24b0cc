package grpclimit

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/weir-go/ratelimit/internal/edge"
	"github.com/weir-go/ratelimit/internal/outcome"
)

// serve decides on a call or a message. If it is allowed, serve calls next with the context for it. It then
// settles the charge, even if next panics. s is the stream whose response is settled, or nil for a unary call.
func (i *Interceptor) serve(e *event, t trailers, s *watchedStream, settles bool, next func(context.Context) (any, error)) (resp any, err error) {
	res := i.core.Decide(e, settles)
	if t.first {
		i.waitForMessage(e)
	}
	if res == nil {
		if err = i.pass(e, t); err != nil {
			return nil, err
		}
		resp, err = next(t.within(e))
		if refusedInside(err) {
			i.core.Refused(e, nil)
		}
		return resp, err
	}
	charge := i.core.Charge(e, res)
	defer charge.End()
	if err = i.pass(e, t); err != nil {
		return nil, err
	}
	ctx := charge.Serve(t.within(e))
	if settles {
		return i.settled(ctx, e, charge, s, next)
	}
	resp, err = next(ctx)
	if refusedInside(err) {
		charge.Refused(e)
	}
	return resp, err
}

// refusedInside reports whether an inner Interceptor has refused the whole call for a
// cause recorded by [edge.MarkRefused]. A refused message of a stream does not count.
func refusedInside(err error) bool {
	if err == nil {
		return false
	}
	var r *refusal
	return errors.As(err, &r) && !r.message && !r.byClient
}

// pass holds the call for as long as it is delayed, and reports the decision.
// If the call may not be served, pass returns the error for the client.
func (i *Interceptor) pass(e *event, t trailers) error {
	if !i.opts.Shadow {
		i.core.Hold(e)
	}
	i.core.Report(e)
	if i.opts.Shadow {
		return nil
	}
	if e.Decision.Degraded && i.opts.DegradedTrailer != "" {
		t.set(func() metadata.MD { return metadata.MD{i.opts.DegradedTrailer: {"true"}} })
	}
	if i.opts.LimitTrailers && t.announces(e.Outcome) {
		t.set(func() metadata.MD { return i.limits(e, t) })
	}
	if e.Outcome == edge.Allowed || e.Outcome == edge.FailedOpen {
		return nil
	}
	ctx := e.Request.Context()
	outcome.MarkRefused(ctx)
	if t.announce { // the denied message belongs to a stream whose opening was allowed
		edge.MarkRefused(ctx, e.Cause())
	}
	if e.Decision.Allowed && e.Outcome == edge.Rejected { // the client has left during the hold
		return gone(ctx)
	}
	return i.refuse(e, t)
}

// tooLate reports whether the call's deadline is before its delay's end. If net/http serves
// the call, its server's timeout is a deadline, too, because an interceptor cannot extend it.
func tooLate(c *Call, delay time.Duration) bool {
	deadline, ok := c.Context().Deadline()
	return ok && time.Until(deadline) <= delay || edge.OutlastsServer(c.Context(), delay)
}

// RefuseHeld refuses the held calls, and each later call instead of holding it. They end as if their deadlines
// were too early, and their charges are given back. Calls are still served if they can pass at once. Call it
// before [grpc.Server.GracefulStop], because that waits for held calls. If several servers share an
// Interceptor, it holds no more calls for any of them. If [NewInflight] made the Interceptor, it does nothing.
func (i *Interceptor) RefuseHeld() {
	if i != nil && i.core != nil {
		i.core.RefuseHeld()
	}
}
