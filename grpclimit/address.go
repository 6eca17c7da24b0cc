package grpclimit

import (
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/internal/clientaddr"
)

// RemoteIP is a key function for the address of the connection's other end, an IPv6
// address cut to its /64, as [httplimit.RemoteIP] has it. It reads no metadata. Behind a
// proxy it is the proxy's address, the same for all clients: use [ClientIP] there. It is
// keyfunc.ErrMalformedKey if the connection has no IP address, such as a Unix socket's.
func RemoteIP(c *Call) (netip.Addr, error) { return remoteIP.Find(c.remote(), nil) }

var remoteIP = clientaddr.Remote()

// ClientIP returns a key function for the client's address behind proxies, by the rules of
// [httplimit.ClientIP]: x-forwarded-for or forwarded is read from its end, and believed
// only as far as the proxies that wrote it are trusted. The error names the option that is
// wrong.
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
		return nil, fmt.Errorf("grpclimit: %w", err)
	}
	key := strings.ToLower(f.Name())
	return func(c *Call) (netip.Addr, error) {
		return f.Find(c.remote(), func() []string { return c.values(key) })
	}, nil
}

// remote returns the other end of the connection.
func (c *Call) remote() clientaddr.Peer {
	p := c.peer()
	if p == nil || p.Addr == nil {
		return clientaddr.Peer{}
	}
	if tcp, ok := p.Addr.(*net.TCPAddr); ok {
		return clientaddr.Peer{Addr: clientaddr.Plain(tcp.AddrPort().Addr())}
	}
	if clientaddr.IsUnix(p.Addr) || clientaddr.OverUnix(c.Context()) {
		return clientaddr.Peer{Unix: true} // the client has bound its end to a name that may look like an address
	}
	return clientaddr.Peer{Addr: clientaddr.Parse(p.Addr.String())} // of a server behind net/http, for example
}
