package grpclimit

import (
	"cmp"
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// UnaryClientInterceptor returns an interceptor for [grpc.WithChainUnaryInterceptor]. It panics if the Client is zero.
// A call that was not sent fails with DeadlineExceeded or Canceled, and the context's error; with ResourceExhausted,
// and [ratelimit.ErrLimited] or [ratelimit.ErrExceedsLimit]; with InvalidArgument if it has no valid key; or with
// Internal if its cost is negative. The limiter's other errors have their own status, or else Unavailable.
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

// invoke sends a call when its turn comes, and again if the server
// refuses it. The call has already waited for a part of MaxWait.
func (c *Client) invoke(call *Call, waited time.Duration, send func(header, trailer *metadata.MD) error) error {
	p := c.pacer.ArriveAfter(call.Context(), c.opts.Key(call), waited)
	defer c.pacer.Leave(p)
	var refusal error // the error of the latest attempt
	for retries := 0; ; retries++ {
		if err := c.pacer.Await(p, call); err != nil {
			return cmp.Or(refusal, unsent(call, err))
		}
		var header, trailer metadata.MD
		refusal = send(&header, &trailer)
		a := answerOf(refusal, header, trailer)
		c.pacer.Learn(p, a.Advice, time.Now())
		if a.retry { // a refused call costs nothing
			c.pacer.Refund(p)
		}
		processed := len(header) > 0 // a denial before the handler has trailers only
		if retries == c.opts.MaxRetries || !a.retry || processed || p.Late() {
			return refusal
		}
		c.pacer.Again(p)
	}
}

// with returns a copy of opts with more options.
func with(opts []grpc.CallOption, more ...grpc.CallOption) []grpc.CallOption {
	return append(opts[:len(opts):len(opts)], more...)
}
