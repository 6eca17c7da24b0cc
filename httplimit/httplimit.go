// Package httplimit limits HTTP requests: middleware for net/http servers, and a [Transport] for clients.
//
//	limit, err := httplimit.PerIP(ratelimit.TokenBucket(ratelimit.PerSecond(10), 20), nil)
//	...
//	http.Handle("/", limit.Wrap(handler))
//
// A denied request gets 429, Retry-After and a problem document. Calls by gRPC, gRPC-Web and Connect are refused in their own
// protocol, unless [Options].PlainHTTP is set. [PerKey] limits by another key. [New] takes any limiter, for example several
// limits from [ratelimit.All]. The package's example charges requests without a key to their address, by [keyfunc.Otherwise].
//
// For frameworks, see docs/frameworks.md. The package starts no goroutine for a server.
package httplimit

import (
	"cmp"
	"net/http"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/edge"
	"github.com/weir-go/ratelimit/internal/limitfields"
	"github.com/weir-go/ratelimit/internal/optional"
)

// New returns middleware that decides with the limiter. The error names the invalid option. A
// limiter whose keys are whole requests limits nothing, so New rejects it: see [ratelimit.Map].
// With [DialectDraft11], the limits' names must differ even without regard to case.
func New(limiter ratelimit.Limiter[*http.Request], opts *Options) (*Middleware, error) {
	m := &Middleware{opts: *cmp.Or(opts, new(Options))}
	if err := m.opts.validate(); err != nil {
		return nil, err
	}
	m.opts.defaults()
	core, err := edge.New(limiter, m.opts.core())
	if err != nil {
		return nil, err
	}
	if err := m.views.Init(limiter, limitfields.Options{Package: "httplimit", Unit: m.opts.QuotaUnit, Named: m.opts.Dialect == DialectDraft11}); err != nil {
		return nil, err
	}
	m.core, m.badKey, m.fields = core, newBadKey(m.opts.KeyCode), fieldsOf(&m.opts)
	return m, nil
}

// PerIP is [PerKey] with [RemoteIP]. Behind a proxy use PerKey with [ClientIP]. PerIP logs one
// warning when a request comes from a private address and names another client in a header field.
func PerIP(limit ratelimit.Limit, opts *Options) (*Middleware, error) {
	l, err := client.PerIP(limit, "PerKey with ClientIP", cmp.Or(opts, new(Options)).Logger)
	if err != nil {
		return nil, err
	}
	return New(l, opts)
}

// PerKey returns middleware with one limit for each key. For example, [APIKey] returns a key function. PerKey
// tracks 65,536 keys, and remembers as many others. It returns the errors of [ratelimit.New] and [New].
func PerKey[K comparable](limit ratelimit.Limit, key func(*http.Request) (K, error), opts *Options) (*Middleware, error) {
	if key == nil {
		return nil, optional.Nil("httplimit: PerKey: key")
	}
	l, err := edge.PerKey(limit, key)
	if err != nil {
		return nil, err
	}
	return New(l, opts)
}

// Wrap returns a handler that passes allowed requests to next, and
// answers the others. It panics if the Middleware is zero or next is nil.
//
// A request is held if a leaky bucket delays it. It gets 503 if its context ends first, and at once if the
// delay is at least the server's WriteTimeout. Its charge is then given back, except by a leaky bucket in
// a [ratelimit.Map]: use [PerKey], or [ratelimit.All] with one layer. After the hold, the server's
// ReadTimeout and WriteTimeout restart, even if an outer handler has set other deadlines. Over HTTP/1,
// net/http notices that a client has gone only after the body was read: read it before the limiter.
//
// Under net/http's server, next gets a ResponseWriter with the server's optional methods. This writer keeps the header
// fields across informational responses: after these, [net/http/httputil.ReverseProxy] clears the header. Some frameworks,
// such as echo, write a status after their middleware. With [Options].Settle, wrap such a framework as a whole.
func (m *Middleware) Wrap(next http.Handler) http.Handler {
	switch {
	case m == nil || m.core == nil:
		panic(optional.Zero("httplimit", "Middleware", "New, PerIP or PerKey"))
	case next == nil:
		panic(optional.Nil("httplimit: Middleware.Wrap: next"))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
}

// serve decides on a request, passes it on or answers it, and settles its charge in any case, even if the handler panics.
func (m *Middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if m.core.Skips(r) {
		next.ServeHTTP(w, r)
		return
	}
	e := m.core.Event(r)
	charge := m.core.Charge(&e, m.core.Decide(&e, m.core.Settles))
	defer charge.End()
	if !m.opts.Shadow {
		m.hold(w, &e)
	}
	m.core.Report(&e)
	watched, w, ok := m.admit(w, &e)
	if !ok {
		return
	}
	ctx := charge.Serve(r.Context())
	if stay := charge.Stay(); stay != nil && reachesHijacker(w) {
		if watched == nil {
			watched, w = watch(w, r)
		}
		stay.Share()
		watched.tenure = newTenure(stay.End)
		defer watched.tenure.done()
	}
	switch {
	case m.core.Settles:
		m.serveAndSettle(ctx, watched, w, r, charge, next)
	case m.core.Returns():
		m.serveNested(ctx, &e, watched, w, charge, next)
	default:
		next.ServeHTTP(w, r)
		watched.restore()
	}
}

// admit sets the header fields if the request passes, and answers it otherwise. It returns
// the writer for the handler. watched is the writer's watcher, or nil if no field needs one.
func (m *Middleware) admit(w http.ResponseWriter, e *event) (watched *watcher, writer http.ResponseWriter, ok bool) {
	if m.opts.Shadow {
		return nil, w, true
	}
	if e.Outcome != edge.Allowed && e.Outcome != edge.FailedOpen {
		m.refuse(w, e)
		return nil, nil, false
	}
	degraded := e.Decision.Degraded && m.opts.DegradedHeader != ""
	announces := e.Outcome == edge.Allowed && m.opts.Dialect != DialectNone
	if !degraded && !announces {
		return nil, w, true
	}
	var values *[4]string
	writer = w
	if serverOf(e.Request) == nil {
		values = new([4]string) // other writers, such as those of tests, send no informational responses
	} else {
		watched, writer = watch(w, e.Request)
		watched.fields, values = m.fields, &watched.values
	}
	h := w.Header()
	if degraded {
		set(h, m.opts.DegradedHeader, "true", values[3:])
	}
	if announces {
		m.setLimits(h, m.view(h, e), &e.Decision, values[:3])
	}
	return watched, writer, true
}

func (m *Middleware) setFields(w http.ResponseWriter, e *event) {
	h := w.Header()
	m.setLimits(h, m.view(h, e), &e.Decision, new([3]string)[:])
}

// serverOf returns the request's net/http server, or nil.
func serverOf(r *http.Request) *http.Server {
	s, _ := r.Context().Value(http.ServerContextKey).(*http.Server)
	return s
}

// Middleware limits requests. Make one with [New], [PerIP] or [PerKey].
// It is safe for concurrent use. All wrapped handlers share its limits.
type Middleware struct {
	core   *edge.Core[*http.Request]
	opts   Options
	views  limitfields.Views
	fields *fieldNames
	badKey *problem
}

// event is the [Event] of package edge.
type event = edge.Event[*http.Request]

// public converts an event to the exported type.
func public(e event) Event {
	return Event{Request: e.Request, Cost: e.Cost, Decision: e.Decision, Err: e.Err, Outcome: Outcome(e.Outcome)}
}

// Stats returns the counters.
func (m *Middleware) Stats() Stats {
	if m == nil || m.core == nil {
		return Stats{}
	}
	return Stats(m.core.Stats())
}
