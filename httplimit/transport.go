package httplimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/edge"
	"github.com/weir-go/ratelimit/internal/pace"
	"github.com/weir-go/ratelimit/keyfunc"
)

// TransportOptions are the settings of [NewTransport] besides the limiter. Nil and the
// zero TransportOptions mean the defaults. Functions in it are called concurrently.
type TransportOptions struct {
	// Key groups requests: those of one key wait in one queue, and what the server says
	// to one of them holds for all. If nil, [TargetHost]. Give one of your own if a
	// server limits each account or route: then an exhausted one does not hold up others.
	Key func(r *http.Request) string

	// Cost returns what a request costs in the limiter. If nil, the cost that its context
	// declares ([WithCost]), else 1.
	Cost func(r *http.Request) int

	// Advice reads a response in a dialect that the Transport does not know. If it reports
	// false, or is nil, the Transport reads the response itself: see [AdviceOf]. It must not
	// read the response's body.
	Advice func(resp *http.Response) (Advice, bool)

	// MaxWait is how long a request may wait before it is sent. One that would have to wait
	// longer fails at once, with [ratelimit.ErrLimited]. If zero, as long as
	// its context allows, without end if that has no deadline.
	MaxWait time.Duration

	// MaxServerWait is the longest wait that a server is believed: a longer one, by whatever
	// field, counts as this. If zero, ten years. See also [Transport.Reset].
	MaxServerWait time.Duration

	// MaxRetries is how many times a request is sent again that the server has refused, after
	// the time that it has asked for. If zero, the response goes to the caller. A
	// request is sent again only if that is safe: its body is empty or can be read again
	// ([http.Request.GetBody]); and the server has refused it (Advice.Refused: with 429, with 529,
	// or with 403 and a time), or it is 503 with Retry-After and the method is idempotent
	// (RFC 9110, section 9.2.2) or there is an Idempotency-Key.
	// If the context's deadline or MaxWait comes before the time, the caller gets the
	// refusal at once. If the request cannot be sent again for another reason, such as a
	// cancelled context, RoundTrip returns that error in place of the refusal.
	MaxRetries int

	// MaxKeys bounds for how many keys the Transport remembers what their servers have
	// said. Beyond that it forgets keys without requests under way. If zero, 4096.
	MaxKeys int
}

// Transport is an [http.RoundTripper] that keeps to a limit of its own, and obeys what
// servers say. Make one with [NewTransport], and use it in an [http.Client]:
//
//	client := &http.Client{Transport: transport}
//
// Each request waits in the queue of its key until the limiter allows it, first come, first
// served. If its context's deadline comes before its time, it fails at once, with an
// error that wraps [context.DeadlineExceeded]. [http.Client.Timeout] is such a
// deadline.
//
// From each response the Transport learns when the key's next request may be sent:
//
//   - Retry-After of a 429, 503 or 529, and of a 403, as GitHub answers, in seconds or as a
//     date, or Retry-After-Ms: nothing is sent before.
//   - What is left until a reset: no more requests than that are sent. The first of
//     these counts that is there: RateLimit and RateLimit-Policy
//     (draft-ietf-httpapi-ratelimit-headers-11, and the Dictionary of draft 07);
//     RateLimit-Remaining and -Reset (drafts up to -06); the fields of OpenAI
//     (X-RateLimit-Remaining-Requests and -Tokens) and Anthropic; X-RateLimit-Remaining and
//     -Reset or -Reset-After (GitHub, Discord and others); X-Rate-Limit-Remaining and
//     -Reset (X, Okta). Reset may be in seconds from now, a span such as 6m0s, a date, or in
//     Unix time: from 10^9 on, it is Unix time. Where tokens are left, a request counts as
//     its cost ([WithCost]).
//   - A 429 or 529 without any of these: nothing is sent for a second, twice as long
//     after each further one, up to a minute.
//
// TransportOptions.Advice teaches it another dialect.
//
// After a refusal, and after the reset of what was used up, requests are sent one at a
// time first, and with each that is served one more may be in flight. So not all
// who wait are refused again at once. A request that is not answered within a second
// counts as served for this. All this ends a minute after the wait.
//
// In a response that a cache has stored, by its Age, only Retry-After counts.
//
// Dates and Unix times are compared with the response's Date, so the clocks may differ.
// While a key has to wait, all its requests wait in their order, and what they had
// booked in the limiter is given back. Those whose deadline comes before the end fail at
// once. Requests that were on their way already are not called back.
//
// A Transport is safe for concurrent use, and starts no goroutine. The zero Transport
// cannot be used: RoundTrip returns an error.
type Transport struct {
	base  http.RoundTripper
	pacer *pace.Pacer[*http.Request]
	opts  TransportOptions
}

// NewTransport returns a Transport that sends with base, if nil with
// [http.DefaultTransport], as the limiter allows. It is asked with the requests
// themselves: see [ratelimit.Map]. To have no limit but the server's, give one of
// [ratelimit.Unlimited]. The error names the option that is wrong.
func NewTransport(base http.RoundTripper, l ratelimit.Reserver[*http.Request], opts *TransportOptions) (*Transport, error) {
	if err := edge.Check("httplimit", "NewTransport", "request", l); err != nil {
		return nil, err
	}
	t := &Transport{base: cmp.Or(base, http.DefaultTransport)}
	if opts != nil {
		t.opts = *opts
	}
	o := &t.opts
	switch {
	case o.MaxWait < 0:
		return nil, fmt.Errorf("httplimit: TransportOptions.MaxWait is %v, want 0 or more", o.MaxWait)
	case o.MaxServerWait < 0:
		return nil, fmt.Errorf("httplimit: TransportOptions.MaxServerWait is %v, want 0 or more", o.MaxServerWait)
	case o.MaxRetries < 0:
		return nil, fmt.Errorf("httplimit: TransportOptions.MaxRetries is %d, want 0 or more", o.MaxRetries)
	case o.MaxKeys < 0:
		return nil, fmt.Errorf("httplimit: TransportOptions.MaxKeys is %d, want 0 for %d, or more", o.MaxKeys, pace.DefaultMaxKeys)
	}
	if o.Key == nil {
		o.Key = targetHost
	}
	if o.Cost == nil {
		o.Cost = func(r *http.Request) int { return pace.DeclaredCost(r.Context()) }
	}
	t.pacer = pace.New("httplimit", l, pace.Options[*http.Request]{Cost: o.Cost, Units: pace.DeclaredCost, MaxWait: o.MaxWait, MaxKeys: o.MaxKeys, Longest: o.MaxServerWait})
	return t, nil
}

// TargetHost is a key function for requests of a client: the scheme and the host that
// a request goes to, such as "https://api.example.com". A default port is left out.
func TargetHost(r *http.Request) (string, error) {
	if r.URL == nil || r.URL.Host == "" {
		return "", fmt.Errorf("%w: no host in the URL", keyfunc.ErrNoKey)
	}
	return targetHost(r), nil
}

func targetHost(r *http.Request) string {
	if r.URL == nil {
		return ""
	}
	scheme, host := strings.ToLower(r.URL.Scheme), strings.ToLower(r.URL.Host)
	switch scheme {
	case "http":
		host = strings.TrimSuffix(host, ":80")
	case "https":
		host = strings.TrimSuffix(host, ":443")
	}
	return scheme + "://" + host
}

// TransportStats count requests since the Transport was made.
type TransportStats struct {
	Sent      uint64 // given to the base RoundTripper, repetitions included
	Waited    uint64 // had to wait before that
	Refused   uint64 // were answered with a refusal, or with a time to wait
	Retried   uint64 // were sent again
	Failed    uint64 // were never sent: the limiter's error, or no time to wait
	Unsettled uint64 // had a booking that could not be cancelled
}

// Stats returns the counters. Each is exact; they are not read at one instant.
func (t *Transport) Stats() TransportStats {
	if t.pacer == nil {
		return TransportStats{}
	}
	return TransportStats(t.pacer.Stats())
}

// Reset forgets what the server of a key has said: requests that wait for it are sent as the
// limiter allows. The key is what TransportOptions.Key returns for the server's requests,
// by default their [TargetHost], such as "https://api.example.com". Answers to requests that
// are under way are obeyed when they come.
func (t *Transport) Reset(key string) {
	if t.pacer != nil {
		t.pacer.Reset(key)
	}
}

// CloseIdleConnections is that of the base RoundTripper, if it has one. It is what
// [http.Client.CloseIdleConnections] calls.
func (t *Transport) CloseIdleConnections() { closeIdleConnections(t.base) }

func closeIdleConnections(base http.RoundTripper) {
	if c, ok := base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// RoundTrip waits until the request may be sent, and sends it. Errors other than those
// of the base RoundTripper mean that it was not sent, or not sent again: they wrap
// [context.DeadlineExceeded] or the context's error, [ratelimit.ErrLimited] if MaxWait is
// too short or a leaky bucket's queue is full, or are those of the limiter's Reserve.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if t == nil || t.pacer == nil {
		closeBody(r)
		return nil, errors.New("httplimit: this Transport was not made by NewTransport: it has no limiter")
	}
	p := t.pacer.Arrive(r.Context(), t.opts.Key(r))
	defer t.pacer.Leave(p)
	for retries := 0; ; retries++ {
		if err := t.pacer.Await(p, r); err != nil {
			closeBody(r)
			return nil, err
		}
		resp, err := t.base.RoundTrip(r)
		a := t.learn(p, resp)
		if err != nil || retries == t.opts.MaxRetries || !repeatable(r, resp, a) || p.Late() {
			return resp, err
		}
		again, err := repeat(r)
		if err != nil {
			return resp, nil
		}
		discardBody(resp, p.Opens())
		r = again
		t.pacer.Again(p)
	}
}

// learn takes note of the response, nil if there is none, and returns what it says.
func (t *Transport) learn(p *pace.Place, resp *http.Response) (a Advice) {
	now := time.Now()
	if resp == nil {
		t.pacer.Learn(p, pace.Advice{}, now)
		return a
	}
	known := false
	if t.opts.Advice != nil {
		a, known = t.opts.Advice(resp)
	}
	if !known {
		a = adviceOf(resp, now)
	}
	t.pacer.Learn(p, a.pace(now), now)
	return a
}

// repeatable reports whether the server has refused the request, and whether it is safe
// to send it again.
func repeatable(r *http.Request, resp *http.Response, a Advice) bool {
	if a.NoRetry || hasBody(r) && r.GetBody == nil {
		return false
	}
	return a.Refused || resp.StatusCode == http.StatusServiceUnavailable && a.Wait > 0 && idempotent(r)
}

func idempotent(r *http.Request) bool {
	switch r.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	return r.Header.Get("Idempotency-Key") != ""
}

// repeat returns the request with its body from the beginning.
func repeat(r *http.Request) (*http.Request, error) {
	if !hasBody(r) {
		return r, nil
	}
	b, err := r.GetBody()
	if err != nil {
		return nil, err
	}
	again := r.Clone(r.Context())
	again.Body = b
	return again, nil
}

// maxDiscarding is how long a refused answer's body is read at most.
const maxDiscarding = time.Second

// discardBody reads what a connection needs to be used again, unless it is much, or has not come by an instant, when the
// request may be sent again. Close ends a Read that waits.
func discardBody(resp *http.Response, until time.Time) {
	closing := time.AfterFunc(min(time.Until(until), maxDiscarding), func() { _ = resp.Body.Close() })
	defer func() {
		if closing.Stop() {
			_ = resp.Body.Close()
		}
	}()
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10)
}

func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
}

// WithCost returns a context for one request of a client that declares what the request
// will cost, or an estimate, such as the tokens of a call to a language model. By it a
// [Transport] charges its limiter, and keeps within the tokens that the server leaves. A cost
// below 0 is an error of the limiter's. When the real cost is known, settle it with
// [SettleCost].
func WithCost(ctx context.Context, cost int) context.Context { return pace.WithCost(ctx, cost) }

// SettleCost says what the request of a context that [WithCost] has made has really cost: the
// usage in its answer, for example. What it has charged the limiter of the [Transport] is
// corrected, as [ratelimit.Reservation.Settle] has it. Of requests that were sent again, the
// last one is settled. It does nothing if none was sent. The error is that of Settle. It is
// safe for concurrent use.
func SettleCost(ctx context.Context, actual int) error { return pace.SettleCost(ctx, actual) }
