package httplimit

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// ProxyHeader is the header field in which trusted proxies name their client.
type ProxyHeader uint8

const (
	// XForwardedFor is a list of addresses. Each proxy adds its peer's address at the end.
	XForwardedFor ProxyHeader = iota
	// Forwarded is the same in the syntax of RFC 7239: for=192.0.2.60;proto=https.
	Forwarded

	proxyHeaders = iota
)

var proxyHeaderNames = [proxyHeaders]string{"X-Forwarded-For", "Forwarded"}

// ClientIPOptions say how to find a client's address. The zero value trusts only the
// connection.
type ClientIPOptions struct {
	// TrustedProxies are the addresses of the proxies in front of the server, and of
	// nothing else: whoever connects from them can claim any address. If both this and
	// TrustedHops are empty, headers are never read.
	TrustedProxies []netip.Prefix

	// TrustedHops is how many proxies a request passes, the one that connects to the
	// server included: the client is the entry of the header with this number, counted from
	// the end. It is for proxies whose addresses change, such as a cloud's load
	// balancers. If TrustedProxies is empty, everyone who connects is believed: make sure
	// that only the proxies can. If it is given too, a peer that is not in it is the
	// client, and the entries of the header are counted, not compared. If zero, entries
	// are compared with TrustedProxies.
	TrustedHops int

	// Header is what these proxies write. If zero, X-Forwarded-For. The other
	// one is never read: a proxy passes on a header that it does not know.
	Header ProxyHeader

	// IPv6Bits is the length of the prefix that counts as one client: one
	// subscriber has at least a /64. If zero, 64; 128 tells all addresses apart.
	IPv6Bits int
}

const defaultIPv6Bits = 64

// RemoteIP is a key function for the address of the connection's other end, an
// IPv6 address cut to its /64, as [ClientIP] describes. It reads no header. Behind a
// proxy it is the proxy's address, the same for all clients: use ClientIP there.
func RemoteIP(r *http.Request) (netip.Addr, error) { return remoteIP.key(r) }

var remoteIP = clientIP{bits: defaultIPv6Bits}

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
// [ErrMalformedKey]; so is a line of Forwarded with broken syntax or above 16 KiB, and
// a connection without an address, such as a Unix socket's. If the header has only
// trusted proxies, or fewer entries than TrustedHops, it is [ErrNoKey]: otherwise all
// clients of that proxy would be one.
func ClientIP(opts ClientIPOptions) (func(*http.Request) (netip.Addr, error), error) {
	switch {
	case opts.Header >= proxyHeaders:
		return nil, fmt.Errorf("httplimit: ClientIPOptions.Header is %d, which does not exist", opts.Header)
	case opts.IPv6Bits < 0 || opts.IPv6Bits > 128:
		return nil, fmt.Errorf("httplimit: ClientIPOptions.IPv6Bits is %d, want 1 to 128, or 0 for %d", opts.IPv6Bits, defaultIPv6Bits)
	case opts.TrustedHops < 0:
		return nil, fmt.Errorf("httplimit: ClientIPOptions.TrustedHops is %d, want 0 or more", opts.TrustedHops)
	}
	c := &clientIP{header: opts.Header, bits: cmp.Or(opts.IPv6Bits, defaultIPv6Bits), hops: opts.TrustedHops}
	if err := c.trust("ClientIPOptions.TrustedProxies", opts.TrustedProxies); err != nil {
		return nil, err
	}
	return c.key, nil
}

// HeaderIP returns a key function for the client's address in a header field that holds
// exactly one, such as CF-Connecting-IP, True-Client-IP or X-Real-IP. The field is believed
// only from the trusted peers. Every other peer is the client itself, and the field is
// ignored. Addresses are treated as in [ClientIP], IPv6 addresses cut to their /64.
//
// From a trusted peer, a field that is missing or empty is [ErrNoKey], and one that
// holds no address, or several, [ErrMalformedKey]. The trusted peer must set or remove the
// field in every request that it passes on. For lists such as X-Forwarded-For, use
// ClientIP.
func HeaderIP(header string, trusted []netip.Prefix) (func(*http.Request) (netip.Addr, error), error) {
	name := http.CanonicalHeaderKey(header)
	switch {
	case !isToken(header):
		return nil, errors.New("httplimit: HeaderIP needs the name of a header field")
	case slices.Contains(proxyHeaderNames[:], name):
		return nil, fmt.Errorf("httplimit: HeaderIP: %s is a list: use ClientIP", name)
	case len(trusted) == 0:
		return nil, fmt.Errorf("httplimit: HeaderIP needs the peers from which %s is believed: from others, anyone can write it", name)
	}
	c := &clientIP{bits: defaultIPv6Bits, single: name}
	if err := c.trust("HeaderIP: trusted", trusted); err != nil {
		return nil, err
	}
	return c.key, nil
}

// trust adds the prefixes, which are an argument or option of that name.
func (c *clientIP) trust(name string, prefixes []netip.Prefix) error {
	for i, p := range prefixes {
		n, err := normalizePrefix(p)
		if err != nil {
			return fmt.Errorf("httplimit: %s[%d]: %w", name, i, err)
		}
		c.trusted = append(c.trusted, n)
	}
	return nil
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
	single  string // the field that holds one address, instead of header
	hops    int    // how many entries count as trusted; 0 if they are compared
	bits    int
}

func (c *clientIP) key(r *http.Request) (netip.Addr, error) {
	peer, ok := parseHop(r.RemoteAddr)
	switch {
	case c.hops > 0 && len(c.trusted) == 0: // the peer may be a Unix socket
	case !ok:
		return netip.Addr{}, fmt.Errorf("%w: RemoteAddr is no address", ErrMalformedKey)
	case !c.trusts(peer):
		return c.group(peer), nil
	}
	client, err := c.claimed(r.Header)
	if err != nil {
		return netip.Addr{}, err
	}
	return c.group(client), nil
}

// claimed returns the client that a trusted peer tells of.
func (c *clientIP) claimed(h http.Header) (client netip.Addr, err error) {
	name := proxyHeaderNames[c.header]
	switch {
	case c.single != "":
		return c.only(h)
	case c.header == Forwarded:
		client, err = c.inForwarded(h[name])
	default:
		client, err = c.inForwardedFor(h[name])
	}
	if err == nil && !client.IsValid() {
		err = errNotAnAddress
	}
	if err != nil {
		err = fmt.Errorf("%w in %d lines of %s", err, len(h[name]), name)
	}
	return client, err
}

// What can be wrong with the header of a trusted peer. The texts hold nothing of it.
var (
	errNotAnAddress = fmt.Errorf("%w: the client's entry is no address", ErrMalformedKey)
	errBrokenSyntax = fmt.Errorf("%w: broken syntax, or above %d bytes,", ErrMalformedKey, maxForwarded)
	errNoClient     = fmt.Errorf("%w: no client", ErrNoKey)
)

// only returns the address in the field that holds one.
func (c *clientIP) only(h http.Header) (netip.Addr, error) {
	value, err := single(h[c.single], c.single)
	if err != nil {
		return netip.Addr{}, err
	}
	client, ok := parseHop(strings.Trim(value, " \t"))
	if !ok {
		return netip.Addr{}, fmt.Errorf("%w: %s is no address", ErrMalformedKey, c.single)
	}
	return client, nil
}

// isClient reports whether an entry of the header is the client's, given how many
// come after it.
func (c *clientIP) isClient(hop netip.Addr, ok bool, after int) bool {
	if c.hops > 0 {
		return after == c.hops-1
	}
	return !ok || !c.trusts(hop)
}

func (c *clientIP) trusts(a netip.Addr) bool {
	for _, p := range c.trusted {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// group returns the client that an address belongs to, as [ClientIP] describes.
func (c *clientIP) group(a netip.Addr) netip.Addr {
	bits := c.bits
	switch {
	case a.Is4() || localNAT64.Contains(a):
		return a
	case nat64.Contains(a) || siit.Contains(a):
		b := a.As16()
		if v4 := netip.AddrFrom4([4]byte(b[12:])); !c.trusts(v4) {
			return v4
		}
		return a
	case sixToFour.Contains(a) && bits < 128:
		bits = min(bits, 48)
	}
	p, _ := a.Prefix(bits) // fails only for bits out of range
	return p.Addr()
}

var (
	nat64      = netip.MustParsePrefix("64:ff9b::/96")    // RFC 6052, section 2.1
	localNAT64 = netip.MustParsePrefix("64:ff9b:1::/48")  // RFC 8215
	siit       = netip.MustParsePrefix("::ffff:0:0:0/96") // RFC 2765, section 2.1
	sixToFour  = netip.MustParsePrefix("2002::/16")       // RFC 3056
)

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

// parseAddr parses an address and normalises it: it has no zone, and is IPv4 if its bits
// are an IPv4-mapped address, in any spelling. The zone is cut off first, because
// netip.ParseAddr keeps each zone in memory.
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
