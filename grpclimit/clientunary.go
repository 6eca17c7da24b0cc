package grpclimit

import (
	"cmp"
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// UnaryClientInterceptor is for [grpc.WithChainUnaryInterceptor]. It panics if the Client is zero. Calls that were
// not sent fail with DeadlineExceeded or Canceled and the context's error; ResourceExhausted and
// [ratelimit.ErrLimited] or [ratelimit.ErrExceedsLimit]; InvalidArgument without a valid key; Internal for a negative
// cost; else the status of the limiter's error, or Unavailable.
func (c *Client) UnaryClientInterceptor() grpc.UnaryClientInterceptor {
	c.mustBeMade()
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		call := newClientCall(ctx, cc, method, req, nil)
		return c.hold(call, func(waited time.Duration) error {
			if c.pacer == nil {
				return invoker(ctx, method, req, reply, cc, opts...)
			}
			return c.invoke(call, waited, func(header, trailer *metadata.MD) error {
				return invoker(ctx, method, req, reply, cc, with(opts, grpc.Header(header), grpc.Trailer(trailer))...)
			})
		})
	}
}

// invoke sends a call when its time has come, and again if the server refuses it. It has waited for a part of MaxWait.
func (c *Client) invoke(call *Call, waited time.Duration, send func(header, trailer *metadata.MD) error) error {
	p := c.pacer.ArriveAfter(call.Context(), c.opts.Key(call), waited)
	defer c.pacer.Leave(p)
	var refusal error // of the attempt before
	for retries := 0; ; retries++ {
		if err := c.pacer.Await(p, call); err != nil {
			return cmp.Or(refusal, unsent(call, err))
		}
		var header, trailer metadata.MD
		refusal = send(&header, &trailer)
		a := answerOf(refusal, header, trailer)
		c.pacer.Learn(p, a.Advice, time.Now())
		if a.retry { // it has cost nothing
			c.pacer.Refund(p)
		}
		processed := len(header) > 0 // a denial before that has trailers only
		if retries == c.opts.MaxRetries || !a.retry || processed || p.Late() {
			return refusal
		}
		c.pacer.Again(p)
	}
}

// with returns options and some more. It leaves the caller's slice alone.
func with(opts []grpc.CallOption, more ...grpc.CallOption) []grpc.CallOption {
	return append(opts[:len(opts):len(opts)], more...)
}
