package httplimit

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/edge"
	"github.com/weir-go/ratelimit/internal/keytext"
	"github.com/weir-go/ratelimit/internal/optional"
)

// Options configure [New]. The zero Options are safe: each request costs 1, and
// is refused if the limiter cannot decide. Functions may be called concurrently.
type Options struct {
	// Cost returns a request's cost. It defaults to 1. A cost of 0 passes any limit. If the cost is
	// below 0, the request is refused as malformed, for example because its body cannot be read. Then
	// the answer is 400 even if KeyCode differs, and the error wraps [ratelimit.ErrNegativeCost].
	Cost func(r *http.Request) int

	// Skip reports whether a request passes without a decision, such
	// as a CORS preflight: see the example. If nil, no request does.
	Skip func(r *http.Request) bool

	// Settle returns a request's real cost, given the response's status and the charged cost. For
	// example, [ChargeOnly] returns such a function. The limiter must be a [ratelimit.Reserver]. If
	// Settle panics, the charge stays. If it is nil, the charge stays, too, with one exception. An inner
	// Middleware or Inflight, or grpclimit's or connectlimit's interceptor, may lack budget or room and
	// refuse the request: then the charge is given back. If Settle is set, its result counts then, too.
	//
	// If a handler panics before it has sent a status, it counts as 500. If it hijacked the connection, it counts as
	// 101. A server error counts as 400 if the client caused it: a malformed or incomplete
	//      body, a full key table, a negative cost. A leaky bucket in a [ratelimit.Map]
	//      denies requests instead of delaying them: use a [ratelimit.All] of one layer.
	Settle func(r *http.Request, status, cost int) (actual int)

	// SettleResponse is like Settle, with the whole response. It must not keep or change the header.
	SettleResponse func(r *http.Request, resp Response, cost int) (actual int)

	// Shadow lets all requests pass with unchanged responses. The limiter charges
	// them; Stats and OnDecision report each request's outcome without Shadow.
	Shadow bool

	// FailOpen lets a request pass if the limiter cannot decide. It does not apply to errors that a client can cause: no
	// valid key, a full key table, a negative cost, an ended context. Nor does it apply to [keyfunc.ErrMisconfigured].
	FailOpen bool

	// KeyCode is the status, from 400 to 499, for a request whose key is missing or malformed. It defaults to 400.
	KeyCode int

	// Challenge is the WWW-Authenticate value if KeyCode is 401, such as `Basic realm="api"`. It defaults to "Bearer".
	Challenge string

	// PlainHTTP refuses RPC requests like other requests, by the HTTP status and a problem
	// document. In gRPC's protocol a refusal has the status 200. So set PlainHTTP if only
	// the status counts, for example in front of a handler for a gateway's sub-requests.
	PlainHTTP bool

	// Dialect selects the header fields. If zero, it is [DialectDraft11].
	Dialect Dialect

	// QuotaUnit returns the unit of a limit's quota, for example "content-bytes", in printable ASCII.
	// It must always return the same unit for the same limit. If nil or "", the unit is requests.
	QuotaUnit func(limit ratelimit.Limit) string

	// RetryAfterMs sends Retry-After-Ms in addition to Retry-After. If clients
	// obey RateLimit, they still wait for whole seconds: use [DialectNone].
	RetryAfterMs bool

	// DegradedHeader names a field with the value "true" if
	// [ratelimit.Decision].Degraded is set. If empty, there is no such field.
	DegradedHeader string

	// MaxHold bounds how long a request is held until it passes. If a request can pass within MaxHold, it waits
	// in line for its turn; others get 429 at once. The limiter must be a [ratelimit.Reserver] that books ahead,
	// for example a [ratelimit.Map] or PerIP's limiter. For a [ratelimit.Layered], MaxHold bounds the delay of
	// leaky buckets. If zero, only leaky buckets hold requests, for any time. [ratelimit.Options].MaxWaiting
	// bounds how many requests are held, and [Middleware.RefuseHeld] ends their waits.
	MaxHold time.Duration

	// Jitter spreads clients that were denied at the same time. Each client's share is added to its
	// Retry-After. The share is at most Jitter, and at most a tenth of the wait. If zero, nothing is added.
	Jitter time.Duration

	// JitterBy returns a text that identifies the client. By default, the
	// address, X-Forwarded-For, Forwarded and Authorization identify a client.
	JitterBy func(r *http.Request) string

	// OnDenied answers a request denied for now. Retry-After and
	// Cache-Control are set; the status is not. If nil, the answer is 429.
	OnDenied func(w http.ResponseWriter, e Event)

	// OnExceeds answers a request above the limit's capacity ([ratelimit.ErrExceedsLimit]),
	// as OnDenied does, but without Retry-After. If nil, the answer is 403.
	OnExceeds func(w http.ResponseWriter, e Event)

	// OnError answers a request if the limiter cannot decide because of e.Err, as OnDenied does. Retry-After is set only
	// for ErrUnavailable and ErrTableFull. WWW-Authenticate is set only without a valid key and if KeyCode is 401. If
	// nil, the answer is KeyCode without a valid key, 400 for a cost below 0, 503 with Retry-After, and otherwise 500.
	OnError func(w http.ResponseWriter, e Event)

	// OnDecision is called with each decision, before the request is
	// answered or served. For a held request, it is called after the hold.
	OnDecision func(Event)

	// Logger logs why the limiter could not decide, or a charge could not be settled. It logs at most one line
	// a second for each kind. The level is Info for a request without a valid key or with a negative cost,
	// Debug if the client has gone, Warn for a settlement, and otherwise Error. It defaults to [slog.Default].
	Logger *slog.Logger

	// Now is the wall clock. It defaults to [time.Now].
	Now func() time.Time
}

func (o *Options) validate() error {
	const names = "DialectDraft11, DialectDraft06, DialectXEpoch, DialectXDelta or DialectNone"
	if err := optional.Constant("httplimit: Options.Dialect", o.Dialect, dialects-1, names); err != nil {
		return err
	}
	switch {
	case o.Settle != nil && o.SettleResponse != nil:
		return errors.New("httplimit: Options.Settle and Options.SettleResponse are both given")
	case o.DegradedHeader != "" && !keytext.IsToken(o.DegradedHeader):
		return fmt.Errorf("httplimit: Options.DegradedHeader is %q, which is no header field's name", o.DegradedHeader)
	}
	return checkKeyCode("Options", o.KeyCode, &o.Challenge)
}

// checkKeyCode checks the status of a request without a valid key, and completes its challenge.
func checkKeyCode(options string, code int, challenge *string) error {
	if code != 0 && (code < 400 || code > 499) {
		return fmt.Errorf("httplimit: %s.KeyCode is %d, want 400 to 499, or 0 for 400", options, code)
	}
	return edge.CompleteChallenge("httplimit: "+options, code, http.StatusUnauthorized, challenge)
}

// defaults replaces nil functions, and brings names into the form of http.Header.
func (o *Options) defaults() {
	if o.JitterBy == nil {
		o.JitterBy = client.Identity
	}
	o.DegradedHeader = http.CanonicalHeaderKey(o.DegradedHeader)
	if settle := o.Settle; settle != nil {
		o.SettleResponse = func(r *http.Request, resp Response, cost int) int { return settle(r, resp.Status, cost) }
	}
}

// core returns the options for package edge.
func (o *Options) core() edge.Options[*http.Request] {
	c := edge.Options[*http.Request]{
		Package: "httplimit", Thing: "request", Cost: o.Cost, Skip: o.Skip, Settles: o.SettleResponse != nil, FailOpen: o.FailOpen, Shadow: o.Shadow,
		TooLate: tooLate, MaxHold: o.MaxHold, Jitter: o.Jitter, JitterBy: o.JitterBy, Logger: o.Logger, Now: o.Now,
	}
	if report := o.OnDecision; report != nil {
		c.OnDecision = func(e event) { report(public(e)) }
	}
	return c
}
