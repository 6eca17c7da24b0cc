package grpclimit

import (
	"net"
	"net/netip"

	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/internal/clientaddr"
	"github.com/weir-go/ratelimit/internal/edge"
)

// RemoteIP is a key function for the peer's address. It cuts an IPv6 address to its /64. Behind a proxy this is the
// proxy's address: use [ClientIP] there. If the peer has no IP address, the error is [keyfunc.ErrMalformedKey].
func RemoteIP(c *Call) (netip.Addr, error) { return client.RemoteIP(c) }

// ClientIP is [httplimit.ClientIP] with metadata in place of header fields.
func ClientIP(opts httplimit.ClientIPOptions) (func(*Call) (netip.Addr, error), error) {
	return client.ClientIP(clientaddr.Options(opts))
}

var client = edge.Client[*Call]{Package: "grpclimit", Peer: (*Call).remote, Field: (*Call).values, Lower: true}

// remote returns the connection's other end.
func (c *Call) remote() clientaddr.Peer {
	p := c.peer()
	if p == nil || p.Addr == nil {
		return clientaddr.Peer{}
	}
	if tcp, ok := p.Addr.(*net.TCPAddr); ok {
		return clientaddr.Peer{Addr: clientaddr.Plain(tcp.AddrPort().Addr())}
	}
	if clientaddr.IsUnix(p.Addr) || clientaddr.OverUnix(c.Context()) {
		return clientaddr.Peer{Unix: true} // the client's own name for its end may look like an address
	}
	return clientaddr.Peer{Addr: clientaddr.Parse(p.Addr.String())} // for example of a server behind net/http
}
