package grpclimit

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/edge"
)

// Options are the settings of [New] besides the limiter. Nil and the zero Options
// are safe: every call costs 1, a denied one is answered with RESOURCE_EXHAUSTED, and one
// that could not be decided is refused. Functions in it are called concurrently. One that panics
// fails its call, as a panic in a handler does.
type Options struct {
	// Cost returns what a call costs. Below zero is an error, and 0 always passes. If
	// nil, 1. With ChargeMessages it is asked for each message too, which is in
	// c.Request then.
	Cost func(c *Call) int

	// Skip reports whether a call is exempt, such as a health check: it passes, and the
	// limiter is not asked, for its messages neither. See [SkipServices]. If nil, no call is
	// exempt.
	Skip func(c *Call) bool

	// ChargeMessages charges a stream for each message that it receives, in addition to
	// what it is charged when it opens. If false, streams cost as much as unary calls. Where only
	// the server streams, there is one message, the request. What messages have cost is not
	// settled.
	//
	// A message that is denied ends the stream: from then on RecvMsg returns the status of the
	// denial, and the handler should return. The stream does not end with OK even if its
	// handler returns nil.
	//
	// The opening stays charged if a message is denied: the handler has run by then, and
	// would run again and again without an answer. A client that retries a denied stream opens it
	// again, and pays for that again, as it does for messages that it sends again. So the
	// limit should hold an opening and a message at once.
	//
	// If Cost is nil, a stream that is denied as it opens, or at its first message, is told to
	// wait until both pass, so that its first retry succeeds. For that the limiter is asked a
	// second time. It must be a [ratelimit.Reserver]. A leaky bucket given by [ratelimit.Map],
	// or limits that are not known (LimitFor), cannot be asked for it: give a [ratelimit.All] of
	// that one layer instead.
	ChargeMessages bool

	// Settle returns what a call has really cost, once its handler has returned. It gets
	// the call's status code and what was charged before. So you can count only failed
	// logins ([ChargeOnly]), or not count the server's own errors ([RefundServerErrors]).
	// If nil, the cost stays charged.
	//
	// The call is charged in full before the handler runs, so that a crowd of calls at
	// once gains nothing. To charge only by the outcome, let Cost be 1 or more: a cost of 0
	// passes even if nothing is left. The limiter must be a [ratelimit.Reserver].
	//
	// The code is the one that the server would send: an error without a status is Unknown, or
	// Canceled or DeadlineExceeded if it wraps a context's error. A handler that panics
	// counts as Internal, and the panic goes on. A server error that the client has caused
	// counts as InvalidArgument: a message could not be received, or could not be sent
	// because the connection was closed; or an Interceptor inside this one refused the call
	// because a key table was full or the cost was negative. If Settle panics, the whole
	// cost stays charged. If the call does not reach its handler, because OnDecision panics
	// or a leaky bucket's delay is too long, the charge is cancelled.
	//
	// In a [ratelimit.Layered], leaky buckets delay calls as usual, and so they do in every
	// Reserver whose method BooksAhead() bool reports false, such as redislimit's Layered. Any
	// other is asked to take the cost now or not at all. So a leaky bucket given by
	// [ratelimit.Map] denies what it would have to delay: give a [ratelimit.All] of that
	// one layer instead.
	Settle func(c *Call, code codes.Code, cost int) (actual int)

	// SettleResponse is Settle for a cost that the response tells, such as the tokens that
	// it counts, or how many messages were sent. Only one of both may be given.
	SettleResponse func(c *Call, resp Response, cost int) (actual int)

	// Shadow lets every call and message pass, and leaves answers as they are. The
	// limiter decides and charges, Stats count and OnDecision is called with what would
	// have been done. So you can try a limit on real traffic first.
	Shadow bool

	// FailOpen lets a call pass if the limiter could not decide, for example because its
	// store is down ([ratelimit.ErrUnavailable]). Stats.FailedOpen counts such calls. If
	// false, the answer is UNAVAILABLE.
	//
	// FailOpen does not apply to errors that a client can cause: a key is missing or
	// malformed ([keyfunc.ErrNoKey], [keyfunc.ErrMalformedKey], [ratelimit.ErrInvalidKey]), the key table is
	// full ([ratelimit.ErrTableFull]), the cost is below zero, or the call's context has
	// ended. It does not apply to [keyfunc.ErrMisconfigured] either. A key function of your own
	// should wrap keyfunc.ErrNoKey if the client has left the key out.
	FailOpen bool

	// KeyCode is the status code of a call whose key is missing or malformed, such as
	// [codes.Unauthenticated]. If zero, [codes.InvalidArgument].
	KeyCode codes.Code

	// LimitTrailers tells clients of their limits: each unary call that is decided about, allowed or
	// not, and each stream that is denied as it opens, gets the trailers ratelimit-policy and ratelimit, with what
	// [httplimit.DialectDraft11] says of the fields of these names. A [Client] keeps to them. The
	// names of the limits must differ in more than case; if interceptors are inside of
	// others, those of all of them. A stream that is served gets none: its trailers come when it ends. If
	// false, there are no such trailers: they cost an allowed call a few allocations.
	LimitTrailers bool

	// QuotaUnit returns the unit that a limit counts, for LimitTrailers: see
	// [httplimit.Options]. If nil, all limits count requests.
	QuotaUnit func(limit ratelimit.Limit) string

	// DegradedTrailer names a trailer that is set to "true" if the decision is
	// [ratelimit.Decision.Degraded]: decided without the shared store. It is not a header,
	// because a client does not retry a denial that comes with headers. If empty, there is
	// no such trailer.
	DegradedTrailer string

	// Jitter spreads the clients that were denied at the same time: up to this much, and at
	// most a tenth of the wait, is added to what RetryInfo and grpc-retry-pushback-ms tell
	// them to wait. Each client's share stays the same for some minutes. If zero, nothing is
	// added.
	Jitter time.Duration

	// JitterBy tells clients apart for Jitter. If nil, by the peer's address and the
	// metadata x-forwarded-for, forwarded and authorization.
	JitterBy func(c *Call) string

	// OnDenied returns the answer to a call that is denied for now; also to one that a leaky
	// bucket allows, but delays beyond its deadline (e.Decision.Allowed). It gets the answer
	// that is sent if it is nil, and may return another one, for example with more
	// details. If it returns nil or OK, the given answer is sent. The trailer
	// grpc-retry-pushback-ms is set in any case.
	OnDenied func(e Event, answer *status.Status) *status.Status

	// OnExceeds is OnDenied for a call whose cost can never pass, so that a retry is
	// useless ([ratelimit.ErrExceedsLimit]): one above the limit's capacity, or any call if
	// the limit is [ratelimit.Blocked].
	OnExceeds func(e Event, answer *status.Status) *status.Status

	// OnError is OnDenied for a call that could not be decided: the limiter or a key
	// function failed, and FailOpen is false or does not apply. Test e.Err with
	// [errors.Is]. The given answer holds nothing of the error's text. Its code is KeyCode
	// for a missing or malformed key; CANCELED or DEADLINE_EXCEEDED if the context has
	// ended; INTERNAL for a negative cost and [keyfunc.ErrMisconfigured]; else UNAVAILABLE.
	OnError func(e Event, answer *status.Status) *status.Status

	// OnDecision is called with each decision, before the call is answered or passed on.
	// It is not called for calls that Skip exempts. If nil, nothing is called.
	OnDecision func(Event)

	// Logger gets the errors of calls that could not be decided, at most one line a second
	// for each kind: at Info if the call has no key or a malformed one, at Debug if its client has gone, else at Error. It
	// also gets failed settlements, at Warn and at most one line a second. If nil,
	// [slog.Default].
	Logger *slog.Logger

	// Now is the wall clock, for Jitter and for Logger's one line a second. If nil,
	// [time.Now].
	Now func() time.Time
}

func (o *Options) validate() error {
	switch {
	case o.KeyCode > codes.Unauthenticated:
		return fmt.Errorf("grpclimit: Options.KeyCode is %d, which does not exist", o.KeyCode)
	case o.Settle != nil && o.SettleResponse != nil:
		return errors.New("grpclimit: Options.Settle and Options.SettleResponse are both given")
	case o.Jitter < 0:
		return fmt.Errorf("grpclimit: Options.Jitter is %v, want 0 or more", o.Jitter)
	case o.DegradedTrailer != "" && !isMetadataKey(strings.ToLower(o.DegradedTrailer)):
		return errors.New("grpclimit: Options.DegradedTrailer is not a metadata key that a server may set")
	}
	return nil
}

// isMetadataKey reports whether a key is one that gRPC sends on and does not use itself.
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

// defaults fills in what was left out.
func (o *Options) defaults() {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.JitterBy == nil {
		o.JitterBy = peerAndCredentials
	}
	if o.KeyCode == codes.OK {
		o.KeyCode = codes.InvalidArgument
	}
	o.DegradedTrailer = strings.ToLower(o.DegradedTrailer)
	if settle := o.Settle; settle != nil {
		o.SettleResponse = func(c *Call, resp Response, cost int) int { return settle(c, resp.Code, cost) }
	}
}

// core returns the options that package edge knows.
func (o *Options) core() edge.Options[*Call] {
	c := edge.Options[*Call]{
		Package: "grpclimit", Thing: "call", Cost: o.Cost, Skip: o.Skip, Settles: o.SettleResponse != nil, FailOpen: o.FailOpen,
		TooLate: tooLate, Jitter: o.Jitter, JitterBy: o.JitterBy, Logger: o.Logger, Now: o.Now,
		About: func(c *Call) []any { return []any{"method", c.FullMethod} },
	}
	if report := o.OnDecision; report != nil {
		c.OnDecision = func(e event) { report(public(e)) }
	}
	return c
}

// SkipServices is for [Options].Skip: calls to the services are exempt, for example to
// "grpc.health.v1.Health" and "grpc.reflection.v1.ServerReflection".
func SkipServices(names ...string) func(*Call) bool {
	exempt := make(map[string]bool, len(names))
	for _, name := range names {
		exempt[name] = true
	}
	return func(c *Call) bool { return exempt[c.service()] }
}

// peerAndCredentials tells clients apart well enough to spread them. It may be spoofed: a
// client that invents another identity waits as long as before, or longer.
func peerAndCredentials(c *Call) string {
	parts := []string{c.remote().Addr.String()} // without a port, which changes with each connection
	for _, key := range []string{"x-forwarded-for", "forwarded", "authorization"} {
		parts = append(parts, c.values(key)...)
	}
	return strings.Join(parts, "\n")
}
