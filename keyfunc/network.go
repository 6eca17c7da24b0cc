package keyfunc

import (
	"fmt"
	"net/netip"
	"strconv"

	"github.com/weir-go/ratelimit/internal/optional"
)

// defaultIPv6Bits is the length of one client's IPv6 prefix, since providers give each customer a /64 or more.
const defaultIPv6Bits = 64

// Network returns a client's network as an address, for use as a key. An IPv4 address stays as it is. An IPv6
// address is cut to a prefix with ipv6Bits bits, from 1 to 128; 0 means 64. Use it to make keys for packets,
// connections and jobs. The key functions in httplimit, grpclimit and connectlimit cut addresses in the same way:
//
//   - a zone is dropped;
//   - IPv4 addresses in IPv6 form (mapped, SIIT, NAT64) are IPv4;
//   - a 6to4 address is cut to its /48, unless ipv6Bits is below 48 or is 128;
//   - a local NAT64 address (64:ff9b:1::/48) stays whole.
//
// The error is [ErrMalformedKey] for the zero Addr, and [ErrMisconfigured] if ipv6Bits is out of range.
func Network(addr netip.Addr, ipv6Bits int) (netip.Addr, error) {
	if ipv6Bits < 0 || ipv6Bits > 128 {
		return netip.Addr{}, fmt.Errorf("%w: %w", ErrMisconfigured, optional.Within("keyfunc: Network: ipv6Bits", ipv6Bits, 128, strconv.Itoa(defaultIPv6Bits)))
	}
	switch {
	case !addr.IsValid():
		return netip.Addr{}, fmt.Errorf("%w: no IP address", ErrMalformedKey)
	case ipv6Bits == 0:
		ipv6Bits = defaultIPv6Bits
	}
	switch addr = addr.Unmap().WithZone(""); {
	case addr.Is4() || localNAT64.Contains(addr):
		return addr, nil
	case nat64.Contains(addr) || siit.Contains(addr):
		b := addr.As16()
		return netip.AddrFrom4([4]byte(b[12:])), nil
	case sixToFour.Contains(addr) && ipv6Bits < 128:
		ipv6Bits = min(ipv6Bits, 48)
	}
	p, err := addr.Prefix(ipv6Bits)
	return p.Addr(), err
}

var (
	nat64      = netip.MustParsePrefix("64:ff9b::/96")    // RFC 6052, section 2.1
	localNAT64 = netip.MustParsePrefix("64:ff9b:1::/48")  // RFC 8215
	siit       = netip.MustParsePrefix("::ffff:0:0:0/96") // RFC 2765, section 2.1
	sixToFour  = netip.MustParsePrefix("2002::/16")       // RFC 3056
)
