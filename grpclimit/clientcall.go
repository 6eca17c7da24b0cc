package grpclimit

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	"github.com/weir-go/ratelimit/keyfunc"
)

// ClientCall is an outgoing call.
type ClientCall struct {
	// FullMethod is "/package.Service/Method".
	FullMethod string

	// Target is the connection's canonical target, such as "dns:///api.example.com:443".
	Target string

	// Request is the message of a unary call, nil for a stream.
	Request any

	// ClientStream and ServerStream report whether the client, or the server, may send several messages.
	ClientStream, ServerStream bool

	ctx context.Context
}

// Context returns the call's context, never nil, with the outgoing metadata.
func (c *ClientCall) Context() context.Context {
	if c.ctx == nil {
		return context.Background()
	}
	return c.ctx
}

// streaming reports whether the call is a stream, of either side or both.
func (c *ClientCall) streaming() bool { return c.ClientStream || c.ServerStream }

// newClientCall returns a call; without a desc, a unary one.
func newClientCall(ctx context.Context, cc *grpc.ClientConn, method string, request any, desc *grpc.StreamDesc) *ClientCall {
	c := &ClientCall{FullMethod: method, Request: request, ctx: ctx}
	if cc != nil {
		c.Target = cc.CanonicalTarget()
	}
	if desc != nil {
		c.ClientStream, c.ServerStream = desc.ClientStreams, desc.ServerStreams
	}
	return c
}

// target groups calls by default.
func target(c *ClientCall) string { return c.Target }

// ClientTarget is a key function for the connection's target.
func ClientTarget(c *ClientCall) (string, error) {
	if c.Target == "" {
		return "", fmt.Errorf("%w: the connection has no target", keyfunc.ErrNoKey)
	}
	return c.Target, nil
}
