package grpclimit

import (
	"errors"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/edge"
)

// Options configure [New]. The zero Options are safe: each call costs 1, and is
// refused if the limiter cannot decide. Several goroutines may call the functions.
type Options struct {
	// Cost returns a call's cost, or with ChargeMessages a message's. A cost of 0 passes any limit. If the cost is
	// below 0, the call is refused as malformed, with INVALID_ARGUMENT even if KeyCode differs. It defaults to 1.
	Cost func(c *Call) int

	// Skip reports whether a call passes without a decision: see [SkipServices]. If nil, none does.
	Skip func(c *Call) bool

	// ChargeMessages also charges a stream for each received message. A denied message ends the
	// stream: RecvMsg returns the denial from then on. The charge for the opening stays, and the
	// charges for messages are not settled. The limit should have room for an opening and a
	// message at once. If Cost is nil and a stream is denied at its start, the wait covers both.
	ChargeMessages bool

	// Settle returns a call's real cost, given its status code and the charged cost; [ChargeOnly] makes such a function.
	// The limiter must be a [ratelimit.Reserver]. If it panics, the charge stays. If nil, the charge stays, too, with one
	// exception. An inner Interceptor may lack budget or room and refuse the call. If its error is returned, all is given
	// back. With Settle, its result counts then as well. A panicking handler counts as Internal, and a server error
	// caused by the client as InvalidArgument. A leaky bucket in a [ratelimit.Map] denies calls instead of delaying them.
	Settle func(c *Call, code codes.Code, cost int) (actual int)

	// SettleResponse is Settle with the response.
	SettleResponse func(c *Call, resp Response, cost int) (actual int)

	// Shadow lets all calls and messages pass. The limiter charges them;
	// Stats and OnDecision report each one's outcome without Shadow.
	Shadow bool

	// FailOpen lets a call pass if the limiter cannot decide, with the exceptions of [httplimit.Options].
	FailOpen bool

	// KeyCode is the code for calls without a valid key. It defaults to [codes.InvalidArgument].
	KeyCode codes.Code

	// LimitTrailers sends the trailers ratelimit-policy and ratelimit, as [httplimit.DialectDraft11]
	// does. They are sent with decided unary calls, and with streams denied as they open.
	LimitTrailers bool

	// QuotaUnit returns a limit's unit, as in [httplimit.Options].
	QuotaUnit func(limit ratelimit.Limit) string

	// DegradedTrailer names a trailer with the value "true" if
	// [ratelimit.Decision].Degraded is set. If empty, there is no such trailer.
	DegradedTrailer string

	// MaxHold bounds how long a call is held, as in [httplimit.Options]. [Interceptor.RefuseHeld] ends the waits. If net/http
	// serves the calls, a hold counts towards its ReadTimeout and WriteTimeout, because an interceptor cannot extend them.
	MaxHold time.Duration

	// Jitter spreads denied clients, as in [httplimit.Options]. It is added to the wait.
	Jitter time.Duration

	// JitterBy identifies the client. By default a client is identified
	// by its address, x-forwarded-for, forwarded and authorization.
	JitterBy func(c *Call) string

	// OnDenied returns the answer to a call denied for now, given the usual answer. If it returns
	// nil or OK, the usual one is sent. The trailer grpc-retry-pushback-ms is sent in any case.
	OnDenied func(e Event, answer *status.Status) *status.Status

	// OnExceeds is OnDenied for a call above the capacity ([ratelimit.ErrExceedsLimit]).
	OnExceeds func(e Event, answer *status.Status) *status.Status

	// OnError is OnDenied for a call if the limiter cannot decide because of e.Err. The usual code
	// is KeyCode without a valid key, CANCELED or DEADLINE_EXCEEDED if the context has ended,
	// INTERNAL for a negative cost or [keyfunc.ErrMisconfigured], and otherwise UNAVAILABLE.
	OnError func(e Event, answer *status.Status) *status.Status

	// OnDecision is called with each decision, before the call is
	// answered or served. For a held call it is called after the hold.
	OnDecision func(Event)

	// Logger logs errors, as in [httplimit.Options]. It defaults to [slog.Default].
	Logger *slog.Logger

	// Now is the wall clock. It defaults to [time.Now].
	Now func() time.Time
}

// complete checks the options, and sets the defaults.
func (o *Options) complete() error {
	switch {
	case o.Settle != nil && o.SettleResponse != nil:
		return errors.New("grpclimit: Options.Settle and Options.SettleResponse are both given")
	case o.DegradedTrailer != "" && !isMetadataKey(strings.ToLower(o.DegradedTrailer)):
		return errors.New("grpclimit: Options.DegradedTrailer is not a metadata key that a server may set")
	}
	if o.JitterBy == nil {
		o.JitterBy = client.Identity
	}
	o.DegradedTrailer = strings.ToLower(o.DegradedTrailer)
	if settle := o.Settle; settle != nil {
		o.SettleResponse = func(c *Call, resp Response, cost int) int { return settle(c, resp.Code, cost) }
	}
	return edge.CompleteKeyCode("grpclimit: Options", &o.KeyCode)
}

// isMetadataKey reports whether gRPC transmits a key and does not use it itself.
func isMetadataKey(s string) bool {
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || 'z' < c) && (c < '0' || '9' < c) && c != '-' && c != '_' && c != '.' {
			return false
		}
	}
	switch s {
	case "", "content-type", "te", "user-agent":
		return false
	}
	return !strings.HasPrefix(s, "grpc-")
}

// core returns the options for package edge.
func (o *Options) core() edge.Options[*Call] {
	c := edge.Options[*Call]{
		Package: "grpclimit", Thing: "call", Cost: o.Cost, Skip: o.Skip, Settles: o.SettleResponse != nil, FailOpen: o.FailOpen, Shadow: o.Shadow,
		TooLate: tooLate, MaxHold: o.MaxHold, Jitter: o.Jitter, JitterBy: o.JitterBy, Logger: o.Logger, Now: o.Now,
		About: func(c *Call) []any { return []any{"method", c.FullMethod} },
	}
	if report := o.OnDecision; report != nil {
		c.OnDecision = func(e event) { report(public(e)) }
	}
	return c
}

// SkipServices returns a function for [Options].Skip. It skips calls to the given services, such as "grpc.health.v1.Health".
func SkipServices(names ...string) func(*Call) bool {
	exempt := make(map[string]bool, len(names))
	for _, name := range names {
		exempt[name] = true
	}
	return func(c *Call) bool { return exempt[c.service()] }
}
