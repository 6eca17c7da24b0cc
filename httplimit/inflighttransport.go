package httplimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/outcome"
)

// InflightTransportOptions are the settings of [NewInflightTransport].
type InflightTransportOptions struct {
	// Key returns the key whose limit a request shares. It defaults to [TargetHost].
	Key func(r *http.Request) string

	// MaxWait is the longest time that a request may wait for its permit. If zero, it waits as long as its context allows.
	MaxWait time.Duration

	// Outcome returns the outcome of a request for an adaptive limit, given its response or error and the default outcome. The default is
	// as in InflightOptions, except that a deadline of the request's context, and so the Timeout of an http.Client, is Cancelled, a timeout
	// of the base transport is Dropped, and 429 is Dropped. If nil, the default outcome is used.
	Outcome func(r *http.Request, resp *http.Response, err error, usual inflight.Outcome) inflight.Outcome
}

// InflightTransport is an [http.RoundTripper] that limits how many requests to each host are in flight, until the
// response's body is read or closed, after 101 until it is closed. Make one with [NewInflightTransport]. It is safe for concurrent use.
//
// A request without a permit is not sent. Its error wraps [ratelimit.ErrLimited] if the queue is full,
// [context.DeadlineExceeded] after MaxWait, or the context's error.
type InflightTransport struct {
	base    http.RoundTripper
	limiter *inflight.Limiter[string]
	opts    InflightTransportOptions
}

// NewInflightTransport returns a transport that sends with base, if nil with [http.DefaultTransport]. A nil limiter
// is an adaptive limit ([inflight.Learn]) of at most 1000 for each host, with a queue of 1000.
func NewInflightTransport(base http.RoundTripper, l *inflight.Limiter[string], opts *InflightTransportOptions) (*InflightTransport, error) {
	t := &InflightTransport{base: cmp.Or(base, http.DefaultTransport), limiter: l}
	if opts != nil {
		t.opts = *opts
	}
	if t.opts.MaxWait < 0 {
		return nil, fmt.Errorf("httplimit: InflightTransportOptions.MaxWait is %v, want 0 or more", t.opts.MaxWait)
	}
	if t.opts.Key == nil {
		t.opts.Key = targetHost
	}
	if l == nil {
		t.limiter = ratelimit.Must(inflight.New(1000, &inflight.Options[string]{Adaptive: inflight.Learn(nil), MaxQueue: 1000}))
	}
	return t, nil
}

// responseOutcome returns the default outcome of a request: see InflightTransportOptions.Outcome.
func responseOutcome(r *http.Request, resp *http.Response, err error) inflight.Outcome {
	switch {
	case outcome.CauseOf(err).Refused():
		return inflight.Ignored
	case errors.Is(err, context.Canceled), r.Context().Err() != nil: // also a deadline that the caller has chosen
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

// CloseIdleConnections closes the idle connections of the base RoundTripper, as [Transport.CloseIdleConnections] does.
func (t *InflightTransport) CloseIdleConnections() {
	if t != nil {
		closeIdleConnections(t.base)
	}
}

// RoundTrip sends the request when it has a permit.
func (t *InflightTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if t == nil || t.limiter == nil {
		closeBody(r)
		return nil, errors.New("httplimit: this InflightTransport was not made by NewInflightTransport: it has no limiter")
	}
	permit, err := t.acquire(r)
	if err != nil {
		closeBody(r) // as an http.RoundTripper must
		return nil, err
	}
	sent := false
	defer func() {
		if !sent { // a panic below
			permit.Done(inflight.Ignored)
		}
	}()
	resp, err := t.base.RoundTrip(r)
	sent = true
	done := func(err error) {
		defer permit.Done(inflight.Ignored) // if Outcome panics; else it is the second time, and does nothing
		end := responseOutcome(r, resp, err)
		if t.opts.Outcome != nil {
			end = t.opts.Outcome(r, resp, err, end)
		}
		permit.Done(end)
	}
	if err == nil && resp != nil && (resp.StatusCode == http.StatusSwitchingProtocols || t.opts.Outcome == nil && isEventStream(resp.Header)) {
		permit.Ignore() // a stream; else Outcome decides, at the end
	}
	switch {
	case err != nil, resp == nil: // no response and no error: the http.Client reports that itself
		done(err)
	case resp.StatusCode == http.StatusSwitchingProtocols:
		if !onEnd(resp, func(error) { permit.Done(inflight.Ignored) }) { // of a base transport that hands no connection over
			permit.Done(inflight.Ignored)
		}
	case !onEnd(resp, done):
		done(nil)
	}
	return resp, err
}

func (t *InflightTransport) acquire(r *http.Request) (inflight.Permit, error) {
	ctx := r.Context()
	if t.opts.MaxWait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, t.opts.MaxWait)
		defer cancel()
	}
	return t.limiter.Acquire(ctx, t.opts.Key(r), 1)
}
