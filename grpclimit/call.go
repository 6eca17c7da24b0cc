package grpclimit

import (
	"context"
	"strings"
	"sync"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// Call is a server's or a [Client]'s call, or a stream's message. A function must not change a Call
// passed to it, nor keep it after it has returned. A Call's methods are safe for concurrent use.
type Call struct {
	// FullMethod is "/package.Service/Method".
	FullMethod string
	// Target is a client connection's canonical target, such as "dns:///api.example.com:443". It is empty on a server.
	Target string
	// Request is a unary call's message, or the message charged by [Options].ChargeMessages. It is nil for an opening stream.
	Request any
	// ClientStream and ServerStream report whether the client or the server may send several messages.
	ClientStream, ServerStream bool

	ctx      context.Context
	outgoing bool // whether a client sends the call

	// Settling functions read these: whether a message was sent, and whether an inner interceptor has refused the call.
	answered, refused bool
}

// NewCall returns a call for tests of key functions. The context contains the peer and the incoming metadata.
func NewCall(ctx context.Context, fullMethod string, request any) *Call {
	return &Call{FullMethod: fullMethod, Request: request, ctx: ctx}
}

// calls are Calls for reuse.
var calls = sync.Pool{New: func() any { return new(Call) }}

// newCall returns a reused Call. The caller releases it after the call's answer.
func newCall(ctx context.Context, fullMethod string, request any) *Call {
	c := calls.Get().(*Call)
	c.FullMethod, c.Request, c.ctx = fullMethod, request, ctx
	return c
}

// release lets the Call be reused. It must not be called after a panic, because a recovering function may keep the Call.
func (c *Call) release() {
	*c = Call{}
	calls.Put(c)
}

// Context returns the call's context. It is never nil. It contains the peer and
// the incoming metadata. For a client's call it contains the outgoing metadata.
func (c *Call) Context() context.Context {
	if c.ctx == nil {
		return context.Background()
	}
	return c.ctx
}

// peer returns the connection's other end, or nil if it is unknown. For a client's call
// it is nil, because the context may have the peer of a call in the program's own server.
func (c *Call) peer() *peer.Peer {
	if c.outgoing {
		return nil
	}
	p, _ := peer.FromContext(c.Context())
	return p
}

// values returns the client's values for a key. The key must be in lower case.
func (c *Call) values(key string) []string {
	if c.outgoing {
		md, _ := metadata.FromOutgoingContext(c.Context())
		return md[key]
	}
	return metadata.ValueFromIncomingContext(c.Context(), key)
}

// service returns the service's full name, such as "package.Service". It
// returns "" if FullMethod is not of the form "/package.Service/Method".
func (c *Call) service() string {
	full, ok := strings.CutPrefix(c.FullMethod, "/")
	i := strings.LastIndexByte(full, '/')
	if !ok || i < 0 || i == len(full)-1 {
		return ""
	}
	return full[:i]
}

// streaming reports whether the client, the server or both stream messages.
func (c *Call) streaming() bool { return c.ClientStream || c.ServerStream }
