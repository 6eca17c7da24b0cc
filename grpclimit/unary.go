package grpclimit

import (
	"context"

	"google.golang.org/grpc"
)

func (i *Interceptor) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	if !i.core.DropsRequests() {
		return i.call(NewCall(ctx, info.FullMethod, req), handler)
	}
	c := newCall(ctx, info.FullMethod, req)
	resp, err = i.call(c, handler)
	c.release()
	return resp, err
}

func (i *Interceptor) call(c *Call, handler grpc.UnaryHandler) (any, error) {
	ctx, req := c.ctx, c.Request
	if i.core.Skips(c) {
		return handler(ctx, req)
	}
	e := i.core.Event(c)
	if i.opts.LimitTrailers {
		inner := ctx
		return i.serve(&e, trailers{ctx: c.Context(), tell: true, inner: &inner}, nil, i.core.Settles, func() (any, error) { return handler(inner, req) })
	}
	return i.serve(&e, trailers{ctx: c.Context(), tell: true}, nil, i.core.Settles, func() (any, error) { return handler(ctx, req) })
}
