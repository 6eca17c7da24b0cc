package grpclimit

import (
	"cmp"
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// UnaryClientInterceptor returns the interceptor of unary calls, for [grpc.WithChainUnaryInterceptor]. It
// panics if the Client was not made by [NewClient]. Interceptors before this one see a call
// once, with its waiting; those after it see each repetition. So do the caller's options:
// [grpc.OnFinish] runs once for each attempt, and [grpc.Header], [grpc.Trailer] and
// [grpc.Peer] are those of the last one.
//
// Its own errors mean that the call was not sent. They have these codes:
//
//   - DeadlineExceeded or Canceled, and wrap the context's error: the context ended, or
//     its deadline comes before the call's time;
//   - ResourceExhausted, and wrap [ratelimit.ErrLimited] or [ratelimit.ErrExceedsLimit]:
//     MaxWait is too short, a leaky bucket's queue is full, or the cost is above the limit;
//   - InvalidArgument: a key function of the limiter found no key, or a malformed one;
//   - Internal: the cost is negative;
//   - Unavailable: the limiter could not decide, for another reason;
//   - that of the error, with its details, if the limiter's error has a status other than OK.
func (c *Client) UnaryClientInterceptor() grpc.UnaryClientInterceptor {
	c.mustBeMade()
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		return c.invoke(newClientCall(ctx, cc, method, req, nil), func(header, trailer *metadata.MD) error {
			return invoker(ctx, method, req, reply, cc, with(opts, grpc.Header(header), grpc.Trailer(trailer))...)
		})
	}
}

// invoke sends a call when its time has come, and again if the server refuses it.
func (c *Client) invoke(call *ClientCall, send func(header, trailer *metadata.MD) error) error {
	p := c.pacer.Arrive(call.Context(), c.opts.Key(call))
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
