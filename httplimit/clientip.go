package httplimit

import (
	"fmt"
	"net/http"
	"net/netip"

	"github.com/weir-go/ratelimit/internal/clientaddr"
)

// ProxyHeader is the header field in which trusted proxies name their client.
type ProxyHeader uint8

const (
	// XForwardedFor is a list of addresses. Each proxy adds its peer's address at the end.
	XForwardedFor ProxyHeader = clientaddr.ForwardedFor
	// Forwarded is the same in the syntax of RFC 7239: for=192.0.2.60;proto=https.
	Forwarded ProxyHeader = clientaddr.Forwarded
)

// ClientIPOptions say how to find a client's address. The zero value trusts only the
// connection.
type ClientIPOptions struct {
	// TrustedProxies are the addresses of the proxies in front of the server, and of
	// nothing else: whoever connects from them can claim any address. If both this and
	// TrustedHops are empty, headers are never read.
	TrustedProxies []netip.Prefix

	// TrustUnixSockets trusts whoever connects over a Unix socket, such as nginx on the
	// same host: make sure that only the proxy may open the socket's file. If false,
	// such connections have no client, except with TrustedHops alone.
	TrustUnixSockets bool

	// TrustedHops is how many proxies a request passes, the one that connects to the
	// server included: the client is the entry of the header with this number, counted from
	// the end. It is for proxies whose addresses change, such as a cloud's load
	// balancers. If no peer is trusted otherwise, everyone who connects is believed: make
	// sure that only the proxies can. With TrustedProxies or TrustUnixSockets, a peer that
	// is not trusted is the client, and the entries of the header are counted, not
	// compared. If zero, entries are compared with TrustedProxies.
	TrustedHops int

	// Header is what these proxies write. If zero, X-Forwarded-For. The other
	// one is never read: a proxy passes on a header that it does not know.
	Header ProxyHeader

	// SingleHeader names a header field that holds exactly one address, such as
	// X-Real-IP, which is read in place of Header: see [HeaderIP]. It goes with
	// TrustedProxies, TrustUnixSockets and IPv6Bits. If empty, Header is read.
	SingleHeader string

	// IPv6Bits is the length of the prefix that counts as one client: one
	// subscriber has at least a /64. If zero, 64; 128 tells all addresses apart.
	IPv6Bits int
}

// RemoteIP is a key function for the address of the connection's other end, an
// IPv6 address cut to its /64, as [ClientIP] describes. It reads no header. Behind a
// proxy it is the proxy's address, the same for all clients: use ClientIP there.
func RemoteIP(r *http.Request) (netip.Addr, error) { return find(remoteIP, r) }

var remoteIP = clientaddr.Remote()

// ClientIP returns a key function for the client's address behind proxies. The error
// names the option that is wrong.
//
// The connection's own address comes first. If it is not a trusted proxy's, it is the
// client's, and headers are ignored. Otherwise the header is read from its end, through
// all its lines: the first address that is no trusted proxy's is the client's. The client
// can invent everything before that, so it is not read. With TrustedHops the entry is
// counted instead.
//
// The key has no zone, and is IPv4 if the address is an IPv4 address written as IPv6:
// mapped (::ffff:0:0/96), or translated by NAT64 or SIIT (64:ff9b::/96, RFC 6052, and
// ::ffff:0:0:0/96). Of an IPv6 address, all bits after the first IPv6Bits are zero. There
// are two exceptions: of a 6to4 address (2002::/16), whose owner has a /48, all bits after
// the first 48, unless IPv6Bits is 128; and a local NAT64 address (64:ff9b:1::/48) is
// kept as a whole.
//
// An entry that is no address, if it is met on the way to the client's, is
// [keyfunc.ErrMalformedKey]; so is a line of Forwarded with broken syntax or above 16 KiB, and
// a connection without an address, such as a Unix socket's that is not trusted. If the header has only
// trusted proxies, or fewer entries than TrustedHops, it is [keyfunc.ErrNoKey]: otherwise all
// clients of that proxy would be one.
func ClientIP(opts ClientIPOptions) (func(*http.Request) (netip.Addr, error), error) {
	return keyOf(clientaddr.New(clientaddr.Options{
		TrustedProxies:   opts.TrustedProxies,
		TrustUnixSockets: opts.TrustUnixSockets,
		TrustedHops:      opts.TrustedHops,
		Header:           uint8(opts.Header),
		SingleHeader:     opts.SingleHeader,
		IPv6Bits:         opts.IPv6Bits,
	}))
}

// HeaderIP returns a key function for the client's address in a header field that holds
// exactly one, such as CF-Connecting-IP, True-Client-IP or X-Real-IP. The field is believed
// only from the trusted peers. Every other peer is the client itself, and the field is
// ignored. Addresses are treated as in [ClientIP], IPv6 addresses cut to their /64.
//
// From a trusted peer, a field that is missing or empty is [keyfunc.ErrNoKey], and one that
// holds no address, or several, [keyfunc.ErrMalformedKey]. The trusted peer must set or remove the
// field in every request that it passes on. For lists such as X-Forwarded-For, use
// ClientIP. For a proxy that connects over a Unix socket, use
//
//	httplimit.ClientIP(httplimit.ClientIPOptions{SingleHeader: "X-Real-IP", TrustUnixSockets: true})
func HeaderIP(header string, trusted []netip.Prefix) (func(*http.Request) (netip.Addr, error), error) {
	return keyOf(clientaddr.Single(header, trusted))
}

func keyOf(f *clientaddr.Finder, err error) (func(*http.Request) (netip.Addr, error), error) {
	if err != nil {
		return nil, fmt.Errorf("httplimit: %w", err)
	}
	return func(r *http.Request) (netip.Addr, error) { return find(f, r) }, nil
}

func find(f *clientaddr.Finder, r *http.Request) (netip.Addr, error) {
	peer := clientaddr.Peer{Addr: clientaddr.Parse(r.RemoteAddr), Unix: clientaddr.OverUnix(r.Context())}
	return f.Find(peer, func() []string { return r.Header[f.Name()] })
}
