// Package httplimit limits HTTP requests, on both sides: middleware for net/http
// servers, and a [Transport] for clients.
//
// The middleware decides with any [ratelimit.Limiter] of requests. It tells clients of
// their limits with the fields RateLimit-Policy and RateLimit of the IETF draft, and
// answers a denied request with 429, a true Retry-After and a problem document. One
// limit for each client address is one line:
//
//	limit, err := httplimit.PerIP(ratelimit.TokenBucket(ratelimit.PerSecond(10), 20), nil)
//	...
//	http.Handle("/", limit.Wrap(handler))
//
// Wrap is a func(http.Handler) http.Handler. With chi it is r.Use(limit.Wrap); gin's engine, as any
// other handler, is wrapped as a whole: limit.Wrap(engine). docs/frameworks.md in the repository
// has groups of routes, echo, fiber and others.
//
// For other keys, give [New] a limiter, and a key function such as [ClientIP],
// [APIKey] or [keyfunc.Join]:
//
//	perKey, err := ratelimit.New[keyfunc.Hash](ratelimit.FixedWindow(ratelimit.PerHour(5000)), nil)
//	...
//	limit, err := httplimit.New(ratelimit.Map(perKey, httplimit.APIKey("X-API-Key")), nil)
//
// For several limits on one request, give New a [ratelimit.All] of layers. [keyfunc.Optional] and
// [keyfunc.Unless] count known clients by one key and all others by another.
//
// A gRPC, gRPC-Web or Connect call that is refused is answered in its own protocol, with the code,
// RetryInfo and QuotaFailure of package grpclimit: so one middleware may stand before a port that
// serves both. To it a call is a request: one stream is one request, and what a Settle function
// gets is the status of the HTTP response. A unary call of Connect is known by the field
// Connect-Protocol-Version, which clients should send.
//
// CORS stands around the limiter, so that a browser shows denials to the page, and names the
// fields in Access-Control-Expose-Headers: see the example of [SkipPreflights].
//
// A [Transport] is an [http.RoundTripper] for clients: it keeps to a limit of your own, and
// obeys what the server says.
//
// This package starts no goroutine.
package httplimit

import (
	"errors"
	"net/http"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/ctxwait"
	"github.com/weir-go/ratelimit/internal/edge"
	"github.com/weir-go/ratelimit/internal/told"
)

// New returns middleware that decides with the limiter. The error names the option
// and what is wrong with it.
//
// A limiter whose keys are whole requests limits nothing, and is refused: see
// [ratelimit.Map]. If the limiter has a method Limits() []ratelimit.Limit, as those of
// package ratelimit have, header fields tell of these limits from the first
// response on. With [DialectDraft11] their names must differ in more than case. A limit
// without a name is called "default" (see [ratelimit.Limit.Named]).
func New(limiter ratelimit.Limiter[*http.Request], opts *Options) (*Middleware, error) {
	if err := edge.Check("httplimit", "New", "request", limiter); err != nil {
		return nil, err
	}
	m := new(Middleware)
	if opts != nil {
		m.opts = *opts
	}
	if err := m.opts.validate(); err != nil {
		return nil, err
	}
	m.opts.defaults()
	core, err := edge.New(limiter, m.opts.core())
	if err != nil {
		return nil, err
	}
	if err := m.views.Init(limiter, told.Options{Package: "httplimit", Unit: m.opts.QuotaUnit, Named: m.opts.Dialect == DialectDraft11}); err != nil {
		return nil, err
	}
	m.core, m.badKey = core, newBadKey(m.opts.KeyCode)
	return m, nil
}

// PerIP returns middleware with one limit for each client address: the connection's, see [RemoteIP]. Behind a proxy all
// clients would share one limit: use [PerKey] with [ClientIP] there. It is PerKey otherwise.
func PerIP(limit ratelimit.Limit, opts *Options) (*Middleware, error) {
	return PerKey(limit, RemoteIP, opts)
}

// PerKey returns middleware with one limit for each key that the function finds, such as [APIKey]:
//
//	limit, err := httplimit.PerKey(ratelimit.FixedWindow(ratelimit.PerMinute(100)), httplimit.APIKey("X-API-Key"), nil)
//
// It tracks 65,536 keys, and remembers what as many others have spent: see [ratelimit.Options] under Remember. The errors
// are those of [ratelimit.New] and [New].
func PerKey[K comparable](limit ratelimit.Limit, key func(*http.Request) (K, error), opts *Options) (*Middleware, error) {
	if key == nil {
		return nil, errors.New("httplimit: PerKey needs a key function, and got nil")
	}
	l, err := edge.PerKey(limit, key)
	if err != nil {
		return nil, err
	}
	return New(l, opts)
}

// Wrap returns a handler that passes on to next the requests that the limiter allows, and
// answers the others. It panics if the Middleware was not made by [New], or if next
// is nil.
//
// A request that a leaky bucket delays is held for that long. If its context ends before
// that, because the client has left or a deadline has passed, it is not served, and
// answered with 503. So is, at once, a request whose delay is as long as the
// server's WriteTimeout: its response could not be sent any more. It counts as denied, but
// OnDenied does not answer it. A write deadline that was set with [http.ResponseController]
// is not taken into account.
//
// Over HTTP/1, net/http does not see a client leave before the request's body was read. So
// the body should be read before the limiter, in a handler around this one, if the limiter
// may delay requests that have one: else clients that leave keep their places in the queue
// until their delay is over. The package's examples show it.
//
// A request that is not served for one of these reasons gets its charge back, if the
// limiter is a [ratelimit.Layered] or another Reserver whose method BooksAhead() bool
// reports false. It stays charged with a leaky bucket given by [ratelimit.Map]: requests
// that are never served can fill its queue. Give a [ratelimit.All] of that one layer
// instead, as [PerIP] does. (A limiter shows New by its method Limits that it has leaky
// buckets. If SetLimit turns another limit into one later, charges stay as well.)
//
// Next gets the server's own ResponseWriter. With [Options].Settle it gets one that
// has the same optional methods: Flush, Hijack, Push and CloseNotify if the server's
// has them, and ReadFrom, WriteString, FlushError and the methods that set deadlines in
// any case. [http.ResponseController] works with it.
//
// Frameworks that write the response of a failed handler after their middleware has
// returned, such as echo with echo.WrapMiddleware, hide its status from Settle. Wrap the
// framework as a whole instead: limit.Wrap(e) for an *echo.Echo e.
func (m *Middleware) Wrap(next http.Handler) http.Handler {
	switch {
	case m == nil || m.core == nil:
		panic("httplimit: this Middleware was not made by New: it has no limiter")
	case next == nil:
		panic("httplimit: Wrap needs a handler, and got nil")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
}

// serve decides about a request, passes it on or answers it, and settles its charge whatever happens. Panics go on after that.
func (m *Middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if m.core.Skips(r) {
		next.ServeHTTP(w, r)
		return
	}
	e := m.core.Event(r)
	res := m.core.Decide(&e, m.core.Settles)
	if res == nil {
		m.core.Report(&e)
		if m.opts.Shadow || m.admit(w, &e) {
			next.ServeHTTP(w, r)
		}
		return
	}
	charge := m.core.Charge(&e, res)
	defer charge.End()
	m.core.Report(&e)
	if !m.opts.Shadow && !m.admit(w, &e) {
		return
	}
	charge.Serve()
	if m.opts.SettleResponse == nil {
		next.ServeHTTP(w, r)
		return
	}
	m.serveAndSettle(w, r, charge, next)
}

// admit tells the client, holds a request that is delayed, and answers one that is not to be served.
func (m *Middleware) admit(w http.ResponseWriter, e *event) bool {
	if e.Decision.Degraded && m.opts.DegradedHeader != "" {
		w.Header()[m.opts.DegradedHeader] = []string{"true"}
	}
	switch e.Outcome {
	case edge.FailedOpen:
		return true
	case edge.Allowed:
		m.tellLimits(w, e)
		if ctxwait.Sleep(e.Request.Context(), e.Decision.Delay) == nil {
			return true
		}
	}
	m.refuse(w, e)
	return false
}

func (m *Middleware) tellLimits(w http.ResponseWriter, e *event) {
	h := w.Header()
	m.setLimits(h, m.view(h, e), &e.Decision, new([3]string)[:])
}

// tooLate reports whether the request can no longer be answered when its delay is over.
func tooLate(r *http.Request, delay time.Duration) bool {
	s, ok := r.Context().Value(http.ServerContextKey).(*http.Server)
	return ok && s.WriteTimeout > 0 && delay >= s.WriteTimeout
}

// Middleware holds handlers to a limiter. Make one with [New] or [PerIP]. It is safe for
// concurrent use, and may wrap any number of handlers, which then share its limits.
// The zero Middleware cannot be used: Wrap panics.
type Middleware struct {
	core   *edge.Core[*http.Request]
	opts   Options
	views  told.Views
	badKey *problem
}

// event is an [Event] as package edge has it.
type event = edge.Event[*http.Request]

// public returns an event as functions of users get it.
func public(e event) Event {
	return Event{Request: e.Request, Cost: e.Cost, Decision: e.Decision, Err: e.Err, Outcome: Outcome(e.Outcome)}
}

// Stats returns the counters. Each is exact; they are not read at one instant.
func (m *Middleware) Stats() Stats {
	if m.core == nil {
		return Stats{}
	}
	return Stats(m.core.Stats())
}
