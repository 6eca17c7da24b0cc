package httplimit

import (
	"context"
	"errors"
	"net/http"
	"os"
	"time"

	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/outcome"
)

// responseOutcome returns a request's default outcome: see TransportOptions.Outcome.
func responseOutcome(r *http.Request, resp *http.Response, err error) inflight.Outcome {
	switch {
	case outcome.CauseOf(err).Refused():
		return inflight.Ignored
	case errors.Is(err, context.Canceled), r.Context().Err() != nil: // also for a deadline of the caller's own
		return inflight.Cancelled
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return inflight.Dropped
	case err != nil, resp == nil:
		return inflight.Cancelled
	case resp.StatusCode == http.StatusTooManyRequests:
		return inflight.Dropped
	}
	return outcomeOf(resp.StatusCode)
}

// hold acquires a permit, and sends the request while it has it.
func (t *Transport) hold(r *http.Request) (*http.Response, error) {
	key, err := t.permitKey(r)
	if err != nil {
		closeBody(r) // an http.RoundTripper must close it
		return nil, keyError(err)
	}
	permit, waited, err := t.permits.Acquire(r.Context(), key)
	if err != nil {
		closeBody(r)
		return nil, err
	}
	sent := false
	defer func() {
		if !sent { // sendHeld has panicked
			permit.Done(inflight.Ignored)
		}
	}()
	resp, err := t.sendHeld(r, waited)
	sent = true
	done := func(err error) {
		defer permit.Done(inflight.Ignored) // releases the permit if Outcome panics; otherwise it is the second call, and does nothing
		end := responseOutcome(r, resp, err)
		if t.opts.Outcome != nil {
			end = t.opts.Outcome(r, resp, err, end)
		}
		permit.Done(end)
	}
	if err == nil && resp != nil && (resp.StatusCode == http.StatusSwitchingProtocols || t.opts.Outcome == nil && isEventStream(resp.Header)) {
		permit.Ignore() // a stream; an Outcome function would decide at the end
	}
	switch {
	case err != nil, resp == nil: // with neither a response nor an error, the http.Client reports the failure
		done(err)
	case resp.StatusCode == http.StatusSwitchingProtocols:
		if !onEnd(resp, func(error) { permit.Done(inflight.Ignored) }) { // the base transport has not returned the connection
			permit.Done(inflight.Ignored)
		}
	case !onEnd(resp, done):
		done(nil)
	}
	return resp, err
}

// sendHeld sends a request with a permit. If there is a pacer, it sends the request at its turn.
func (t *Transport) sendHeld(r *http.Request, waited time.Duration) (*http.Response, error) {
	if t.pacer != nil {
		return t.pace(r, waited)
	}
	t.permits.Depart()
	defer t.permits.Land()
	return t.base.RoundTrip(r)
}
