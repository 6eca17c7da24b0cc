package connectlimit

import (
	"context"
	"fmt"
	"time"

	"connectrpc.com/connect"

	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/edge"
	"github.com/weir-go/ratelimit/internal/refused"
	"github.com/weir-go/ratelimit/internal/rpcstatus"
)

// InflightOptions are the settings of [NewInflight] besides the limiter and the key. Nil
// and the zero InflightOptions mean the defaults.
type InflightOptions struct {
	// Units is how many units of the limiter a call takes. Below zero is an error, and 0
	// always passes. If nil, 1.
	Units func(c *Call) int

	// Skip says which calls are left out, such as health checks: see [SkipServices]. If
	// nil, none.
	Skip func(c *Call) bool

	// MaxWait is how long a call may wait in its key's queue, if the limiter has one
	// ([inflight.Options].MaxQueue). If zero, as long as its context allows.
	MaxWait time.Duration

	// Outcome says what an adaptive limit is to learn from a call: the handler's error, nil
	// if it went well, and its context. A handler that panics counts as one that returned
	// an error of [connect.CodeInternal]. If nil, [InflightOutcome], which is asked only if the
	// limiter adapts.
	Outcome func(c *Call, err error, usual inflight.Outcome) inflight.Outcome

	// KeyCode is the code of a call whose key is missing or malformed, such as
	// [connect.CodeUnauthenticated]. If zero, [connect.CodeInvalidArgument].
	KeyCode connect.Code

	// OnRefused may replace the answer to a call that was refused because of the error. If it
	// returns nil, or is nil, the given answer is sent: see [Inflight].
	OnRefused func(c *Call, err error, answer *connect.Error) *connect.Error
}

// Inflight is an interceptor that limits how many calls are served at the same time; a stream
// counts for as long as it is open. Make one with [NewInflight], and give it to
// [connect.WithInterceptors]. It is safe for concurrent use, and may serve any number of
// handlers, which then share its limits. It passes the calls of clients on as they are. The
// zero Inflight cannot be used: it panics.
//
// A call that finds no room is answered with unavailable, and with the RetryInfo of the key's
// recent wait, if calls of that key have waited. So is one for which the table of keys is
// full. One that needs more units than there ever are gets resource_exhausted; one whose key is
// missing or malformed InflightOptions.KeyCode; other errors of the key function internal.
type Inflight[K comparable] struct {
	core   *edge.Inflight[*Call, K]
	opts   InflightOptions
	learns bool // somebody wants to know how calls end
}

// NewInflight returns an interceptor that takes a permit of the limiter for each call, and
// gives it back when the handler has returned. The key function is one of this package,
// such as [RemoteIP] or [Procedure], or one of your own; one that returns [ratelimit.SkipLayer]
// lets the call pass without a permit. The error names the option that is wrong. A limiter whose
// keys are whole calls limits nothing, and is refused.
//
// The limiter's limit is that of one key. For a limit of the whole server, set [inflight.Options].Total.
func NewInflight[K comparable](l *inflight.Limiter[K], key func(*Call) (K, error), opts *InflightOptions) (*Inflight[K], error) {
	i := new(Inflight[K])
	if opts != nil {
		i.opts = *opts
	}
	core, err := edge.NewInflight(l, key, edge.InflightOptions[*Call]{
		Package: "connectlimit", Thing: "call", Units: i.opts.Units, Skip: i.opts.Skip, MaxWait: i.opts.MaxWait,
	})
	if err != nil {
		return nil, err
	}
	if i.opts.KeyCode > connect.CodeUnauthenticated {
		return nil, fmt.Errorf("connectlimit: InflightOptions.KeyCode is %d, which does not exist", i.opts.KeyCode)
	}
	i.core, i.learns = core, i.opts.Outcome != nil || core.Adapts()
	if i.opts.KeyCode == 0 {
		i.opts.KeyCode = connect.CodeInvalidArgument
	}
	return i, nil
}

// outcome returns what an adaptive limit is to learn from a call.
func (i *Inflight[K]) outcome(c *Call, err error) inflight.Outcome {
	usual := usualOutcome(c, err)
	if i.opts.Outcome == nil {
		return usual
	}
	return i.opts.Outcome(c, err, usual)
}

func usualOutcome(c *Call, err error) inflight.Outcome {
	code := connect.Code(0)
	if err != nil {
		code = connect.CodeOf(err)
	}
	return edge.OutcomeOfCall(c.Context(), rpcstatus.Code(code), c.StreamType != connect.StreamTypeUnary)
}

// WrapUnary returns what passes on to next the unary calls that the limiter lets in, and answers
// the others.
func (i *Inflight[K]) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	i.mustBeMade()
	return func(ctx context.Context, req connect.AnyRequest) (resp connect.AnyResponse, err error) {
		if req.Spec().IsClient {
			return next(ctx, req)
		}
		ctx = i.watched(ctx)
		err = i.serve(unaryCall(ctx, req), func() (err error) {
			resp, err = next(ctx, req)
			return err
		})
		return resp, err
	}
}

// WrapStreamingClient returns next.
func (i *Inflight[K]) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler is WrapUnary for streams.
func (i *Inflight[K]) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	i.mustBeMade()
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		ctx = i.watched(ctx)
		return i.serve(streamCall(ctx, conn), func() error { return next(ctx, conn) })
	}
}

// Stats returns the counters. Each is exact; they are not read at one instant.
func (i *Inflight[K]) Stats() httplimit.InflightStats {
	if i.core == nil {
		return httplimit.InflightStats{}
	}
	return httplimit.InflightStats(i.core.Stats())
}

func (i *Inflight[K]) mustBeMade() {
	if i == nil || i.core == nil {
		panic("connectlimit: this Inflight was not made by NewInflight: it has no limiter")
	}
}

// watched returns a context that takes note of what limiters inside of this one refuse, if
// somebody wants to know how calls end.
func (i *Inflight[K]) watched(ctx context.Context) context.Context {
	if i.learns {
		return refused.Watch(ctx)
	}
	return ctx
}

// serve calls next with a permit, or answers the call. Panics go on after that.
func (i *Inflight[K]) serve(c *Call, next func() error) (err error) {
	permit, watched, why := i.core.Admit(c)
	switch {
	case why.Kind != 0:
		return i.refuse(c, why)
	case !watched || !i.learns:
		defer permit.Release()
		return next()
	}
	defer permit.Release() // if Outcome panics; else it is the second time, and does nothing
	ended := errPanicked
	defer func() { permit.Done(i.outcome(c, ended)) }()
	ended = next()
	return ended
}

// refuse answers a call that got no permit.
func (i *Inflight[K]) refuse(c *Call, why edge.Refusal) error {
	answer := errorOf(why.Answer(c.Context(), rpcstatus.Code(i.opts.KeyCode)))
	if i.opts.OnRefused != nil {
		if other := i.opts.OnRefused(c, why.Err, answer); other != nil {
			answer = other
		}
	}
	return answer
}
