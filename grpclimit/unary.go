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
	req := c.Request
	if i.core.Skips(c) {
		return handler(c.ctx, req)
	}
	e := i.core.Event(c)
	t := trailers{ctx: c.Context(), announce: true}
	if i.opts.LimitTrailers {
		inner := t.ctx
		t.inner = &inner
	}
	return i.serve(&e, t, nil, i.core.Settles, func(ctx context.Context) (any, error) { return handler(ctx, req) })
}
