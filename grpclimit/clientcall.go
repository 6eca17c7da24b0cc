package grpclimit

import (
	"context"

	"google.golang.org/grpc"
)

// newClientCall returns a call of a [Client]. If desc is nil, the call is unary.
func newClientCall(ctx context.Context, cc *grpc.ClientConn, method string, request any, desc *grpc.StreamDesc) *Call {
	c := &Call{FullMethod: method, Request: request, ctx: ctx, outgoing: true}
	if cc != nil {
		c.Target = cc.CanonicalTarget()
	}
	if desc != nil {
		c.ClientStream, c.ServerStream = desc.ClientStreams, desc.ServerStreams
	}
	return c
}

// target returns a call's default key.
func target(c *Call) string { return c.Target }
