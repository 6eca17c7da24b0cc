package clientaddr

import (
	"net/netip"
	"strings"
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
