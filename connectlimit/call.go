package connectlimit

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"connectrpc.com/connect"

	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/internal/clientaddr"
	"github.com/weir-go/ratelimit/internal/edge"
	"github.com/weir-go/ratelimit/internal/keytext"
	"github.com/weir-go/ratelimit/keyfunc"
)

// Call is a unary call, or an opening stream. A function must not change or keep a Call passed to it.
type Call struct {
	// Procedure is "/package.Service/Method".
	Procedure string
	// Request is a unary call's message. It is nil for a stream.
	Request    any
	Header     http.Header
	Peer       connect.Peer
	StreamType connect.StreamType

	ctx context.Context

	// Settling functions read these: whether a message was sent, and whether an inner interceptor has refused the call.
	answered, refused bool
}

// NewCall returns a call for tests of key functions.
func NewCall(ctx context.Context, procedure string, header http.Header, request any) *Call {
	return &Call{Procedure: procedure, Request: request, Header: header, ctx: ctx}
}

// Context returns the call's context. It is never nil.
func (c *Call) Context() context.Context {
	if c.ctx == nil {
		return context.Background()
	}
	return c.ctx
}

// service returns the service's full name, such as "package.Service". It
// returns "" if Procedure is not of the form "/package.Service/Method".
func (c *Call) service() string {
	service, method, ok := strings.Cut(strings.TrimPrefix(c.Procedure, "/"), "/")
	if !ok || method == "" || c.Procedure[0] != '/' {
		return ""
	}
	return service
}

// Procedure is a key function for the method, "/package.Service/Method".
func Procedure(c *Call) (string, error) {
	if c.Procedure == "" {
		return "", fmt.Errorf("%w: no procedure", keyfunc.ErrNoKey)
	}
	return keytext.Short(c.Procedure, "procedure")
}

// Service is a key function for the service, "package.Service". Without a service the error is [keyfunc.ErrMalformedKey].
func Service(c *Call) (string, error) {
	service := c.service()
	if service == "" {
		return "", fmt.Errorf("%w: the procedure has no service", keyfunc.ErrMalformedKey)
	}
	return keytext.Short(service, "service")
}

// Header is [httplimit.Header] for calls. For a secret, wrap it in [keyfunc.APIKey] or [keyfunc.BearerToken].
func Header(name string) func(*Call) (string, error) {
	name = http.CanonicalHeaderKey(name)
	return func(c *Call) (string, error) {
		value, err := keytext.Single(c.Header[name], name)
		if err != nil {
			return "", err
		}
		short, err := keytext.Short(value, name)
		return strings.Clone(short), err
	}
}

// RemoteIP is [httplimit.RemoteIP] for calls. Behind a proxy use [ClientIP].
func RemoteIP(c *Call) (netip.Addr, error) { return client.RemoteIP(c) }

// ClientIP is [httplimit.ClientIP] for calls.
func ClientIP(opts httplimit.ClientIPOptions) (func(*Call) (netip.Addr, error), error) {
	return client.ClientIP(clientaddr.Options(opts))
}

var client = edge.Client[*Call]{
	Package: "connectlimit", Peer: (*Call).remote,
	Field: func(c *Call, name string) []string { return c.Header[name] },
}

// remote returns the connection's other end.
func (c *Call) remote() clientaddr.Peer {
	if clientaddr.OverUnix(c.Context()) {
		return clientaddr.Peer{Unix: true} // the client's own name for its end may look like an address
	}
	return clientaddr.Peer{Addr: clientaddr.Parse(c.Peer.Addr)}
}
