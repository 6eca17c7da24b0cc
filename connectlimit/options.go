package connectlimit

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/internal/edge"
)

// Options are the settings of [New] besides the limiter. Nil and the zero Options are
// safe: every call costs 1, a denied one is answered with resource_exhausted, and one that could
// not be decided is refused. Functions in it are called concurrently.
type Options struct {
	// Cost returns what a call costs. Below zero is an error, and 0 always passes. If
	// nil, 1.
	Cost func(c *Call) int

	// Skip reports whether a call is exempt, such as a health check: it passes, and the
	// limiter is not asked. See [SkipServices]. If nil, no call is exempt.
	Skip func(c *Call) bool

	// Settle returns what a call has really cost, once its handler has returned. It gets
	// the handler's error, nil if it went well (see [connect.CodeOf]), and what was charged
	// before. A handler that panics counts as one that returned an error of
	// [connect.CodeInternal]. If Settle panics, the whole cost stays charged. The limiter must be
	// a [ratelimit.Reserver]. If nil, the cost stays charged.
	Settle func(c *Call, err error, cost int) (actual int)

	// SettleResponse is Settle for a cost that the response tells, such as the tokens that it
	// counts, or how many messages were sent. Only one of both may be given.
	SettleResponse func(c *Call, resp Response, cost int) (actual int)

	// Shadow lets every call pass. The limiter decides and charges, Stats count and
	// OnDecision is called with what would have been done.
	Shadow bool

	// FailOpen lets a call pass if the limiter could not decide, for example because its
	// store is down ([ratelimit.ErrUnavailable]). It does not apply to errors that a client
	// can cause: see [httplimit.Options].
	FailOpen bool

	// KeyCode is the code of a call whose key is missing or malformed, such as
	// [connect.CodeUnauthenticated]. If zero, [connect.CodeInvalidArgument].
	KeyCode connect.Code

	// LimitFields tells clients of their limits by the fields RateLimit-Policy and RateLimit, with what
	// [httplimit.DialectDraft11] says of these: in the header of each response to a unary call that is allowed, and
	// with the answer to a call that is not. A unary call whose handler returns an error is not told. The names of the
	// limits must differ in more than case; if interceptors are inside of others, those of all of them. A stream that is served
	// is not told: its first message may come much later. If false, there are no such fields.
	LimitFields bool

	// QuotaUnit returns the unit that a limit counts, for LimitFields: see [httplimit.Options]. If
	// nil, all limits count requests.
	QuotaUnit func(limit ratelimit.Limit) string

	// Jitter spreads the clients that were denied at the same time: up to this much, and
	// at most a tenth of the wait, is added to what they are told. If zero, nothing is added.
	Jitter time.Duration

	// JitterBy tells clients apart for Jitter. If nil, by the peer's address and the
	// fields X-Forwarded-For, Forwarded and Authorization.
	JitterBy func(c *Call) string

	// OnRefused may replace the answer to a call that is not served, whatever the Outcome of
	// the Event. If it returns nil, or is nil, the given answer is sent. That holds nothing of
	// the text of an error.
	OnRefused func(e Event, answer *connect.Error) *connect.Error

	// OnDecision is called with each decision, before the call is answered or passed on.
	// It is not called for calls that Skip exempts. If nil, nothing is called.
	OnDecision func(Event)

	// Logger gets the errors of calls that could not be decided, at most one line a second
	// for each kind, and failed settlements. If nil, [slog.Default].
	Logger *slog.Logger

	// Now is the wall clock, for Jitter and for Logger's one line a second. If nil,
	// [time.Now].
	Now func() time.Time
}

func (o *Options) complete() error {
	switch {
	case o.KeyCode > connect.CodeUnauthenticated:
		return fmt.Errorf("connectlimit: Options.KeyCode is %d, which does not exist", o.KeyCode)
	case o.Settle != nil && o.SettleResponse != nil:
		return errors.New("connectlimit: Options.Settle and Options.SettleResponse are both given")
	case o.Jitter < 0:
		return fmt.Errorf("connectlimit: Options.Jitter is %v, want 0 or more", o.Jitter)
	}
	if settle := o.Settle; settle != nil {
		o.SettleResponse = func(c *Call, resp Response, cost int) int { return settle(c, resp.Err, cost) }
	}
	if o.KeyCode == 0 {
		o.KeyCode = connect.CodeInvalidArgument
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.JitterBy == nil {
		o.JitterBy = peerAndCredentials
	}
	return nil
}

// core returns the options that package edge knows.
func (o *Options) core() edge.Options[*Call] {
	c := edge.Options[*Call]{
		Package: "connectlimit", Thing: "call", Cost: o.Cost, Skip: o.Skip, Settles: o.SettleResponse != nil, FailOpen: o.FailOpen,
		TooLate: tooLate, Jitter: o.Jitter, JitterBy: o.JitterBy, Logger: o.Logger, Now: o.Now,
		About: func(c *Call) []any { return []any{"procedure", c.Procedure} },
	}
	if report := o.OnDecision; report != nil {
		c.OnDecision = func(e event) { report(public(e)) }
	}
	return c
}

// tooLate reports whether the call's deadline comes before its delay is over.
func tooLate(c *Call, delay time.Duration) bool {
	deadline, ok := c.Context().Deadline()
	return ok && time.Until(deadline) <= delay
}

// peerAndCredentials tells clients apart well enough to spread them. It may be spoofed: a
// client that invents another identity waits as long as before, or longer.
func peerAndCredentials(c *Call) string {
	parts := []string{c.remote().Addr.String()} // without a port, which changes with each connection
	for _, name := range []string{"X-Forwarded-For", "Forwarded", "Authorization"} {
		parts = append(parts, c.Header[name]...)
	}
	return strings.Join(parts, "\n")
}

// SkipServices is for [Options].Skip: calls to the services are exempt, for example to
// "grpc.health.v1.Health".
func SkipServices(names ...string) func(*Call) bool {
	return func(c *Call) bool { return slices.Contains(names, c.service()) }
}

// Response is what a handler has answered, for [Options].SettleResponse.
type Response struct {
	// Err is the handler's error, nil if it went well: see [Options].Settle.
	Err error
	// Message is the response message of a unary call, nil if there is none, and of a
	// stream the last message that was sent.
	Message any
	// Sent is how many messages the handler has sent.
	Sent int
}

// Event is one decision. It is valid during the call that gets it.
type Event struct {
	// Call is the call that was decided about.
	Call *Call
	// Cost is what the call costs.
	Cost int
	// Decision is the limiter's answer.
	Decision ratelimit.Decision
	// Err is the limiter's error, nil if the call is allowed or denied.
	Err error
	// Outcome is what the interceptor does with the call: one of httplimit's.
	Outcome httplimit.Outcome
}

// RefundServerErrors is for [Options].Settle: a call that ends with unavailable, internal or
// data_loss is given back, since the client is not to blame, unless its context has ended.
// Codes that a client can provoke are charged: otherwise it could have work done for free.
func RefundServerErrors(c *Call, err error, cost int) int {
	if err == nil || c.Context().Err() != nil {
		return cost
	}
	switch connect.CodeOf(err) {
	case connect.CodeUnavailable, connect.CodeInternal, connect.CodeDataLoss:
		return 0
	}
	return cost
}

// ChargeOnly is for [Options].Settle: only calls that end with one of the codes are charged, all
// others are given back. ChargeOnly(connect.CodeUnauthenticated) counts failed logins.
func ChargeOnly(charged ...connect.Code) func(c *Call, err error, cost int) int {
	return func(_ *Call, err error, cost int) int {
		for _, code := range charged {
			if err != nil && connect.CodeOf(err) == code {
				return cost
			}
		}
		return 0
	}
}

var errNotMade = errors.New("connectlimit: this Interceptor was not made by New: it has no limiter")
