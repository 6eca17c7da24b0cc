package httplimit

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/edge"
	"github.com/weir-go/ratelimit/internal/keytext"
)

// Options are the settings of [New] besides the limiter. Nil and the zero Options
// are safe: every request costs 1, a denied one is answered with 429, and one that
// could not be decided is refused. Functions in it are called concurrently.
type Options struct {
	// Cost returns what a request costs. Below zero is an error, and 0 always passes.
	// If nil, 1.
	Cost func(r *http.Request) int

	// Skip reports whether a request is exempt, such as a health check: it passes,
	// and the limiter is not asked. See [SkipPreflights]. If nil, no request
	// is exempt.
	Skip func(r *http.Request) bool

	// Settle returns what a request has really cost, once its handler has returned.
	// It gets the response's status and what was charged before. So you can count only
	// failed logins ([ChargeOnly]), or not count the server's own errors
	// ([RefundServerErrors]). If nil, the cost stays charged.
	//
	// The request is charged in full before the handler runs, so that a crowd of
	// requests at once gains nothing, and header fields tell of that. To charge
	// only by the outcome, let Cost be 1 or more: a cost of 0 passes even if nothing is left. The limiter must be a [ratelimit.Reserver].
	//
	// A handler that panics counts as status 500, whatever it has written. One that
	// hijacked the connection counts as 101. A status of 500 or above that the client
	// has caused counts as 400: its body was malformed, ended early, or was still being
	// read when the handler returned; or a Middleware inside this one refused the
	// request because a key table was full or the cost was negative. If Settle panics,
	// the whole cost stays charged. If the request does not reach its handler, because
	// OnDecision panics or a leaky bucket's delay is too long, the charge is cancelled.
	//
	// In a [ratelimit.Layered], leaky buckets delay requests as usual, and so they do in every
	// Reserver whose method BooksAhead() bool reports false, such as redislimit's Layered. Any other
	// Reserver is asked to take the cost now or not at all. So a leaky bucket given by
	// [ratelimit.Map] denies what it would have to delay: give a [ratelimit.All] of
	// that one layer instead.
	Settle func(r *http.Request, status, cost int) (actual int)

	// SettleResponse is Settle for a cost that the whole response tells, such as the bytes
	// that were written, or the tokens that a header field tells of. Only one of both may
	// be given. It must not keep or change the header.
	SettleResponse func(r *http.Request, resp Response, cost int) (actual int)

	// Shadow lets every request pass and leaves responses as they are. The limiter
	// decides and charges, Stats count and OnDecision is called with what would have been
	// done. So you can try a limit on real traffic first.
	Shadow bool

	// FailOpen lets a request pass if the limiter could not decide, for example because
	// its store is down ([ratelimit.ErrUnavailable]). Stats.FailedOpen counts such
	// requests. If false, the answer is OnError's.
	//
	// FailOpen does not apply to errors that a client can cause: a key is
	// missing or malformed ([keyfunc.ErrNoKey], [keyfunc.ErrMalformedKey], [ratelimit.ErrInvalidKey]),
	// the key table is full ([ratelimit.ErrTableFull]), the cost is below zero, or the
	// request's context has ended, as it has when the client hangs up. It does not apply to
	// [keyfunc.ErrMisconfigured] either. A key function of your own should wrap keyfunc.ErrNoKey if the
	// client has left the key out.
	FailOpen bool

	// KeyCode is the status of a request whose key is missing or malformed, such as
	// [http.StatusUnauthorized], from 400 to 499. If zero, [http.StatusBadRequest].
	KeyCode int

	// Dialect selects the header fields that tell of the limits. If zero,
	// [DialectDraft11].
	Dialect Dialect

	// QuotaUnit returns the unit that a limit counts, for the parameter qu of
	// RateLimit-Policy: "content-bytes" or a word of your own, such as "tokens", in
	// printable ASCII. "" means requests, and leaves the parameter out. It is called
	// rarely, and must return the same unit for the same limit. If nil, all limits count
	// requests.
	QuotaUnit func(limit ratelimit.Limit) string

	// RetryAfterMs sends the field Retry-After-Ms beside Retry-After, for clients that read it, such as [Transport]: a limit
	// of 10 a second is then not paid with whole seconds. If false, there is no such field.
	RetryAfterMs bool

	// DegradedHeader names a header field that is set to "true" if the decision is
	// [ratelimit.Decision.Degraded]: decided without the shared store. If empty, there
	// is no such field.
	DegradedHeader string

	// Jitter spreads the clients that were denied at the same time: up to this much, and
	// at most a tenth of the wait, is added to Retry-After, in whole seconds. Each
	// client's share stays the same for some minutes. If zero, nothing is added.
	Jitter time.Duration

	// JitterBy tells clients apart for Jitter. If nil, by the peer's address and
	// the fields X-Forwarded-For, Forwarded and Authorization.
	JitterBy func(r *http.Request) string

	// OnDenied answers a request that is denied for now. Header fields are set
	// already, Retry-After and Cache-Control among them; the status is not.
	// If nil, 429 with a problem document; to a gRPC or Connect call, RESOURCE_EXHAUSTED.
	OnDenied func(w http.ResponseWriter, e Event)

	// OnExceeds answers a request whose cost can never pass, so that a retry is
	// useless ([ratelimit.ErrExceedsLimit]): one above the limit's capacity,
	// or any request if the limit is [ratelimit.Blocked]. If nil, 403 with a problem
	// document and no Retry-After.
	OnExceeds func(w http.ResponseWriter, e Event)

	// OnError answers a request that could not be decided: the limiter or a key
	// function failed, and FailOpen is false or does not apply. Test e.Err with
	// [errors.Is], for example to answer an [keyfunc.ErrNoKey] with 401. Cache-Control is set
	// already; so is Retry-After for ErrUnavailable and ErrTableFull.
	//
	// If nil, the answer is a problem document that holds nothing of the error's text:
	// KeyCode for a missing or malformed key, 503 with Retry-After for
	// [ratelimit.ErrUnavailable] and [ratelimit.ErrTableFull], else 500.
	OnError func(w http.ResponseWriter, e Event)

	// OnDecision is called with each decision, before the request is answered or
	// passed on. It is not called for requests that Skip exempts. If nil, nothing is
	// called.
	OnDecision func(Event)

	// Logger gets the errors of requests that could not be decided, at most one line a
	// second for each kind: at Info if the request has no key or a malformed one, at Debug if its client has gone, else at
	// Error. It also gets failed settlements, at Warn and at most one line a second.
	// If nil, [slog.Default].
	Logger *slog.Logger

	// Now is the wall clock, for the dialect with Unix seconds and for Jitter. If
	// nil, [time.Now].
	Now func() time.Time
}

func (o *Options) validate() error {
	switch {
	case o.Dialect >= dialects:
		return fmt.Errorf("httplimit: Options.Dialect is %d, which does not exist", o.Dialect)
	case o.Settle != nil && o.SettleResponse != nil:
		return errors.New("httplimit: Options.Settle and Options.SettleResponse are both given")
	case !isKeyCode(o.KeyCode):
		return fmt.Errorf("httplimit: Options.KeyCode is %d, want 400 to 499, or 0 for 400", o.KeyCode)
	case o.Jitter < 0:
		return fmt.Errorf("httplimit: Options.Jitter is %v, want 0 or more", o.Jitter)
	case o.DegradedHeader != "" && !keytext.IsToken(o.DegradedHeader):
		return fmt.Errorf("httplimit: Options.DegradedHeader is %q, which is no header field's name", o.DegradedHeader)
	}
	return nil
}

// defaults fills in the functions that were left nil, and brings names into the form of
// http.Header.
func (o *Options) defaults() {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.JitterBy == nil {
		o.JitterBy = peerAndCredentials
	}
	o.DegradedHeader = http.CanonicalHeaderKey(o.DegradedHeader)
	if settle := o.Settle; settle != nil {
		o.SettleResponse = func(r *http.Request, resp Response, cost int) int { return settle(r, resp.Status, cost) }
	}
}

func isKeyCode(code int) bool { return code == 0 || 400 <= code && code < 500 }

// core returns the options that package edge knows.
func (o *Options) core() edge.Options[*http.Request] {
	c := edge.Options[*http.Request]{
		Package: "httplimit", Thing: "request", Cost: o.Cost, Skip: o.Skip, Settles: o.SettleResponse != nil, FailOpen: o.FailOpen,
		TooLate: tooLate, Jitter: o.Jitter, JitterBy: o.JitterBy, Logger: o.Logger, Now: o.Now,
	}
	if report := o.OnDecision; report != nil {
		c.OnDecision = func(e event) { report(public(e)) }
	}
	return c
}

// SkipPreflights is for [Options].Skip: the preflight requests of CORS are exempt. Browsers send
// them by themselves, without credentials, and cannot show a denial to anybody. What answers
// them must be cheap, since anyone can send them.
func SkipPreflights(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != ""
}

// peerAndCredentials tells clients apart well enough to spread them. It may be spoofed: a
// client that invents another identity waits as long as before, or longer.
func peerAndCredentials(r *http.Request) string {
	host := r.RemoteAddr
	if i := strings.LastIndexByte(host, ':'); i >= 0 {
		host = host[:i] // the port changes with each connection
	}
	parts := []string{host}
	for _, name := range []string{"X-Forwarded-For", "Forwarded", "Authorization"} {
		parts = append(parts, r.Header[name]...)
	}
	return strings.Join(parts, "\n")
}
