package connectlimit

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"time"

	"connectrpc.com/connect"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/internal/edge"
)

// Options are the settings of [New]. The zero Options are safe: each call costs 1, and a call that cannot be decided is refused. Functions
// are called concurrently.
type Options struct {
	// Cost returns the cost of a call: 0 passes any limit. A cost below 0 refuses the call as malformed, with invalid_argument for any
	// KeyCode. It defaults to 1.
	Cost func(c *Call) int

	// Skip reports whether a call passes without a decision, such as [SkipServices]. If nil, none does.
	Skip func(c *Call) bool

	// Settle returns the real cost of a call, given the handler's error and the charged cost; [ChargeOnly] makes such a function. A panic
	// counts as [connect.CodeInternal]. The limiter must be a [ratelimit.Reserver]. If nil, the charge stays, unless an interceptor inside
	// refuses the call for lack of budget or room: then all is given back. With Settle, its result counts then as well.
	Settle func(c *Call, err error, cost int) (actual int)

	// SettleResponse is Settle with the response.
	SettleResponse func(c *Call, resp Response, cost int) (actual int)

	// Shadow lets all calls pass. The limiter charges them; Stats and OnDecision report the outcome that each would have had.
	Shadow bool

	// FailOpen lets a call pass if the limiter cannot decide, as in [httplimit.Options].
	FailOpen bool

	// KeyCode is the code of a call whose key is missing or malformed. It defaults to [connect.CodeInvalidArgument].
	KeyCode connect.Code

	// Challenge is the value of WWW-Authenticate where KeyCode is [connect.CodeUnauthenticated], which is 401 over Connect, such as
	// `Basic realm="api"`. It defaults to "Bearer".
	Challenge string

	// LimitFields sends RateLimit-Policy and RateLimit, as [httplimit.DialectDraft11] does, with
	// unary calls that return no error and with calls that are denied. If an outer interceptor uses
	// a name, too, a number is added to it. Outer middleware of httplimit must use other names.
	LimitFields bool

	// QuotaUnit names the unit that a limit counts, as in [httplimit.Options].
	QuotaUnit func(limit ratelimit.Limit) string

	// MaxHold is the longest time for which a call is held, as in [httplimit.Options]. [Interceptor.RefuseHeld] ends the waits. A hold counts
	// towards the server's ReadTimeout and WriteTimeout, which an interceptor cannot renew: a delay as long as one of them is denied at
	// once, and handlers need the rest. To hold for longer, hold in middleware of httplimit.
	MaxHold time.Duration

	// Jitter is the spread of denied clients, as in [httplimit.Options].
	Jitter time.Duration

	// JitterBy identifies the client, as in [httplimit.Options].
	JitterBy func(c *Call) string

	// OnRefused returns the answer to a call that is not served, given the usual one, which is sent for nil.
	OnRefused func(e Event, answer *connect.Error) *connect.Error

	// OnDecision is called with each decision before the call is answered or served, after it was held.
	OnDecision func(Event)

	// Logger gets errors, as in [httplimit.Options]. It defaults to [slog.Default].
	Logger *slog.Logger

	// Now is the wall clock. It defaults to [time.Now].
	Now func() time.Time
}

func (o *Options) complete() error {
	if o.Settle != nil && o.SettleResponse != nil {
		return errors.New("connectlimit: Options.Settle and Options.SettleResponse are both given")
	}
	if settle := o.Settle; settle != nil {
		o.SettleResponse = func(c *Call, resp Response, cost int) int { return settle(c, resp.Err, cost) }
	}
	if err := edge.CompleteKeyCode("connectlimit: Options", &o.KeyCode); err != nil {
		return err
	}
	if err := edge.CompleteChallenge("connectlimit: Options", o.KeyCode, connect.CodeUnauthenticated, &o.Challenge); err != nil {
		return err
	}
	if o.JitterBy == nil {
		o.JitterBy = client.Identity
	}
	return nil
}

// core returns the options that package edge knows.
func (o *Options) core() edge.Options[*Call] {
	c := edge.Options[*Call]{
		Package: "connectlimit", Thing: "call", Cost: o.Cost, Skip: o.Skip, Settles: o.SettleResponse != nil, FailOpen: o.FailOpen, Shadow: o.Shadow,
		TooLate: tooLate, MaxHold: o.MaxHold, Jitter: o.Jitter, JitterBy: o.JitterBy, Logger: o.Logger, Now: o.Now,
		About: func(c *Call) []any { return []any{"procedure", c.Procedure} },
	}
	if report := o.OnDecision; report != nil {
		c.OnDecision = func(e event) { report(public(e)) }
	}
	return c
}

// tooLate reports whether the call's deadline, or the end of a timeout of net/http's server, comes before its delay is over: an
// interceptor cannot renew the server's timeouts.
func tooLate(c *Call, delay time.Duration) bool {
	deadline, ok := c.Context().Deadline()
	return ok && time.Until(deadline) <= delay || edge.OutlastsServer(c.Context(), delay)
}

// SkipServices is for [Options].Skip: calls to these services, such as "grpc.health.v1.Health".
func SkipServices(names ...string) func(*Call) bool {
	return func(c *Call) bool { return slices.Contains(names, c.service()) }
}

// Response is a handler's response, for [Options].SettleResponse.
type Response struct {
	Err error
	// Message is the response of a unary call, or the last message of a stream. It may be nil.
	Message any
	// Sent is the number of sent messages.
	Sent int
}

// Event is one decision. It is valid only during the call that gets it.
type Event struct {
	Call     *Call
	Cost     int
	Decision ratelimit.Decision
	// Err is the limiter's error, nil if the call is allowed or denied.
	Err     error
	Outcome httplimit.Outcome
}

// RefundServerErrors is for [Options].Settle: unavailable, internal and data_loss are not charged, unless the call's
// context has ended. A call that an interceptor inside has refused is not charged either.
func RefundServerErrors(c *Call, err error, cost int) int {
	if c.refused {
		return 0
	}
	if err == nil || c.Context().Err() != nil {
		return cost
	}
	switch codeOf(err) {
	case connect.CodeUnavailable, connect.CodeInternal, connect.CodeDataLoss:
		return 0
	}
	return cost
}

// ChargeOnly is for [Options].Settle: only calls that end with these codes are charged; 0 stands for success. A call that its client has
// left before it was answered, or whose deadline came first, is charged: it could have ended with any of them. A stream that the client
// has left after a message counts as a success.
func ChargeOnly(charged ...connect.Code) func(c *Call, err error, cost int) int {
	return func(c *Call, err error, cost int) int {
		code := connect.Code(0)
		if err != nil {
			code = codeOf(err)
		}
		if err != nil && !slices.Contains(charged, code) && c != nil && c.Context().Err() != nil {
			if !c.answered {
				return cost
			}
			code = 0
		}
		if slices.Contains(charged, code) {
			return cost
		}
		return 0
	}
}

// codeOf is the code with which a call that ends with this error is answered: connect turns a context's error into its code only after
// the interceptors.
func codeOf(err error) connect.Code {
	own := new(connect.Error)
	switch {
	case errors.As(err, &own):
		return own.Code()
	case errors.Is(err, context.Canceled):
		return connect.CodeCanceled
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return connect.CodeDeadlineExceeded
	}
	return connect.CodeOf(err)
}
