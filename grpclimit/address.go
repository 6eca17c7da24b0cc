package grpclimit

import (
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/weir-go/ratelimit/httplimit"
)

// ClientIPOptions say how to find a client's address: see [httplimit.ClientIPOptions]. Its
// headers are metadata here: x-forwarded-for and forwarded.
type ClientIPOptions = httplimit.ClientIPOptions

// RemoteIP is a key function for the address of the connection's other end, an IPv6
// address cut to its /64, as [httplimit.RemoteIP] has it. It reads no metadata. Behind a
// proxy it is the proxy's address, the same for all clients: use [ClientIP] there. It is
// ErrMalformedKey if the connection has no address, such as a Unix socket's.
func RemoteIP(c *Call) (netip.Addr, error) {
	return httplimit.RemoteIP(&http.Request{RemoteAddr: c.remoteAddr()})
}

// ClientIP returns a key function for the client's address behind proxies, by the rules of
// [httplimit.ClientIP]: x-forwarded-for or forwarded is read from its end, and believed
// only as far as the proxies that wrote it are trusted. The error names the option that is
// wrong.
func ClientIP(o ClientIPOptions) (func(*Call) (netip.Addr, error), error) {
	key, err := httplimit.ClientIP(o)
	if err != nil {
		return nil, err
	}
	name := "X-Forwarded-For"
	if o.Header == httplimit.Forwarded {
		name = "Forwarded"
	}
	return withHeader(key, name), nil
}

// HeaderIP returns a key function for the client's address in metadata that hold exactly
// one, such as x-real-ip, by the rules of [httplimit.HeaderIP]: they are believed only from
// the trusted peers.
func HeaderIP(key string, trusted []netip.Prefix) (func(*Call) (netip.Addr, error), error) {
	found, err := httplimit.HeaderIP(key, trusted)
	if err != nil {
		return nil, err
	}
	return withHeader(found, http.CanonicalHeaderKey(key)), nil
}

// withHeader returns a key function that calls one for HTTP, with what it reads.
func withHeader(key func(*http.Request) (netip.Addr, error), name string) func(*Call) (netip.Addr, error) {
	lower := strings.ToLower(name)
	return func(c *Call) (netip.Addr, error) {
		return key(&http.Request{RemoteAddr: c.remoteAddr(), Header: http.Header{name: c.Metadata(lower)}})
	}
}

// remoteAddr returns the peer's address, without a port if it is a TCP connection's. It is
// empty if there is none.
func (c *Call) remoteAddr() string {
	p := c.Peer()
	if p == nil || p.Addr == nil {
		return ""
	}
	if tcp, ok := p.Addr.(*net.TCPAddr); ok && tcp != nil {
		return tcp.AddrPort().Addr().String()
	}
	return p.Addr.String()
}
