package grpclimit

import (
	"context"

	"google.golang.org/grpc"
)

func (i *Interceptor) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	c := &Call{FullMethod: info.FullMethod, Request: req, ctx: ctx}
	if i.skips(c) {
		return handler(ctx, req)
	}
	e, t := Event{Call: c, Cost: i.cost(c)}, trailers{ctx: c.Context()}
	if i.opts.Settle != nil {
		err = i.settled(&e, t, i.reserve(&e), nil, func() (err error) {
			resp, err = handler(ctx, req)
			return err
		})
		return resp, err
	}
	if err = i.enforce(&e, t, i.decide(&e, i.reserves.calls)); err != nil {
		return nil, err
	}
	return handler(ctx, req)
}
