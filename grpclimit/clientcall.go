package grpclimit

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	"github.com/weir-go/ratelimit/keyfunc"
)

// newClientCall returns a call of a [Client]; without a desc, a unary one.
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

// target groups calls by default.
func target(c *Call) string { return c.Target }

// ClientTarget is a key function for the target of a [Client]'s call.
func ClientTarget(c *Call) (string, error) {
	if c.Target == "" {
		return "", fmt.Errorf("%w: the connection has no target", keyfunc.ErrNoKey)
	}
	return c.Target, nil
}
