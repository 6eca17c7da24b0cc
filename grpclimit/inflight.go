package grpclimit

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/edge"
	"github.com/weir-go/ratelimit/internal/refused"
	"github.com/weir-go/ratelimit/internal/rpcstatus"
)

// InflightOptions are the settings of [NewInflight] besides the limiter and the key. Nil
// and the zero InflightOptions mean the defaults. Functions in it are called concurrently.
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

	// Outcome says what an adaptive limit is to learn from a call: its status code, and
	// its context. A handler that panics counts as Internal, and a server error as
	// InvalidArgument if the client has caused it: see [Options].Settle. If nil,
	// [InflightOutcome], which is asked only if the limiter adapts.
	Outcome func(c *Call, code codes.Code, usual inflight.Outcome) inflight.Outcome

	// KeyCode is the status code of a call whose key is missing or malformed, such as
	// [codes.Unauthenticated]. If zero, [codes.InvalidArgument].
	KeyCode codes.Code

	// OnRefused returns the answer to a call that was refused because of the error. It gets
	// the answer that is sent if it is nil: see [Inflight]. If it returns nil or OK, the
	// given answer is sent. The trailer grpc-retry-pushback-ms is set in any case.
	OnRefused func(c *Call, err error, answer *status.Status) *status.Status
}

// Inflight limits how many calls are served at the same time; a stream counts for as long
// as it is open. Make one with [NewInflight]. It is safe for concurrent use, and may serve
// any number of servers, which then share its limits.
//
// A call that finds no room is answered with UNAVAILABLE, with a RetryInfo and the trailer
// grpc-retry-pushback-ms of the key's recent wait, if calls of that key have waited. So is
// one for which the table of keys is full. One that needs more units than there ever are
// gets RESOURCE_EXHAUSTED and should not be repeated; one whose key is missing or malformed
// InflightOptions.KeyCode; other errors of the key function INTERNAL.
type Inflight[K comparable] struct {
	core   *edge.Inflight[*Call, K]
	opts   InflightOptions
	learns bool // somebody wants to know how calls end
}

// NewInflight returns interceptors that take a permit of the limiter for each call, and
// give it back when the handler has returned. The key function is one of this package,
// such as [RemoteIP] or [Method], or one of your own; one that returns [ratelimit.SkipLayer]
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
		Package: "grpclimit", Thing: "call", Units: i.opts.Units, Skip: i.opts.Skip, MaxWait: i.opts.MaxWait,
	})
	if err != nil {
		return nil, err
	}
	i.core, i.learns = core, i.opts.Outcome != nil || core.Adapts()
	if i.opts.KeyCode > codes.Unauthenticated {
		return nil, fmt.Errorf("grpclimit: InflightOptions.KeyCode is %d, which does not exist", i.opts.KeyCode)
	}
	if i.opts.KeyCode == codes.OK {
		i.opts.KeyCode = codes.InvalidArgument
	}
	return i, nil
}

// outcome returns what an adaptive limit is to learn from a call.
func (i *Inflight[K]) outcome(c *Call, code codes.Code) inflight.Outcome {
	usual := usualOutcome(c, code)
	if i.opts.Outcome == nil {
		return usual
	}
	return i.opts.Outcome(c, code, usual)
}

func usualOutcome(c *Call, code codes.Code) inflight.Outcome {
	return edge.OutcomeOfCall(c.Context(), rpcstatus.Code(code), c.streaming())
}

// UnaryServerInterceptor returns what passes on to handlers the unary calls that the
// limiter lets in, and answers the others. It is for [grpc.ChainUnaryInterceptor].
func (i *Inflight[K]) UnaryServerInterceptor() grpc.UnaryServerInterceptor {
	i.mustBeMade()
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
		if i.learns {
			ctx = refused.Watch(ctx)
		}
		c := newCall(ctx, info.FullMethod, req)
		err = i.serve(c, trailers{ctx: c.Context()}, nil, func() (err error) {
			resp, err = handler(ctx, req)
			return err
		})
		c.release()
		return resp, err
	}
}

// StreamServerInterceptor is UnaryServerInterceptor for streams, for
// [grpc.ChainStreamInterceptor].
func (i *Inflight[K]) StreamServerInterceptor() grpc.StreamServerInterceptor {
	i.mustBeMade()
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if !i.learns {
			return i.serve(callOf(ss, info), trailers{stream: ss}, nil, func() error { return handler(srv, ss) })
		}
		ctx := refused.Watch(ss.Context())
		s := &watchedStream{ServerStream: ss, ctx: ctx}
		return i.serve(callOf(s, info), trailers{stream: ss}, s, func() error { return handler(srv, s) })
	}
}

func (i *Inflight[K]) mustBeMade() {
	if i == nil || i.core == nil {
		panic("grpclimit: this Inflight was not made by NewInflight: it has no limiter")
	}
}

// Stats returns the counters. Each is exact; they are not read at one instant.
func (i *Inflight[K]) Stats() httplimit.InflightStats { return httplimit.InflightStats(i.core.Stats()) }

// serve calls next with a permit, or answers the call. The stream is nil for a unary call.
func (i *Inflight[K]) serve(c *Call, t trailers, s *watchedStream, next func() error) error {
	permit, watched, why := i.core.Admit(c)
	switch {
	case why.Kind != 0:
		return i.refuse(c, t, why)
	case watched && i.learns:
		return i.work(c, permit, s, next)
	}
	defer permit.Release()
	return next()
}

// work serves the call, and gives the permit back whatever becomes of it.
func (i *Inflight[K]) work(c *Call, permit inflight.Permit, s *watchedStream, next func() error) (err error) {
	defer permit.Release() // if Outcome panics; else it is the second time, and does nothing
	code := codes.Internal // of a handler that does not return
	defer func() { permit.Done(i.outcome(c, s.blame(code, err))) }()
	err = next()
	code = codeOf(err)
	return err
}

// refuse answers a call that got no permit.
func (i *Inflight[K]) refuse(c *Call, t trailers, why edge.Refusal) error {
	r := replyTo(why.Answer(c.Context(), rpcstatus.Code(i.opts.KeyCode)))
	answer := r.status
	if i.opts.OnRefused != nil {
		if other := i.opts.OnRefused(c, why.Err, answer); other.Code() != codes.OK {
			answer = other
		}
	}
	t.set(r.trailer)
	return &refusal{answer, why.Err, why.ByClient()}
}
