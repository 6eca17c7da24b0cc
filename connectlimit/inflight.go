package connectlimit

import (
	"cmp"
	"context"
	"time"

	"connectrpc.com/connect"

	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/edge"
	"github.com/weir-go/ratelimit/internal/outcome"
	"github.com/weir-go/ratelimit/internal/rpcstatus"
)

// InflightOptions are the settings of [NewInflight]. Zero values mean the defaults.
type InflightOptions struct {
	// Units returns how many units a call takes. It defaults to 1.
	Units func(c *Call) int

	// Skip reports whether a call passes without a permit. If nil, calls to
	// the services for health checks and reflection do so, as in grpclimit.
	Skip func(c *Call) bool

	// MaxWait is how long a call may wait in its key's queue. If zero, the call waits as long as its context allows.
	MaxWait time.Duration

	// Outcome returns a call's outcome for an adaptive limit, given the handler's error and
	// the default outcome, as in grpclimit's InflightOptions. If nil, the default outcome is
	// used, and streams count as ignored from their beginning: see [inflight.Permit.Ignore].
	Outcome func(c *Call, err error, usual inflight.Outcome) inflight.Outcome

	// KeyCode is the code for calls without a valid key. It defaults to [connect.CodeInvalidArgument].
	KeyCode connect.Code

	// Challenge is the WWW-Authenticate value, as in [Options].
	Challenge string

	// OnRefused returns the answer to a refused call, given the usual answer. If it returns nil, the usual one is sent.
	OnRefused func(c *Call, err error, answer *connect.Error) *connect.Error
}

var skipHelpers = SkipServices(edge.HelperServices...)

// inFlight is NewInflight's part of an [Interceptor].
type inFlight[K comparable] struct {
	core *edge.Inflight[*Call, K]
	opts InflightOptions
}

// NewInflight returns an interceptor that limits how many calls are served at the same time. A call holds a permit
// while it is served, a stream while it is open. If a key function returns [ratelimit.SkipLayer], the call passes
// without one. The limiter's limit applies to each key: to limit the whole server, set [inflight.Options].Total.
//
// Refusals have the codes of grpclimit's NewInflight. In Stats, calls without room are Denied.
func NewInflight[K comparable](l *inflight.Limiter[K], key func(*Call) (K, error), opts *InflightOptions) (*Interceptor, error) {
	o := *cmp.Or(opts, new(InflightOptions))
	if o.Skip == nil {
		o.Skip = skipHelpers
	}
	if err := edge.CompleteKeyCode("connectlimit: InflightOptions", &o.KeyCode); err != nil {
		return nil, err
	}
	if err := edge.CompleteChallenge("connectlimit: InflightOptions", o.KeyCode, connect.CodeUnauthenticated, &o.Challenge); err != nil {
		return nil, err
	}
	core, err := edge.NewInflight(l, key, edge.InflightOptions[*Call]{
		Package: "connectlimit", Thing: "call", Units: o.Units, Skip: o.Skip, MaxWait: o.MaxWait, Judges: o.Outcome != nil,
	})
	if err != nil {
		return nil, err
	}
	return &Interceptor{permits: &inFlight[K]{core: core, opts: o}}, nil
}

// outcome returns a call's outcome for an adaptive limit.
func (i *inFlight[K]) outcome(c *Call, err error) inflight.Outcome {
	usual := usualOutcome(c, err)
	if i.opts.Outcome == nil {
		return usual
	}
	return i.opts.Outcome(c, err, usual)
}

func usualOutcome(c *Call, err error) inflight.Outcome {
	code := connect.Code(0)
	if err != nil {
		code = codeOf(err)
	}
	return edge.OutcomeOfCall(c.Context(), rpcstatus.Code(code), c.StreamType != connect.StreamTypeUnary)
}

func (i *inFlight[K]) unary(next connect.UnaryFunc) connect.UnaryFunc {
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

func (i *inFlight[K]) streaming(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		ctx = i.watched(ctx)
		return i.serve(streamCall(ctx, conn), func() error { return next(ctx, conn) })
	}
}

func (i *inFlight[K]) stats() edge.Stats { return i.core.Counts() }

// watched returns a context that records the refusals of inner limiters, if the limit learns from outcomes.
func (i *inFlight[K]) watched(ctx context.Context) context.Context {
	if i.core.Learns {
		return outcome.WatchRefusals(ctx)
	}
	return ctx
}

// serve calls next with a permit, or refuses the call. It does not recover from panics, but releases the permit.
func (i *inFlight[K]) serve(c *Call, next func() error) (err error) {
	permit, watched, why := i.core.Admit(c)
	switch {
	case why.Err != nil:
		return i.refuse(c, why)
	case !watched || !i.core.Learns:
		defer permit.Release()
		return next()
	}
	defer permit.Release()                                                // for a panic of Outcome; after Done it does nothing
	if c.StreamType != connect.StreamTypeUnary && i.opts.Outcome == nil { // otherwise Outcome decides at the end
		permit.Ignore()
	}
	ended := errPanicked
	defer func() { permit.Done(i.outcome(c, ended)) }()
	ended = next()
	return ended
}

// refuse returns the error for a call without a permit.
func (i *inFlight[K]) refuse(c *Call, why edge.Refusal) error {
	answer := errorOf(why.Answer(c.Context(), rpcstatus.Code(i.opts.KeyCode)), why.Cause, i.opts.Challenge)
	if i.opts.OnRefused != nil {
		if other := i.opts.OnRefused(c, why.Err, answer); other != nil {
			answer = other
		}
	}
	return answer
}
