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
// For other keys, give [New] a limiter, and a key function such as [ClientIP],
// [APIKey] or [Join]:
//
//	perKey, err := ratelimit.New[httplimit.Hash](ratelimit.FixedWindow(ratelimit.PerHour(5000)), nil)
//	...
//	limit, err := httplimit.New(ratelimit.Map(perKey, httplimit.APIKey("X-API-Key")), nil)
//
// For several limits on one request, give New a [ratelimit.All] of layers. Wrap is a
// func(http.Handler) http.Handler, so it fits any router's Use.
//
// A [Transport] is an [http.RoundTripper] for clients: it keeps to a limit of your own, and
// obeys what the server says.
//
// This package starts no goroutine.
package httplimit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"reflect"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/delays"
	"github.com/weir-go/ratelimit/internal/spread"
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
	if err := checkLimiter("New", limiter); err != nil {
		return nil, err
	}
	m := &Middleware{limiter: limiter, seed: spread.New()}
	if opts != nil {
		m.opts = *opts
	}
	if err := m.opts.validate(); err != nil {
		return nil, err
	}
	m.opts.defaults()
	if err := m.findReserver(); err != nil {
		return nil, err
	}
	if err := m.views.init(limiter, &m.opts); err != nil {
		return nil, err
	}
	return m, nil
}

// PerIP returns middleware with one limit for each client address: the connection's,
// see [RemoteIP], an IPv6 address cut to its /64. Behind a proxy all clients would share
// one limit: use [New] with [ClientIP] or [HeaderIP] there. The errors are those of
// [ratelimit.New] and New.
func PerIP(limit ratelimit.Limit, opts *Options) (*Middleware, error) {
	l, err := ratelimit.New[netip.Addr](limit, nil)
	if err != nil {
		return nil, err
	}
	if limit.Algorithm != ratelimit.AlgorithmLeakyBucket {
		return New(ratelimit.Map(l, RemoteIP), opts)
	}
	layered, err := ratelimit.All(ratelimit.By(l, RemoteIP)) // which can give a delayed request's charge back
	if err != nil {
		return nil, err
	}
	return New(layered, opts)
}

// Must returns the middleware, or panics if there is an error.
func Must(m *Middleware, err error) *Middleware {
	if err != nil {
		panic(err)
	}
	return m
}

// checkLimiter refuses what can only be a mistake.
func checkLimiter(constructor string, limiter ratelimit.Limiter[*http.Request]) error {
	if v := reflect.ValueOf(limiter); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return fmt.Errorf("httplimit: %s needs a limiter, and got nil", constructor)
	}
	if _, ok := limiter.(*ratelimit.Keyed[*http.Request]); ok {
		return errors.New("httplimit: this limiter's key is the request itself, so that each request has a budget of its own: " +
			"give its key to ratelimit.Map or ratelimit.By")
	}
	return nil
}

// century is the time in which every limit has regained its whole capacity.
const century = 876_600 * time.Hour

// findReserver finds out whether charges are to be reserved. Where a Reserver books ahead,
// Reserve cannot delay a request as Take does, so that only Settle asks it.
func (m *Middleware) findReserver() error {
	settles := m.opts.Settle != nil
	r, ok := m.limiter.(ratelimit.Reserver[*http.Request])
	if !ok && settles {
		return fmt.Errorf("httplimit: Options.Settle needs a ratelimit.Reserver, and %T is none", m.limiter)
	}
	holds := ok && !delays.BooksAhead(r) && delays.May(r)
	if settles || holds {
		m.reserver = r
	}
	if ok && !delays.BooksAhead(r) {
		m.maxDelay = century // this is as far as Take goes
	}
	return nil
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
	case m == nil || m.limiter == nil:
		panic("httplimit: this Middleware was not made by New: it has no limiter")
	case next == nil:
		panic("httplimit: Wrap needs a handler, and got nil")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
}

func (m *Middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if m.opts.Skip != nil && m.opts.Skip(r) {
		m.counts[OutcomeSkipped].Add(1)
		next.ServeHTTP(w, r)
		return
	}
	e := Event{Request: r, Cost: m.cost(r)}
	res := m.decide(&e)
	switch {
	case res != nil && res.Allowed && m.opts.Settle != nil:
		m.serveAndSettle(w, &e, res, next)
	case m.enforce(w, &e, res):
		next.ServeHTTP(w, r)
	}
}

func (m *Middleware) cost(r *http.Request) int {
	if m.opts.Cost == nil {
		return 1
	}
	return m.opts.Cost(r)
}

// decide asks the limiter. The reservation is nil if what was charged stays.
func (m *Middleware) decide(e *Event) (res *ratelimit.Reservation) {
	if ctx := e.Request.Context(); m.reserver == nil {
		e.Decision, e.Err = m.limiter.Take(ctx, e.Request, e.Cost)
	} else if res, e.Err = m.reserver.Reserve(ctx, e.Request, e.Cost, m.maxDelay); res != nil {
		e.Decision = res.Decision
	}
	e.Outcome = m.outcome(e)
	return res
}

func (m *Middleware) outcome(e *Event) Outcome {
	switch {
	case e.Err == nil && e.Decision.Allowed && !tooLate(e):
		return OutcomeAllowed
	case e.Err == nil:
		return OutcomeDenied
	case errors.Is(e.Err, ratelimit.ErrExceedsLimit):
		return OutcomeExceeds
	case m.opts.FailOpen && reasonOf(e).FailsOpen():
		return OutcomeFailedOpen
	}
	return OutcomeFailed
}

// enforce is passes, and gives the charge back if the request is not served.
func (m *Middleware) enforce(w http.ResponseWriter, e *Event, res *ratelimit.Reservation) (served bool) {
	if res == nil {
		return m.passes(w, e)
	}
	defer func() {
		if !served {
			m.settle(e.Request, res, 0)
		}
	}()
	return m.passes(w, e)
}

// passes reports the decision to everyone, answers the request if it may not be served,
// and holds it for as long as it is delayed.
func (m *Middleware) passes(w http.ResponseWriter, e *Event) bool {
	m.report(e)
	switch {
	case m.opts.Shadow:
		return true
	case !m.admit(w, e):
		return false
	case e.Decision.Delay > 0 && !hold(e.Request.Context(), e.Decision.Delay):
		m.abandon(w, e)
		return false
	}
	return true
}

// report tells everyone except the client.
func (m *Middleware) report(e *Event) {
	m.counts[e.Outcome].Add(1)
	if e.Decision.Degraded {
		m.degraded.Add(1)
	}
	if e.Outcome >= OutcomeFailed {
		reason := reasonOf(e)
		m.logs[reason].Line(e.Request.Context(), m.opts.Logger, m.opts.Now(), reason.Level(), "httplimit: request not decided", "outcome", e.Outcome, "error", e.Err)
	}
	if m.opts.OnDecision != nil {
		m.opts.OnDecision(*e)
	}
}

// admit tells the client, and reports whether the request may be passed on.
func (m *Middleware) admit(w http.ResponseWriter, e *Event) bool {
	if e.Decision.Degraded && m.opts.DegradedHeader != "" {
		w.Header()[m.opts.DegradedHeader] = []string{"true"}
	}
	switch e.Outcome {
	case OutcomeAllowed:
		m.tellLimits(w, e)
		return true
	case OutcomeFailedOpen:
		return true
	case OutcomeDenied:
		if e.Decision.Allowed {
			m.tellLimits(w, e)
			m.abandon(w, e)
			return false
		}
		m.deny(w, e)
	case OutcomeExceeds:
		m.exceed(w, e)
	default:
		m.fail(w, e)
	}
	return false
}

func (m *Middleware) tellLimits(w http.ResponseWriter, e *Event) {
	h := w.Header()
	m.setLimits(h, m.view(h, e), &e.Decision, new([3]string)[:])
}

// tooLate reports whether the request can no longer be answered when its delay is over.
func tooLate(e *Event) bool {
	if e.Decision.Delay <= 0 {
		return false
	}
	s, ok := e.Request.Context().Value(http.ServerContextKey).(*http.Server)
	return ok && s.WriteTimeout > 0 && e.Decision.Delay >= s.WriteTimeout
}

// hold waits out the delay, and reports whether the client has waited too.
func hold(ctx context.Context, delay time.Duration) bool {
	t := time.NewTimer(delay)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
