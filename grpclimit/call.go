package grpclimit

import (
	"context"
	"strings"
	"sync"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// Call is a call that a server receives or a [Client] sends, or a message of a stream, while a limiter decides on it. It
// must not be changed, nor used after the function that receives it has returned. Its methods are safe for concurrent use.
type Call struct {
	// FullMethod is "/package.Service/Method".
	FullMethod string
	// Target is the canonical target of the connection of a client's call, such as "dns:///api.example.com:443". It is empty on a
	// server.
	Target string
	// Request is the message of a unary call, nil for a stream that opens, or a message of [Options].ChargeMessages.
	Request any
	// ClientStream and ServerStream report whether the client, or the server, may send several messages.
	ClientStream, ServerStream bool

	ctx      context.Context
	outgoing bool // a client sends it

	// For the functions that settle: whether a message was sent, and an interceptor inside has refused the call.
	answered, refused bool
}

// NewCall returns a call, for tests of key functions. The context has a peer and incoming metadata.
func NewCall(ctx context.Context, fullMethod string, request any) *Call {
	return &Call{FullMethod: fullMethod, Request: request, ctx: ctx}
}

// calls are not in use.
var calls = sync.Pool{New: func() any { return new(Call) }}

// newCall is NewCall for a call that is released when it is answered.
func newCall(ctx context.Context, fullMethod string, request any) *Call {
	c := calls.Get().(*Call)
	c.FullMethod, c.Request, c.ctx = fullMethod, request, ctx
	return c
}

// release lets the call be used again. It is not called after a panic: the function that recovers may have the call.
func (c *Call) release() {
	*c = Call{}
	calls.Put(c)
}

// Context returns the call's context, which is never nil. It contains the peer and
// the incoming metadata. For a client's call it contains the outgoing metadata.
func (c *Call) Context() context.Context {
	if c.ctx == nil {
		return context.Background()
	}
	return c.ctx
}

// peer returns the other end of the connection, or nil if the context has none. The
// context of a client's call may have the peer of a call that the program is serving.
func (c *Call) peer() *peer.Peer {
	if c.outgoing {
		return nil
	}
	p, _ := peer.FromContext(c.Context())
	return p
}

// values returns the values that the client sends under a key, in lower case.
func (c *Call) values(key string) []string {
	if c.outgoing {
		md, _ := metadata.FromOutgoingContext(c.Context())
		return md[key]
	}
	return metadata.ValueFromIncomingContext(c.Context(), key)
}

// service returns the service's full name: "package.Service". It is empty if FullMethod is
// not of the form "/package.Service/Method".
func (c *Call) service() string {
	service, _, ok := c.split()
	if !ok {
		return ""
	}
	return service
}

func (c *Call) split() (service, method string, ok bool) {
	full, ok := strings.CutPrefix(c.FullMethod, "/")
	i := strings.LastIndexByte(full, '/')
	if !ok || i <= 0 || i == len(full)-1 {
		return "", "", false
	}
	return full[:i], full[i+1:], true
}

// streaming reports whether the call is a stream, of either side or both.
func (c *Call) streaming() bool { return c.ClientStream || c.ServerStream }
