package grpclimit

import (
	"cmp"
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/edge"
	"github.com/weir-go/ratelimit/internal/outcome"
	"github.com/weir-go/ratelimit/internal/rpcstatus"
)

// InflightOptions configure [NewInflight]. Zero values mean the defaults. Several goroutines may call the functions.
type InflightOptions struct {
	// Units returns how many units a call takes. It defaults to 1.
	Units func(c *Call) int

	// Skip reports whether a call passes without a permit. If nil, calls to the services for health
	// checks and reflection do so: grpc.health.v1.Health, grpc.reflection.v1.ServerReflection and
	// its v1alpha. Clients with a load balancer keep such streams open.
	Skip func(c *Call) bool

	// MaxWait is how long a call may wait in its key's queue. If zero, the call waits as long as its context allows.
	MaxWait time.Duration

	// Outcome returns a call's outcome for an adaptive limit, given its code as in [Options].Settle, and the default
	// outcome. By default, a call is Ignored if an inner limiter from this library refused it; so is a stream that has not
	// failed. A call is Cancelled if its client has gone or the client's own deadline has passed; so are Internal, Unknown
	// and DataLoss. Unavailable, ResourceExhausted and any other DeadlineExceeded are Dropped. All else is a Success. If
	// nil, the default outcome is used, and streams count as ignored from their beginning: see [inflight.Permit.Ignore].
	Outcome func(c *Call, code codes.Code, usual inflight.Outcome) inflight.Outcome

	// KeyCode is the code for calls without a valid key. It defaults to [codes.InvalidArgument].
	KeyCode codes.Code

	// OnRefused returns the answer to a refused call, given the usual answer. If it returns nil or OK, the usual one is sent.
	OnRefused func(c *Call, err error, answer *status.Status) *status.Status
}

var skipHelpers = SkipServices(edge.HelperServices...)

// inFlight is NewInflight's part of an [Interceptor].
type inFlight[K comparable] struct {
	core *edge.Inflight[*Call, K]
	opts InflightOptions
}

// NewInflight returns interceptors that limit how many calls are served at the same time. A call holds a permit
// while it is served, a stream while it is open. If a key function returns [ratelimit.SkipLayer], the call passes
// without one. The limiter's limit applies to each key: to limit the whole server, set [inflight.Options].Total.
//
// Without room, or with a full key table, the answer is UNAVAILABLE with the key's recent
// wait. If a call needs more units than there ever are, it is RESOURCE_EXHAUSTED. Without a
// valid key it is KeyCode, and otherwise INTERNAL. In Stats, calls without room are Denied.
func NewInflight[K comparable](l *inflight.Limiter[K], key func(*Call) (K, error), opts *InflightOptions) (*Interceptor, error) {
	o := *cmp.Or(opts, new(InflightOptions))
	if o.Skip == nil {
		o.Skip = skipHelpers
	}
	if err := edge.CompleteKeyCode("grpclimit: InflightOptions", &o.KeyCode); err != nil {
		return nil, err
	}
	core, err := edge.NewInflight(l, key, edge.InflightOptions[*Call]{
		Package: "grpclimit", Thing: "call", Units: o.Units, Skip: o.Skip, MaxWait: o.MaxWait, Judges: o.Outcome != nil,
	})
	if err != nil {
		return nil, err
	}
	return &Interceptor{permits: &inFlight[K]{core: core, opts: o}}, nil
}

// outcome returns a call's outcome for an adaptive limit.
func (i *inFlight[K]) outcome(c *Call, code codes.Code) inflight.Outcome {
	usual := usualOutcome(c, code)
	if i.opts.Outcome == nil {
		return usual
	}
	return i.opts.Outcome(c, code, usual)
}

func usualOutcome(c *Call, code codes.Code) inflight.Outcome {
	return edge.OutcomeOfCall(c.Context(), rpcstatus.Code(code), c.streaming())
}

func (i *inFlight[K]) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	if i.core.Learns {
		ctx = outcome.WatchRefusals(ctx)
	}
	c := newCall(ctx, info.FullMethod, req)
	err = i.serve(c, trailers{ctx: c.Context()}, nil, func() (err error) {
		resp, err = handler(ctx, req)
		return err
	})
	c.release()
	return resp, err
}

func (i *inFlight[K]) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if !i.core.Learns {
		return i.serve(callOf(ss, info), trailers{stream: ss}, nil, func() error { return handler(srv, ss) })
	}
	ctx := outcome.WatchRefusals(ss.Context())
	s := &watchedStream{ServerStream: ss, ctx: ctx}
	return i.serve(callOf(s, info), trailers{stream: ss}, s, func() error { return handler(srv, s) })
}

func (i *inFlight[K]) stats() edge.Stats { return i.core.Counts() }

// serve calls next with a permit, or refuses the call. s is nil for a unary call.
func (i *inFlight[K]) serve(c *Call, t trailers, s *watchedStream, next func() error) error {
	permit, watched, why := i.core.Admit(c)
	switch {
	case why.Err != nil:
		return i.refuse(c, t, why)
	case watched && i.core.Learns:
		return i.work(c, permit, s, next)
	}
	defer permit.Release()
	return next()
}

// work serves the call, and releases the permit in any case.
func (i *inFlight[K]) work(c *Call, permit inflight.Permit, s *watchedStream, next func() error) (err error) {
	defer permit.Release()                 // for a panic of Outcome; after Done it does nothing
	if s != nil && i.opts.Outcome == nil { // otherwise Outcome decides at the end
		permit.Ignore()
	}
	code := codes.Internal // the code after a panic or an exit
	defer func() { permit.Done(i.outcome(c, s.blame(code, err))) }()
	err = next()
	code = codeOf(err)
	return err
}

// refuse returns the error for a call without a permit.
func (i *inFlight[K]) refuse(c *Call, t trailers, why edge.Refusal) error {
	r := replyTo(why.Answer(c.Context(), rpcstatus.Code(i.opts.KeyCode)))
	answer := r.status
	if i.opts.OnRefused != nil {
		if other := i.opts.OnRefused(c, why.Err, answer); other.Code() != codes.OK {
			answer = other
		}
	}
	t.set(r.trailer)
	return &refusal{status: answer, cause: why.Err, byClient: why.ByClient()}
}
