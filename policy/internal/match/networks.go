package match

import (
	"net/netip"
	"slices"
)

// networks is a set of networks. Two networks are either nested or disjoint, so the
// outermost networks, sorted by address, are enough. Only the last network beginning at or
// below an address can contain it. A look-up among 10,000 networks compares 14 addresses.
type networks []netip.Prefix

// newNetworks returns a set of networks. Some may be nested or equal.
func newNetworks(all []netip.Prefix) networks {
	sorted := make(networks, len(all))
	for i, n := range all {
		sorted[i] = n.Masked()
	}
	slices.SortFunc(sorted, func(a, b netip.Prefix) int {
		if c := a.Addr().Compare(b.Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits() // the larger network first
	})
	outermost := sorted[:0]
	for _, n := range sorted {
		if last := len(outermost) - 1; last < 0 || !outermost[last].Overlaps(n) {
			outermost = append(outermost, n)
		}
	}
	return slices.Clip(outermost)
}

// contain reports whether one of the networks contains an address.
// The address must not have a zone, nor be an IPv4 address in IPv6.
func (s networks) contain(addr netip.Addr) bool {
	i, begins := slices.BinarySearchFunc(s, addr, func(n netip.Prefix, addr netip.Addr) int { return n.Addr().Compare(addr) })
	if begins {
		return true
	}
	return i > 0 && s[i-1].Contains(addr)
}
