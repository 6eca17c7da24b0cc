package grpclimit

import (
	"context"

	"google.golang.org/grpc"
)

func (i *Interceptor) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	if !i.core.DropsRequests() {
		return i.serve(NewCall(ctx, info.FullMethod, req), handler)
	}
	c := newCall(ctx, info.FullMethod, req)
	resp, err = i.serve(c, handler)
	c.release()
	return resp, err
}

func (i *Interceptor) serve(c *Call, handler grpc.UnaryHandler) (resp any, err error) {
	ctx, req := c.ctx, c.Request
	if i.core.Skips(c) {
		return handler(ctx, req)
	}
	e, t := i.core.Event(c), trailers{ctx: c.Context(), tell: true}
	res := i.core.Decide(&e)
	if i.opts.SettleResponse != nil {
		return i.settled(&e, t, res, nil, func() (any, error) { return handler(ctx, req) })
	}
	if err = i.enforce(&e, t, res); err != nil {
		return nil, err
	}
	return handler(ctx, req)
}
