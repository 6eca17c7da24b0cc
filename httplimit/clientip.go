package httplimit

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
)

// ProxyHeader is the header field in which trusted proxies tell whom they serve.
type ProxyHeader uint8

const (
	// XForwardedFor is a list of addresses, each proxy adding its peer's at the end.
	XForwardedFor ProxyHeader = iota
	// Forwarded is the same as RFC 7239 has it: for=192.0.2.60;proto=https.
	Forwarded

	proxyHeaders = iota
)

var proxyHeaderNames = [proxyHeaders]string{"X-Forwarded-For", "Forwarded"}

// ClientIPOptions say how to tell a client's address. The zero value trusts nobody
// but the connection.
type ClientIPOptions struct {
	// TrustedProxies are the addresses of the proxies in front, and of nothing
	// else: whoever connects from them can claim any address. If empty, headers
	// are never read.
	TrustedProxies []netip.Prefix

	// Header is what these proxies write. If zero, X-Forwarded-For. The other
	// one is never read: a proxy passes on what it does not know.
	Header ProxyHeader

	// IPv6Bits is the length of the prefix that counts as one client: one
	// subscriber has at least a /64. If zero, 64; 128 tells all addresses apart.
	IPv6Bits int
}

const defaultIPv6Bits = 64

// RemoteIP is a key function for the address of the connection's other end, an
// IPv6 address cut to its /64. It reads no header. Behind a proxy that is the
// proxy's, the same for all clients: use [ClientIP] there.
func RemoteIP(r *http.Request) (netip.Addr, error) { return remoteIP.key(r) }

var remoteIP = clientIP{bits: defaultIPv6Bits}

// ClientIP returns a key function for the client's address, behind proxies that are
// given. The error names the option that is wrong.
//
// The connection's own address is looked at first. If it is not a trusted proxy's, it
// is the client's, and headers are ignored. Else the header is read from its end,
// through all its lines: the first address that is no trusted proxy's is the
// client's; what stands before it is the client's own invention. The address is
// IPv4 if it is an IPv4 one written as IPv6; it has no zone; of an IPv6 address, all
// bits after the first IPv6Bits are zero.
//
// An entry that is no address, if it is met on the way to the client's, is
// [ErrMalformedKey]; so is a line of Forwarded with broken syntax or above 16 KiB, and
// a connection without an address, such as a Unix socket's. If there are trusted
// proxies only, or one of them sent no header, it is [ErrNoKey]: else all its clients
// would be one.
func ClientIP(opts ClientIPOptions) (func(*http.Request) (netip.Addr, error), error) {
	if opts.Header >= proxyHeaders {
		return nil, fmt.Errorf("httplimit: ClientIPOptions.Header is %d, which does not exist", opts.Header)
	}
	if opts.IPv6Bits < 0 || opts.IPv6Bits > 128 {
		return nil, fmt.Errorf("httplimit: ClientIPOptions.IPv6Bits is %d, want 1 to 128, or 0 for %d", opts.IPv6Bits, defaultIPv6Bits)
	}
	c := &clientIP{header: opts.Header, bits: opts.IPv6Bits}
	if c.bits == 0 {
		c.bits = defaultIPv6Bits
	}
	for i, p := range opts.TrustedProxies {
		n, err := normalizePrefix(p)
		if err != nil {
			return nil, fmt.Errorf("httplimit: ClientIPOptions.TrustedProxies[%d]: %w", i, err)
		}
		c.trusted = append(c.trusted, n)
	}
	return c.key, nil
}

// normalizePrefix brings a prefix into the form that addresses are compared in.
func normalizePrefix(p netip.Prefix) (netip.Prefix, error) {
	if p.IsValid() && p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	switch {
	case !p.IsValid():
		return p, fmt.Errorf("%v is no prefix", p)
	case p.Bits() == 0:
		return p, fmt.Errorf("%v trusts everybody", p)
	case p.Addr().Is4In6():
		return p, fmt.Errorf("%v is a part of IPv4 and of IPv6: give the IPv4 prefix", p)
	}
	return p.Masked(), nil
}

type clientIP struct {
	trusted []netip.Prefix // normalised
	header  ProxyHeader
	bits    int
}

func (c *clientIP) key(r *http.Request) (netip.Addr, error) {
	peer, ok := parseHop(r.RemoteAddr)
	if !ok {
		return netip.Addr{}, fmt.Errorf("%w: RemoteAddr %.100q is no address", ErrMalformedKey, r.RemoteAddr)
	}
	if !c.trusts(peer) {
		return c.group(peer), nil
	}
	name := proxyHeaderNames[c.header]
	lines := r.Header[name]
	for i := len(lines) - 1; i >= 0; i-- {
		client, found := c.lastUntrusted(lines[i])
		switch {
		case found && !client.IsValid():
			return client, fmt.Errorf("%w: %s: %.200q", ErrMalformedKey, name, lines[i])
		case found:
			return c.group(client), nil
		}
	}
	return netip.Addr{}, fmt.Errorf("%w: no client in %d lines of %s from the proxy %v", ErrNoKey, len(lines), name, peer)
}

// lastUntrusted finds the last entry of a header line that is no trusted proxy. It is
// found, and the zero Addr, if that entry is no address.
func (c *clientIP) lastUntrusted(line string) (client netip.Addr, found bool) {
	if c.header == Forwarded {
		return c.lastForwarded(line)
	}
	return c.lastForwardedFor(line)
}

func (c *clientIP) trusts(a netip.Addr) bool {
	for _, p := range c.trusted {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// group cuts an IPv6 address to the prefix that counts as one client.
func (c *clientIP) group(a netip.Addr) netip.Addr {
	if a.Is4() {
		return a
	}
	p, _ := a.Prefix(c.bits) // fails for bits out of range alone
	return p.Addr()
}

// parseHop parses an address as peers and proxies write it: bare, with a port, in
// brackets, or both.
func parseHop(s string) (netip.Addr, bool) {
	if inner, ok := strings.CutPrefix(s, "["); ok {
		host, port, closed := strings.Cut(inner, "]")
		return parseAddr(host, closed && strings.Contains(host, ":") && (port == "" || port[0] == ':' && isPort(port[1:])))
	}
	if host, port, ok := strings.Cut(s, ":"); ok && !strings.Contains(port, ":") {
		return parseAddr(host, isPort(port))
	}
	return parseAddr(s, true)
}

// parseAddr parses an address and normalises it: no zone, and IPv4 where the bits
// say so, however it is spelled. The zone is cut off before, as parsing would keep
// each in memory.
func parseAddr(s string, ok bool) (netip.Addr, bool) {
	s, zone, zoned := strings.Cut(s, "%")
	if !ok || zoned && zone == "" {
		return netip.Addr{}, false
	}
	a, err := netip.ParseAddr(s)
	a = a.Unmap()
	if err != nil || zoned && a.Is4() {
		return netip.Addr{}, false
	}
	return a, true
}

// isPort accepts a port number, or an obfuscated one (RFC 7239, section 6.2).
func isPort(s string) bool {
	if rest, ok := strings.CutPrefix(s, "_"); ok {
		return rest != "" && strings.Trim(rest, "._-0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
	}
	return s != "" && len(s) <= 5 && strings.Trim(s, "0123456789") == ""
}
