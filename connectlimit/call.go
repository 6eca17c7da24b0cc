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
	"github.com/weir-go/ratelimit/internal/keytext"
	"github.com/weir-go/ratelimit/keyfunc"
)

// Call is one call that a limiter decides about: a unary call, or a stream as it opens. A
// Call must not be changed, and key functions must not keep it.
type Call struct {
	// Procedure is the method with its service: "/package.Service/Method".
	Procedure string
	// Request is the request message of a unary call, and nil for a stream.
	Request any
	// Header is what the client has sent. It must not be changed.
	Header http.Header
	// Peer is the other end of the connection.
	Peer connect.Peer
	// StreamType says which side may send several messages.
	StreamType connect.StreamType

	ctx context.Context
}

// NewCall returns a call, for tests of key functions and for interceptors of your own. Nil for
// the header means none.
func NewCall(ctx context.Context, procedure string, header http.Header, request any) *Call {
	return &Call{Procedure: procedure, Request: request, Header: header, ctx: ctx}
}

// Context returns the call's context, which is never nil.
func (c *Call) Context() context.Context {
	if c.ctx == nil {
		return context.Background()
	}
	return c.ctx
}

// service returns the service's full name: "package.Service". It is empty if Procedure is not of
// the form "/package.Service/Method".
func (c *Call) service() string {
	service, method, ok := strings.Cut(strings.TrimPrefix(c.Procedure, "/"), "/")
	if !ok || method == "" || c.Procedure[0] != '/' {
		return ""
	}
	return service
}

// Procedure is a key function for the method with its service: "/package.Service/Method".
func Procedure(c *Call) (string, error) {
	if c.Procedure == "" {
		return "", fmt.Errorf("%w: no procedure", keyfunc.ErrNoKey)
	}
	return keytext.Short(c.Procedure, "procedure")
}

// Service is a key function for the service's full name: "package.Service". It is keyfunc.ErrMalformedKey if
// the procedure is not of the form "/package.Service/Method".
func Service(c *Call) (string, error) {
	service := c.service()
	if service == "" {
		return "", fmt.Errorf("%w: the procedure has no service", keyfunc.ErrMalformedKey)
	}
	return keytext.Short(service, "service")
}

// Header returns a key function for the value of a header field, by the rules of
// [httplimit.Header]. For secrets, use [APIKey].
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

// APIKey returns a key function for the hash of the secret in a header field: the hash that
// [httplimit.APIKey] returns. Whether the secret is valid is not checked.
func APIKey(name string) func(*Call) (keyfunc.Hash, error) {
	name = http.CanonicalHeaderKey(name)
	return func(c *Call) (keyfunc.Hash, error) {
		secret, err := keytext.Single(c.Header[name], name)
		if err != nil {
			return keyfunc.Hash{}, err
		}
		return keyfunc.HashOf(secret), nil
	}
}

// BearerToken is a key function for the hash of the token in "Authorization: Bearer token": the hash
// that [httplimit.BearerToken] returns. Like [APIKey], it checks no token.
func BearerToken(c *Call) (keyfunc.Hash, error) {
	token, err := keytext.Bearer(c.Header["Authorization"])
	if err != nil {
		return keyfunc.Hash{}, err
	}
	return keyfunc.HashOf(token), nil
}

// RemoteIP is a key function for the address of the connection's other end, an IPv6 address cut
// to its /64, as [httplimit.RemoteIP] has it. Behind a proxy it is the proxy's address, the
// same for all clients: use [ClientIP] there.
func RemoteIP(c *Call) (netip.Addr, error) { return remoteIP.Find(c.remote(), nil) }

var remoteIP = clientaddr.Remote()

// ClientIP returns a key function for the client's address behind proxies, by the rules of
// [httplimit.ClientIP]. The error names the option that is wrong.
func ClientIP(opts httplimit.ClientIPOptions) (func(*Call) (netip.Addr, error), error) {
	return keyOf(clientaddr.New(clientaddr.Options{
		TrustedProxies:   opts.TrustedProxies,
		TrustUnixSockets: opts.TrustUnixSockets,
		TrustedHops:      opts.TrustedHops,
		Header:           opts.Header,
		IPv6Bits:         opts.IPv6Bits,
	}))
}

func keyOf(f *clientaddr.Finder, err error) (func(*Call) (netip.Addr, error), error) {
	if err != nil {
		return nil, fmt.Errorf("connectlimit: %w", err)
	}
	name := http.CanonicalHeaderKey(f.Name())
	return func(c *Call) (netip.Addr, error) {
		return f.Find(c.remote(), func() []string { return c.Header[name] })
	}, nil
}

// remote returns the other end of the connection.
func (c *Call) remote() clientaddr.Peer {
	if clientaddr.OverUnix(c.Context()) {
		return clientaddr.Peer{Unix: true} // the client has bound its end to a name that may look like an address
	}
	return clientaddr.Peer{Addr: clientaddr.Parse(c.Peer.Addr)}
}
