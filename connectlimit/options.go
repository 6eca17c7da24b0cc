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

// Options configure [New]. The zero Options are safe: each call costs 1, and is
// refused if the limiter cannot decide. Several goroutines may call the functions.
type Options struct {
	// Cost returns a call's cost. A cost of 0 passes any limit. If the cost is below 0, the call
	// is refused as malformed, with invalid_argument even if KeyCode differs. It defaults to 1.
	Cost func(c *Call) int

	// Skip reports whether a call passes without a decision: see [SkipServices]. If nil, none does.
	Skip func(c *Call) bool

	// Settle returns a call's real cost, given the handler's error and the charged cost; [ChargeOnly] makes
	// such a function. A panic counts as [connect.CodeInternal]. The limiter must be a
	// [ratelimit.Reserver]. If nil, the charge stays, with one exception: it is given back if an inner
	// interceptor lacks budget or room and refuses the call. With Settle, Settle's result counts then, too.
	Settle func(c *Call, err error, cost int) (actual int)

	// SettleResponse is Settle with the response.
	SettleResponse func(c *Call, resp Response, cost int) (actual int)

	// Shadow lets all calls pass. The limiter charges them; Stats and OnDecision report each call's outcome without Shadow.
	Shadow bool

	// FailOpen lets a call pass if the limiter cannot decide, as in [httplimit.Options].
	FailOpen bool

	// KeyCode is the code for calls without a valid key. It defaults to [connect.CodeInvalidArgument].
	KeyCode connect.Code

	// Challenge is the WWW-Authenticate value if KeyCode is [connect.CodeUnauthenticated], such
	// as `Basic realm="api"`. Over Connect this code is the status 401. It defaults to "Bearer".
	Challenge string

	// LimitFields sends RateLimit-Policy and RateLimit, as [httplimit.DialectDraft11] does. They
	// are sent with unary calls without an error and with denied calls. If an outer interceptor
	// has used a name, a number is added to it. Outer httplimit middleware must use other names.
	LimitFields bool

	// QuotaUnit returns a limit's unit, as in [httplimit.Options].
	QuotaUnit func(limit ratelimit.Limit) string

	// MaxHold bounds how long a call is held, as in [httplimit.Options]. [Interceptor.RefuseHeld]
	// ends the waits. A hold counts towards the server's ReadTimeout and WriteTimeout: an interceptor
	// cannot extend them. A call is denied at once if its delay would reach one of them, and its
	// handler has only the rest of that time. To hold for longer, hold in httplimit's middleware.
	MaxHold time.Duration

	// Jitter spreads denied clients, as in [httplimit.Options].
	Jitter time.Duration

	// JitterBy identifies the client, as in [httplimit.Options].
	JitterBy func(c *Call) string

	// OnRefused returns the answer to a refused call, given the usual answer. If it returns nil, the usual one is sent.
	OnRefused func(e Event, answer *connect.Error) *connect.Error

	// OnDecision is called with each decision, before the call is
	// answered or served. For a held call it is called after the hold.
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

// tooLate reports whether the call's deadline is before its delay's end. A timeout
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
	// Message is a unary call's response, or a stream's last message. It may be nil.
	Message any
	// Sent counts the sent messages.
	Sent int
}

// Event is one decision. It is valid only until the function that receives it returns.
type Event struct {
	Call     *Call
	Cost     int
	Decision ratelimit.Decision
	// Err states why the limiter could not decide. It is nil if the call is allowed or denied.
	Err     error
	Outcome httplimit.Outcome
}

// RefundServerErrors is a function for [Options].Settle. It does not charge a call that ends with unavailable, internal
// or data_loss, unless the call's context has ended. Nor does it charge a call refused by an inner interceptor.
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

// ChargeOnly returns a function for [Options].Settle that charges only calls with these codes; 0 stands for
// success. A call is also charged if its client left or its deadline passed before the answer: it could
// have ended with any code. If a stream's client leaves after a message, the stream counts as a success.
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

// codeOf returns connect's code for an error. For a context's error,
// connect determines the code only after the interceptors have returned.
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
