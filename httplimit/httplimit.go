// Package httplimit is net/http middleware that decides with any
// [ratelimit.Limiter] of requests, and answers as the standards say: with the
// RateLimit-Policy and RateLimit fields of the IETF draft, and to a denied request
// with 429, a Retry-After that is true, and a problem document.
//
// Say what is limited with a limiter, and for whom with key functions such as
// [RemoteIP], [ClientIP], [APIKey] and [Join]; then wrap handlers:
//
//	perIP, err := ratelimit.New[netip.Addr](ratelimit.TokenBucket(ratelimit.PerSecond(10), 20), nil)
//	...
//	limit, err := httplimit.New(ratelimit.Map(perIP, httplimit.RemoteIP), nil)
//	...
//	http.Handle("/", limit.Wrap(handler))
//
// Wrap is a func(http.Handler) http.Handler, so it fits any router's Use. For
// several limits on one request, give New a [ratelimit.All] of layers.
//
// Nothing here starts a goroutine.
package httplimit

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
)

// Options are what [New] can be told beyond the limiter. Nil and the zero Options
// are safe: every request costs 1, a denied one is answered with 429, and one that
// could not be decided with 500.
type Options struct {
	// Cost is what a request costs. Below zero is an error, and 0 always passes.
	// If nil, 1.
	Cost func(r *http.Request) int

	// Skip says which requests are left out, such as health checks: they pass,
	// and the limiter does not hear of them. If nil, none.
	Skip func(r *http.Request) bool

	// Settle says what a request has really cost, once its handler has returned:
	// the response's status and what was charged before are given. So failed
	// logins alone can be made to count ([ChargeOnly]), or a server's own errors
	// not to ([RefundServerErrors]). A handler that panics counts as status 500,
	// whatever it has written; one that hijacked the connection as 101. The limiter
	// must be a [ratelimit.Reserver]. The whole cost is charged until then, so
	// that a crowd of requests at once gains nothing, and header fields tell of
	// that. A cost of 0 charges nothing then or later: to charge by the outcome
	// alone, let Cost be 1 at least. If nil, the cost stays charged.
	//
	// In a [ratelimit.Layered], leaky buckets delay as ever; any other Reserver
	// is asked to take the cost now or not at all. So a leaky bucket given by
	// [ratelimit.Map] denies what it would have to delay: give a [ratelimit.All] of
	// that one layer instead.
	Settle func(r *http.Request, status, cost int) (actual int)

	// Shadow lets everything pass and leaves responses as they are. The limiter
	// decides and charges, Stats count and OnDecision is told what would have been
	// done: a limit can be tried on real traffic first.
	Shadow bool

	// FailOpen lets a request pass if the limiter could not decide: a remote one is
	// out of reach, a table is full. Stats.FailedOpen counts them. What a client
	// could bring about is not let through even so: a key that is missing or
	// malformed ([ErrNoKey], [ErrMalformedKey], [ratelimit.ErrInvalidKey]), a cost
	// below zero, and a context that has ended, as it has when the client hangs
	// up. A key function of your own should wrap ErrNoKey for that. If false, the
	// answer is OnError's.
	FailOpen bool

	// Dialect is how the limits are told in header fields. If zero,
	// [DialectDraft11].
	Dialect Dialect

	// Jitter spreads the clients that were denied together: up to this much, and
	// at most a tenth of the wait, is added to Retry-After, in whole seconds. Each
	// client's share is the same for some minutes. It only adds. If zero, none.
	Jitter time.Duration

	// JitterBy tells clients apart for Jitter. If nil, by the peer's address and
	// the fields X-Forwarded-For, Forwarded and Authorization.
	JitterBy func(r *http.Request) string

	// OnDenied answers a request that is denied for now. Header fields are set
	// already, Retry-After and Cache-Control among them; the status is not.
	// If nil, 429 with a problem document.
	OnDenied func(w http.ResponseWriter, e Event)

	// OnExceeds answers a request whose cost can never pass, which it is of no
	// use to retry ([ratelimit.ErrExceedsLimit]): one above the limit's capacity,
	// or any if the limit is [ratelimit.Blocked]. If nil, 403 with a problem
	// document and no Retry-After.
	OnExceeds func(w http.ResponseWriter, e Event)

	// OnError answers a request that could not be decided: the limiter or a key
	// function failed, and FailOpen is false or does not apply. If nil, 500 with a
	// problem document that holds nothing of the error's text. Test e.Err with
	// [errors.Is] to answer an [ErrNoKey] with 401.
	OnError func(w http.ResponseWriter, e Event)

	// OnDecision is called with each decision, before the request is answered or
	// passed on. It is not called for what Skip leaves out. If nil, nothing is.
	OnDecision func(Event)

	// Logger is told the errors of requests that could not be decided, at most
	// once a second. If nil, [slog.Default].
	Logger *slog.Logger

	// Now is the wall clock, for the dialect with Unix seconds and for Jitter. If
	// nil, [time.Now].
	Now func() time.Time
}

// Middleware holds handlers to a limiter. Make one with [New]. It is safe for
// concurrent use, and may wrap any number of handlers, which then share its limits.
type Middleware struct {
	limiter  ratelimit.Limiter[*http.Request]
	reserver ratelimit.Reserver[*http.Request] // if there is something to settle, else nil
	maxDelay time.Duration                     // of the reserver
	opts     Options
	counts   [outcomes]atomic.Uint64
	log      throttledLog
	seed     maphash.Seed // of the jitter

	limits   func() []ratelimit.Limit // of a limiter that knows them, else nil
	known    atomic.Pointer[[]*view]  // how the limits that the limiter knows are written
	variants sync.Map                 // the same for plans of single keys: ratelimit.Limit to *view
	learned  atomic.Int64             // how many of those there are
}

// New returns middleware that decides with the limiter. The error names the option
// and what is wrong with it. A limiter whose keys are whole requests limits nothing,
// and is refused: see [ratelimit.Map]. The limits of a limiter that has a method Limits()
// []ratelimit.Limit, as [ratelimit.Layered] does, need names that a header can
// carry and tell apart (see [ratelimit.Limit.Named]). A limit without a name is
// called "default".
func New(limiter ratelimit.Limiter[*http.Request], opts *Options) (*Middleware, error) {
	if err := checkLimiter(limiter); err != nil {
		return nil, err
	}
	m := &Middleware{limiter: limiter, seed: maphash.MakeSeed()}
	if opts != nil {
		m.opts = *opts
	}
	if err := m.opts.validate(); err != nil {
		return nil, err
	}
	m.defaults()
	if err := m.findReserver(); err != nil {
		return nil, err
	}
	if err := m.findLimits(); err != nil {
		return nil, err
	}
	return m, nil
}

// Must returns the middleware, or panics if there is an error.
func Must(m *Middleware, err error) *Middleware {
	if err != nil {
		panic(err)
	}
	return m
}

// checkLimiter refuses what can only be a mistake.
func checkLimiter(limiter ratelimit.Limiter[*http.Request]) error {
	if v := reflect.ValueOf(limiter); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return errors.New("httplimit: New needs a limiter, and got nil")
	}
	if _, ok := limiter.(*ratelimit.Keyed[*http.Request]); ok {
		return errors.New("httplimit: this limiter's key is the request itself, so that each has a budget of its own: " +
			"give its key to ratelimit.Map or ratelimit.By")
	}
	return nil
}

func (o *Options) validate() error {
	switch {
	case o.Dialect >= dialects:
		return fmt.Errorf("httplimit: Options.Dialect is %d, which does not exist", o.Dialect)
	case o.Jitter < 0:
		return fmt.Errorf("httplimit: Options.Jitter is %v, want 0 or more", o.Jitter)
	}
	return nil
}

func (m *Middleware) defaults() {
	o := &m.opts
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.JitterBy == nil {
		o.JitterBy = peerAndCredentials
	}
}

// century is the time in which any limit has regained its whole capacity.
const century = 876_600 * time.Hour

func (m *Middleware) findReserver() error {
	if m.opts.Settle == nil {
		return nil
	}
	r, ok := m.limiter.(ratelimit.Reserver[*http.Request])
	if !ok {
		return fmt.Errorf("httplimit: Options.Settle needs a ratelimit.Reserver, and %T is none", m.limiter)
	}
	m.reserver = r
	if _, layered := r.(*ratelimit.Layered[*http.Request]); layered {
		m.maxDelay = century // it books nothing ahead, so this is as far as Take goes
	}
	return nil
}

func (m *Middleware) findLimits() error {
	l, ok := m.limiter.(interface{ Limits() []ratelimit.Limit })
	if !ok {
		m.known.Store(new([]*view))
		return nil
	}
	m.limits = l.Limits
	limits := l.Limits()
	if err := checkNames(limits); err != nil {
		return err
	}
	views := viewsOf(limits)
	m.known.Store(&views)
	return nil
}

// Wrap returns a handler that passes on to next what the limiter allows, and
// answers the rest. What a leaky bucket delays is held until its turn has come. If
// the request's context ends before, the client having left or a deadline of the
// server's having passed, it is not served, and answered with 503 in case that
// somebody is still there.
//
// Next gets the server's own ResponseWriter, or with [Options].Settle one that has
// the same optional methods, directly (Flush, Hijack, Push; ReadFrom always) or by way
// of [http.ResponseController].
func (m *Middleware) Wrap(next http.Handler) http.Handler {
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
	m.report(&e)
	if !m.opts.Shadow && !m.admit(w, &e) {
		return
	}
	if !m.hold(r.Context(), e.Decision.Delay) {
		res.Cancel()
		m.abandon(w, &e)
		return
	}
	if res == nil || !res.Allowed {
		next.ServeHTTP(w, r)
		return
	}
	m.serveAndSettle(w, &e, res, next)
}

func (m *Middleware) cost(r *http.Request) int {
	if m.opts.Cost == nil {
		return 1
	}
	return m.opts.Cost(r)
}

// decide asks the limiter. The reservation is nil if there is nothing to settle.
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
	case e.Err == nil && e.Decision.Allowed:
		return OutcomeAllowed
	case e.Err == nil:
		return OutcomeDenied
	case errors.Is(e.Err, ratelimit.ErrExceedsLimit):
		return OutcomeExceeds
	case m.opts.FailOpen && !hadForTheAsking(e):
		return OutcomeFailedOpen
	}
	return OutcomeFailed
}

// clientsDoing are the errors that a client can bring about, so that failing open on
// them would be a way past every limit.
var clientsDoing = []error{ErrNoKey, ErrMalformedKey, ratelimit.ErrNegativeCost, ratelimit.ErrInvalidKey}

// hadForTheAsking reports whether the client can have made the decision fail. One that
// hangs up cancels the context, and with it what a remote limiter is asked.
func hadForTheAsking(e *Event) bool {
	is := func(target error) bool { return errors.Is(e.Err, target) }
	return e.Request.Context().Err() != nil || slices.ContainsFunc(clientsDoing, is)
}

// report tells everyone but the client.
func (m *Middleware) report(e *Event) {
	m.counts[e.Outcome].Add(1)
	if e.Outcome >= OutcomeFailed {
		m.log.error(m.opts.Logger, m.opts.Now(), e)
	}
	if m.opts.OnDecision != nil {
		m.opts.OnDecision(*e)
	}
}

// admit tells the client, and reports whether the request may be passed on.
func (m *Middleware) admit(w http.ResponseWriter, e *Event) bool {
	switch e.Outcome {
	case OutcomeAllowed:
		m.setLimits(w.Header(), m.view(e.Decision.Limit), &e.Decision, new([3]string)[:])
		return true
	case OutcomeFailedOpen:
		return true
	case OutcomeDenied:
		m.deny(w, e)
	case OutcomeExceeds:
		m.exceed(w, e)
	default:
		m.fail(w, e)
	}
	return false
}

// hold waits until the work's turn has come, and reports whether the client is
// still there then. In shadow mode nothing waits.
func (m *Middleware) hold(ctx context.Context, delay time.Duration) bool {
	if delay <= 0 || m.opts.Shadow {
		return true
	}
	t := time.NewTimer(delay)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
