package httplimit

import (
	"net/http"
	"net/netip"

	"github.com/weir-go/ratelimit/internal/clientaddr"
	"github.com/weir-go/ratelimit/internal/edge"
)

// ClientIPOptions configure how a client's address is found. The zero value reads no header.
type ClientIPOptions struct {
	// TrustedProxies are the proxies' addresses. They must include no
	// other address, because a proxy can claim any client address.
	TrustedProxies []netip.Prefix

	// TrustUnixSockets trusts connections over Unix sockets, such as
	// nginx's. Only the proxy may have access to the socket's file.
	TrustUnixSockets bool

	// TrustedHops is how many proxies a request passes, if their addresses change. The client is the entry with this number,
	// counted from the end. Without the options above, each peer is trusted, so make sure that only the proxies can connect.
	TrustedHops int

	// Header is the field that the proxies write. It is X-Forwarded-For, Forwarded (RFC
	// 7239) or, without TrustedHops, a field with exactly one address, such as
	// CF-Connecting-IP. The proxies must set or remove it. It defaults to X-Forwarded-For.
	Header string

	// IPv6Bits is how long a prefix counts as one client. It defaults to 64; 128 treats each address as a client.
	IPv6Bits int
}

// RemoteIP is a key function for the peer's address. An IPv6 address is cut to
// its /64. Behind a proxy, this address is the proxy's: use [ClientIP] there.
func RemoteIP(r *http.Request) (netip.Addr, error) { return client.RemoteIP(r) }

// ClientIP returns a key function for the client's address behind proxies. The error names the invalid option.
//
// An untrusted peer is the client. Otherwise the client is the last address in the header that is
// not a trusted proxy's. IPv4 addresses in IPv6 form (mapped, SIIT, NAT64) are IPv4. A 6to4 address
// is cut to its /48 unless IPv6Bits is 128, and a local NAT64 address (64:ff9b:1::/48) stays whole.
//
// The key function returns [keyfunc.ErrMalformedKey] for an entry that is not an address, broken syntax, more
// than 16 KiB of Forwarded, several values instead of one, or a connection without an address. It returns
// [keyfunc.ErrNoKey] if the header is missing, has only trusted proxies, or has fewer entries than TrustedHops.
func ClientIP(opts ClientIPOptions) (func(*http.Request) (netip.Addr, error), error) {
	return client.ClientIP(clientaddr.Options(opts))
}

var client = edge.Client[*http.Request]{
	Package: "httplimit", Peer: peerOf,
	Field: func(r *http.Request, name string) []string { return r.Header[name] },
}

// peerOf returns the connection's other end.
func peerOf(r *http.Request) clientaddr.Peer {
	return clientaddr.Peer{Addr: clientaddr.Parse(r.RemoteAddr), Unix: clientaddr.OverUnix(r.Context())}
}
