// Package clientaddr finds a client's address behind proxies, for both HTTP requests and gRPC calls.
// httplimit documents the rules: [Options] and [New] implement its ClientIPOptions and ClientIP.
package clientaddr

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	"github.com/weir-go/ratelimit/internal/keytext"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/keyfunc"
)

// The header fields with lists of addresses.
const (
	forwardedFor = "X-Forwarded-For"
	forwarded    = "Forwarded"
)

// Options have the same fields as httplimit.ClientIPOptions, in the same order, so that one converts to the other.
type Options struct {
	TrustedProxies   []netip.Prefix
	TrustUnixSockets bool
	TrustedHops      int
	Header           string
	IPv6Bits         int
}

const defaultIPv6Bits = 64

// Finder finds a client's address. It is safe for concurrent use.
type Finder struct {
	trusted []netip.Prefix // the trusted prefixes, normalised
	unix    bool           // whether peers on Unix sockets are trusted
	header  string         // the field to read, in canonical form
	hops    int            // how many entries count as trusted; if 0, addresses are compared
	bits    int
}

// Remote finds the address of the connection's other end, and reads no header.
func Remote() *Finder { return &Finder{bits: defaultIPv6Bits} }

// New returns a Finder that reads a header field written by proxies. Its errors have no prefix.
func New(o Options) (*Finder, error) {
	f := &Finder{
		unix: o.TrustUnixSockets, hops: o.TrustedHops,
		header: http.CanonicalHeaderKey(cmp.Or(o.Header, forwardedFor)), bits: cmp.Or(o.IPv6Bits, defaultIPv6Bits),
	}
	switch {
	case !keytext.IsToken(f.header):
		return nil, errors.New("ClientIPOptions.Header is not the name of a header field")
	}
	if err := cmp.Or(
		optional.Within("ClientIPOptions.IPv6Bits", o.IPv6Bits, 128, strconv.Itoa(defaultIPv6Bits)),
		optional.NotNegative("ClientIPOptions.TrustedHops", o.TrustedHops, "none"),
	); err != nil {
		return nil, err
	}
	for i, p := range o.TrustedProxies {
		n, err := normalizePrefix(p)
		if err != nil {
			return nil, fmt.Errorf("ClientIPOptions.TrustedProxies[%d]: %w", i, err)
		}
		f.trusted = append(f.trusted, n)
	}
	switch {
	case f.isList():
	case o.TrustedHops > 0:
		return nil, fmt.Errorf("ClientIPOptions.TrustedHops: %s holds one address, so that no entries can be counted", f.header)
	case len(f.trusted) == 0 && !f.unix:
		return nil, fmt.Errorf("ClientIPOptions.Header: %s needs TrustedProxies or TrustUnixSockets, since from others anyone can write it", f.header)
	}
	return f, nil
}

// isList reports whether the header field is a list.
func (f *Finder) isList() bool { return f.header == forwardedFor || f.header == forwarded }

// normalizePrefix converts a prefix to the form in which addresses are compared.
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

// Parse parses the address of a connection's other end, with or without a port. It returns
// an invalid Addr if the text is not an address, for example because it is a Unix socket's.
func Parse(remoteAddr string) netip.Addr {
	a, _ := parseHop(remoteAddr)
	return a
}

// OverUnix reports whether a request of net/http came over a Unix socket, given its
// context. Instead of an address, such a request has a name chosen by the client.
func OverUnix(ctx context.Context) bool {
	local, ok := ctx.Value(http.LocalAddrContextKey).(net.Addr)
	return ok && IsUnix(local)
}

// IsUnix reports whether an address is a Unix socket's.
func IsUnix(a net.Addr) bool { return strings.HasPrefix(a.Network(), "unix") }

// Plain returns an address in the form in which addresses are compared.
// The result has no zone, and is IPv4 for an IPv4-mapped address.
func Plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// Peer is a connection's other end.
type Peer struct {
	Addr netip.Addr // an address from Parse or Plain
	Unix bool       // whether the connection came over a Unix socket and has no address
}

// Find returns the client's address, given the connection's other end. If the peer
// is trusted, Find calls lines for the lines of the header field [Finder.Name].
func (f *Finder) Find(peer Peer, lines func() []string) (netip.Addr, error) {
	switch {
	case f.hops > 0 && len(f.trusted) == 0 && !f.unix: // each peer is trusted
	case f.unix && peer.Unix:
	case peer.Unix || !peer.Addr.IsValid():
		return netip.Addr{}, fmt.Errorf("%w: the connection has no IP address", keyfunc.ErrMalformedKey)
	case !f.trusts(peer.Addr):
		return f.group(peer.Addr), nil
	}
	client, err := f.claimed(f.Name(), lines())
	if err != nil {
		return netip.Addr{}, err
	}
	return f.group(client), nil
}

// Name returns the canonical name of the header field to read.
func (f *Finder) Name() string { return f.header }

// claimed returns the client named by a trusted peer.
func (f *Finder) claimed(name string, lines []string) (client netip.Addr, err error) {
	switch name {
	case forwarded:
		client, err = f.inForwarded(lines)
	case forwardedFor:
		client, err = f.inForwardedFor(lines)
	default:
		return only(name, lines)
	}
	if err == nil && !client.IsValid() {
		err = errNotAnAddress
	}
	if err != nil {
		err = fmt.Errorf("%w in %d lines of %s", err, len(lines), name)
	}
	return client, err
}

// The possible faults of a trusted peer's header. The texts contain no part of it.
var (
	errNotAnAddress = fmt.Errorf("%w: the client's entry is no address", keyfunc.ErrMalformedKey)
	errBrokenSyntax = fmt.Errorf("%w: broken syntax, or above %d bytes,", keyfunc.ErrMalformedKey, maxForwarded)
	errNoClient     = fmt.Errorf("%w: no client", keyfunc.ErrNoKey)
)

// only returns the address in a field that must have exactly one.
func only(name string, lines []string) (netip.Addr, error) {
	value, err := keytext.Raw(lines, name)
	if err != nil {
		return netip.Addr{}, err
	}
	client, ok := parseHop(strings.Trim(value, " \t"))
	if !ok {
		return netip.Addr{}, fmt.Errorf("%w: %s is no address", keyfunc.ErrMalformedKey, name)
	}
	return client, nil
}

// isClient reports whether an entry of the header is the client's. after counts the entries after it.
func (f *Finder) isClient(hop netip.Addr, ok bool, after int) bool {
	if f.hops > 0 {
		return after == f.hops-1
	}
	return !ok || !f.trusts(hop)
}

func (f *Finder) trusts(a netip.Addr) bool {
	for _, p := range f.trusted {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// group returns an address's client, as documented for httplimit.ClientIP. A trusted address behind NAT64 stays as it is.
func (f *Finder) group(a netip.Addr) netip.Addr {
	network, _ := keyfunc.Network(a, f.bits) // fails only if bits is out of range
	if network.Is4() && !a.Is4() && f.trusts(network) {
		return a
	}
	return network
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

// parseAddr parses an address and normalises it. The result has no zone, and is IPv4 if its bits are an IPv4-mapped
// address, in any spelling. The zone is removed first, because netip.ParseAddr keeps each zone in memory.
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
