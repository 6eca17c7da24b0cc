package grpclimit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/edge"
	"github.com/weir-go/ratelimit/internal/outcome"
	"github.com/weir-go/ratelimit/internal/rpcstatus"
)

// InflightClientOptions are the settings of [NewInflightClient]. Zero values mean the defaults.
type InflightClientOptions struct {
	// Key returns the key whose limit a call shares. It defaults to the target.
	Key func(c *ClientCall) string

	// MaxWait is the longest time that a call may wait for its permit. If zero, it waits as long as its context allows.
	MaxWait time.Duration

	// Outcome returns the outcome of a call that ended with that error for an adaptive limit, given the default outcome, which is as in
	// InflightOptions, but by the caller's context. If nil, the default outcome is used.
	Outcome func(c *ClientCall, err error, usual inflight.Outcome) inflight.Outcome
}

// InflightClient makes interceptors that limit how many calls to each target are in flight, a stream until it has
// ended. Make one with [NewInflightClient]. It is safe for concurrent use, and may serve any number of connections.
//
// A call without a permit is not sent. It fails with ResourceExhausted and [ratelimit.ErrLimited] if the queue is
// full, with DeadlineExceeded after MaxWait, or with the code of its context's error.
type InflightClient struct {
	limiter *inflight.Limiter[string]
	opts    InflightClientOptions
}

// NewInflightClient returns interceptors that send calls as the limiter allows. If it is nil, each target has an
// adaptive limit ([inflight.Learn]) of at most 1000, and a queue of 1000.
func NewInflightClient(l *inflight.Limiter[string], opts *InflightClientOptions) (*InflightClient, error) {
	c := &InflightClient{limiter: l}
	if opts != nil {
		c.opts = *opts
	}
	if c.opts.MaxWait < 0 {
		return nil, fmt.Errorf("grpclimit: InflightClientOptions.MaxWait is %v, want 0 or more", c.opts.MaxWait)
	}
	if c.opts.Key == nil {
		c.opts.Key = target
	}
	if l == nil {
		c.limiter = ratelimit.Must(inflight.New(1000, &inflight.Options[string]{Adaptive: inflight.Learn(nil), MaxQueue: 1000}))
	}
	return c, nil
}

// outcome returns the outcome of a call for an adaptive limit.
func (c *InflightClient) outcome(call *ClientCall, err error) inflight.Outcome {
	usual := responseOutcome(call, err)
	if c.opts.Outcome == nil {
		return usual
	}
	return c.opts.Outcome(call, err, usual)
}

func responseOutcome(c *ClientCall, err error) inflight.Outcome {
	if outcome.CauseOf(err).Refused() {
		return inflight.Ignored
	}
	return edge.OutcomeOfCode(c.Context(), rpcstatus.Code(codeOf(err)), c.streaming())
}

// UnaryClientInterceptor is for [grpc.WithChainUnaryInterceptor].
func (c *InflightClient) UnaryClientInterceptor() grpc.UnaryClientInterceptor {
	c.mustBeMade()
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		call := newClientCall(ctx, cc, method, req, nil)
		permit, err := c.acquire(call)
		if err != nil {
			return err
		}
		defer permit.Done(inflight.Ignored) // if something panics; else it is the second time, and does nothing
		err = invoker(ctx, method, req, reply, cc, opts...)
		permit.Done(c.outcome(call, err))
		return err
	}
}

// StreamClientInterceptor is for [grpc.WithChainStreamInterceptor].
func (c *InflightClient) StreamClientInterceptor() grpc.StreamClientInterceptor {
	c.mustBeMade()
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		call := newClientCall(ctx, cc, method, nil, desc)
		permit, err := c.acquire(call)
		if err != nil {
			return nil, err
		}
		if c.opts.Outcome == nil { // else Outcome decides, at the end
			permit.Ignore()
		}
		var once sync.Once
		end := func(err error) {
			once.Do(func() {
				defer permit.Done(inflight.Ignored) // if Outcome panics
				permit.Done(c.outcome(call, err))
			})
		}
		opened := false
		defer func() {
			if !opened {
				permit.Done(inflight.Ignored) // after a panic; else it is the second time
			}
		}()
		s, err := streamer(ctx, desc, cc, method, with(opts, grpc.OnFinish(end))...)
		if err != nil {
			end(err)
			return nil, err
		}
		opened = true
		return &heldStream{s, end, desc.ServerStreams}, nil
	}
}

func (c *InflightClient) mustBeMade() {
	if c == nil || c.limiter == nil {
		panic("grpclimit: this InflightClient was not made by NewInflightClient: it has no limiter")
	}
}

func (c *InflightClient) acquire(call *ClientCall) (inflight.Permit, error) {
	ctx := call.Context()
	if c.opts.MaxWait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.opts.MaxWait)
		defer cancel()
	}
	permit, err := c.limiter.Acquire(ctx, c.opts.Key(call), 1)
	if err != nil {
		return permit, unsent(call, err)
	}
	return permit, nil
}

// heldStream is a stream that holds a permit. It records the end itself: a stream that is not gRPC's own, or an interceptor that drops
// options, does not call OnFinish.
type heldStream struct {
	grpc.ClientStream
	end  func(error)
	many bool // the server may send more than one message
}

// RecvMsg receives from the stream.
func (s *heldStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	switch {
	case err == nil && s.many:
	case err == nil || errors.Is(err, io.EOF):
		s.end(nil)
	default:
		s.end(err)
	}
	return err
}
