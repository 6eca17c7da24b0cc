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

// Options are the settings of [New]. The zero Options are safe: each call costs 1, and a call
// is refused if no decision on it is possible. Several goroutines may call the functions.
type Options struct {
	// Cost returns a call's cost. A cost of 0 passes any limit. A cost below 0 refuses the
	// call as malformed, with invalid_argument even if KeyCode differs. It defaults to 1.
	Cost func(c *Call) int

	// Skip reports whether a call passes without a decision: see [SkipServices]. If nil, none does.
	Skip func(c *Call) bool

	// Settle returns a call's real cost, given the handler's error and the charged cost; [ChargeOnly] makes
	// such a function. A panic counts as [connect.CodeInternal]. The limiter must be a [ratelimit.Reserver].
	// If nil, the charge stays, with one exception: it is given back if an inner interceptor refuses the
	// call for lack of budget or room. With Settle, the result of Settle counts in that case, too.
	Settle func(c *Call, err error, cost int) (actual int)

	// SettleResponse is Settle with the response.
	SettleResponse func(c *Call, resp Response, cost int) (actual int)

	// Shadow lets all calls pass. The limiter charges them; Stats and OnDecision report the outcome that each would have had.
	Shadow bool

	// FailOpen lets a call pass if the limiter cannot decide, as in [httplimit.Options].
	FailOpen bool

	// KeyCode is the code of a call whose key is missing or malformed. It defaults to [connect.CodeInvalidArgument].
	KeyCode connect.Code

	// Challenge is the value of WWW-Authenticate if KeyCode is [connect.CodeUnauthenticated], such
	// as `Basic realm="api"`. Over Connect this code is the status 401. It defaults to "Bearer".
	Challenge string

	// LimitFields sends RateLimit-Policy and RateLimit, as [httplimit.DialectDraft11] does. They
	// are sent with unary calls that return no error and with denied calls. If an outer interceptor
	// has used a name, a number is added to it. Outer middleware of httplimit must use other names.
	LimitFields bool

	// QuotaUnit returns the unit that a limit counts, as in [httplimit.Options].
	QuotaUnit func(limit ratelimit.Limit) string

	// MaxHold is the maximum time for which a call is held, as in [httplimit.Options]. [Interceptor.RefuseHeld]
	// ends the waits. A hold counts towards the server's ReadTimeout and WriteTimeout, which an interceptor
	// cannot extend. A call is denied at once if its delay would be as long as one of them, and its handler has
	// only the rest of that time. To hold for longer, hold in middleware of httplimit.
	MaxHold time.Duration

	// Jitter spreads denied clients, as in [httplimit.Options].
	Jitter time.Duration

	// JitterBy identifies the client, as in [httplimit.Options].
	JitterBy func(c *Call) string

	// OnRefused returns the answer to a call that is not served, given
	// the usual answer. If it returns nil, the usual one is sent.
	OnRefused func(e Event, answer *connect.Error) *connect.Error

	// OnDecision is called with each decision, before the call is answered or served. For a held call that is after the hold.
	OnDecision func(Event)

	// Logger logs errors, as in [httplimit.Options]. It defaults to [slog.Default].
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

// core returns the options for package edge.
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

// tooLate reports whether the call's deadline is before the end of its delay. A timeout
// of net/http's server is a deadline, too, because an interceptor cannot extend it.
func tooLate(c *Call, delay time.Duration) bool {
	deadline, ok := c.Context().Deadline()
	return ok && time.Until(deadline) <= delay || edge.OutlastsServer(c.Context(), delay)
}

// SkipServices returns a function for [Options].Skip. It skips calls to the given services, such as "grpc.health.v1.Health".
func SkipServices(names ...string) func(*Call) bool {
	return func(c *Call) bool { return slices.Contains(names, c.service()) }
}

// Response is a handler's response, for [Options].SettleResponse.
type Response struct {
	Err error
	// Message is the response of a unary call, or the last message of a stream. It may be nil.
	Message any
	// Sent counts the sent messages.
	Sent int
}

// Event is one decision. It is valid only until the function that receives it returns.
type Event struct {
	Call     *Call
	Cost     int
	Decision ratelimit.Decision
	// Err is the error of a call on which no decision was possible. It is nil if the call is allowed or denied.
	Err     error
	Outcome httplimit.Outcome
}

// RefundServerErrors is a function for [Options].Settle. It does not charge a call that ends with unavailable, internal
// or data_loss, unless the call's context has ended. Nor does it charge a call that an inner interceptor has refused.
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

// ChargeOnly returns a function for [Options].Settle that charges only calls with these codes; 0 stands for success.
// A call is also charged if its client has left, or its deadline has passed, before the answer, because the call
// could have ended with any code. If the client of a stream leaves after a message, the stream counts as a success.
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

// codeOf returns the code that connect sends for an error. For a context's
// error, connect determines the code only after the interceptors have returned.
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
