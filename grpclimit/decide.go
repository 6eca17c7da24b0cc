package grpclimit

import (
	"context"
	"errors"
	"time"

	"github.com/weir-go/ratelimit"
)

func (i *Interceptor) skips(c *Call) bool {
	if i.opts.Skip == nil || !i.opts.Skip(c) {
		return false
	}
	i.counts[OutcomeSkipped].Add(1)
	return true
}

func (i *Interceptor) cost(c *Call) int {
	if i.opts.Cost == nil {
		return 1
	}
	return i.opts.Cost(c)
}

// decide decides, with a charge that can be given back if reserve says so. The reservation
// is nil if nothing was charged, or what was charged stays.
func (i *Interceptor) decide(e *Event, reserve bool) *ratelimit.Reservation {
	if reserve {
		return i.reserve(e)
	}
	i.take(e)
	return nil
}

// enforce is pass, and gives the charge back if the call is not served.
func (i *Interceptor) enforce(e *Event, t trailers, res *ratelimit.Reservation) (err error) {
	if res == nil {
		return i.pass(e, t)
	}
	served := false
	defer func() {
		if !served {
			i.settle(e.Call, res, 0)
		}
	}()
	err = i.pass(e, t)
	served = err == nil
	return err
}

// take decides with a charge that stays.
func (i *Interceptor) take(e *Event) {
	e.Decision, e.Err = i.limiter.Take(e.Call.Context(), e.Call, e.Cost)
	e.Outcome = i.outcome(e)
}

// reserve decides with a charge that is settled later. The reservation is nil if nothing was
// charged.
func (i *Interceptor) reserve(e *Event) (res *ratelimit.Reservation) {
	res, e.Err = i.reserver.Reserve(e.Call.Context(), e.Call, e.Cost, i.maxDelay)
	if res != nil {
		e.Decision = res.Decision
	}
	e.Outcome = i.outcome(e)
	if !e.Decision.Allowed {
		return nil
	}
	return res
}

func (i *Interceptor) outcome(e *Event) Outcome {
	switch {
	case e.Err == nil && e.Decision.Allowed && !tooLate(e):
		return OutcomeAllowed
	case e.Err == nil:
		return OutcomeDenied
	case errors.Is(e.Err, ratelimit.ErrExceedsLimit):
		return OutcomeExceeds
	case i.opts.FailOpen && reasonOf(e).FailsOpen():
		return OutcomeFailedOpen
	}
	return OutcomeFailed
}

// pass reports the decision to everyone, and holds the call for as long as it is delayed.
// If the call may not be served, the error is the client's answer.
func (i *Interceptor) pass(e *Event, t trailers) error {
	i.report(e)
	if i.opts.Shadow {
		return nil
	}
	if e.Decision.Degraded && i.opts.DegradedTrailer != "" {
		t.set(i.opts.DegradedTrailer, "true")
	}
	switch e.Outcome {
	case OutcomeAllowed:
		return hold(e)
	case OutcomeFailedOpen:
		return nil
	}
	return i.refuse(e, t)
}

// report tells everyone except the client.
func (i *Interceptor) report(e *Event) {
	i.counts[e.Outcome].Add(1)
	if e.Decision.Degraded {
		i.degraded.Add(1)
	}
	if e.Outcome >= OutcomeFailed {
		reason := reasonOf(e)
		i.logs[reason].Line(e.Call.Context(), i.opts.Logger, i.opts.Now(), reason.Level(), "grpclimit: call not decided",
			"method", e.Call.FullMethod, "outcome", e.Outcome, "error", e.Err)
	}
	if i.opts.OnDecision != nil {
		i.opts.OnDecision(*e)
	}
}

// tooLate reports whether the call's deadline comes before its delay is over.
func tooLate(e *Event) bool {
	if e.Decision.Delay <= 0 {
		return false
	}
	deadline, ok := e.Call.Context().Deadline()
	return ok && time.Until(deadline) <= e.Decision.Delay
}

// hold waits out the delay. If the call cannot be served then, it returns the answer.
func hold(e *Event) error {
	if ctx := e.Call.Context(); e.Decision.Delay > 0 && !sleep(ctx, e.Decision.Delay) {
		return gone(ctx)
	}
	return nil
}

// sleep reports whether the context has lasted for the delay.
func sleep(ctx context.Context, delay time.Duration) bool {
	t := time.NewTimer(delay)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
