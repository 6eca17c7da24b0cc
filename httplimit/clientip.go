package httplimit

import (
	"fmt"
	"net/http"
	"net/netip"

	"github.com/weir-go/ratelimit/internal/clientaddr"
)

// ClientIPOptions say how to find a client's address. The zero value reads no header.
type ClientIPOptions struct {
	// TrustedProxies are the addresses of the proxies, and of nothing else: whoever connects from them can claim any
	// address.
	TrustedProxies []netip.Prefix

	// TrustUnixSockets trusts connections over Unix sockets, such as nginx's on the same host: only the proxy may have
	// access to the socket's file. If false, they have no address, except with TrustedHops alone.
	TrustUnixSockets bool

	// TrustedHops is for proxies whose addresses change: how many a request passes. The client is the entry with this
	// number, counted from the end. Without TrustedProxies and TrustUnixSockets every peer is believed: make sure that
	// only the proxies can connect. If zero, entries are compared with TrustedProxies.
	TrustedHops int

	// Header is the field that the proxies write: X-Forwarded-For, Forwarded (RFC 7239), or one that holds exactly one
	// address, such as CF-Connecting-IP, which does not go with TrustedHops. The proxies must set or remove it in each
	// request. If empty, X-Forwarded-For. No other field is read.
	Header string

	// IPv6Bits is the length of the prefix that counts as one client. If zero, 64; 128 tells all addresses apart.
	IPv6Bits int
}

// RemoteIP is a key function for the address of the connection's other end, with an IPv6 address cut to its /64. It reads
// no header. Behind a proxy all clients have the proxy's address: use [ClientIP] there.
func RemoteIP(r *http.Request) (netip.Addr, error) { return find(remoteIP, r) }

var remoteIP = clientaddr.Remote()

// ClientIP returns a key function for the client's address behind proxies. The error names the option that is wrong.
//
// A peer that is not trusted is the client. Otherwise the client is the last address in the header that is not a trusted
// proxy's; what stands before it can be invented, and is not read.
//
// The key has no zone. An IPv4 address in IPv6 form (mapped, SIIT or NAT64) is IPv4. Of an IPv6 address the bits after
// IPv6Bits are zero; of a 6to4 address those after the first 48, unless IPv6Bits is 128. A local NAT64 address
// (64:ff9b:1::/48) stays whole.
//
// The key function's error is [keyfunc.ErrMalformedKey] for an entry that is not an address, broken syntax, a line of
// Forwarded above 16 KiB, several values where one is due, and a connection without an address. It is [keyfunc.ErrNoKey]
// if the header has no client: it is missing, has trusted proxies only, or fewer entries than TrustedHops.
func ClientIP(opts ClientIPOptions) (func(*http.Request) (netip.Addr, error), error) {
	return keyOf(clientaddr.New(clientaddr.Options{
		TrustedProxies:   opts.TrustedProxies,
		TrustUnixSockets: opts.TrustUnixSockets,
		TrustedHops:      opts.TrustedHops,
		Header:           opts.Header,
		IPv6Bits:         opts.IPv6Bits,
	}))
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
