package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/weir-go/ratelimit/internal/clientaddr"
	"github.com/weir-go/ratelimit/keyfunc"
	"github.com/weir-go/ratelimit/policy/internal/match"
)

// cut is how many bits are kept of an address, for each family. 0 keeps
// a whole IPv4 address, and the first 64 bits of an IPv6 address.
type cut struct{ v4, v6 int }

// of returns an address cut to its network. Like a request's address,
// an IPv6 address without a number of bits is cut to its /64.
func (c cut) of(v string) (string, bool) {
	addr, err := keyfunc.Network(clientaddr.Parse(strings.TrimSpace(v)), 128) // keeps it whole, and converts each form of IPv4
	if err != nil {
		return "", false
	}
	bits := c.v6
	if addr.Is4() {
		bits = c.v4
	}
	switch {
	case bits == 0:
		return match.Client(v), true
	case bits == addr.BitLen() && c.v6 > 0: // "ip/32" has always had networks of one address
		return addr.String(), true
	}
	network, err := addr.Prefix(bits)
	return network.String(), err == nil
}

// ipBits returns the attribute of a part of a key, and how an address is cut: "ip/24" cuts IPv4 addresses, and "ip/24/56" both
// families.
func ipBits(part string) (attribute string, c cut) {
	rest, ok := strings.CutPrefix(part, attrIP+"/")
	if !ok {
		return part, cut{}
	}
	v4, v6, both := strings.Cut(rest, "/")
	if c.v4, ok = bitsOf(v4, 32); ok && both {
		c.v6, ok = bitsOf(v6, 128)
	}
	if !ok {
		return part, cut{}
	}
	return attrIP, c
}

func bitsOf(text string, most int) (int, bool) {
	n, err := strconv.Atoi(text)
	return n, err == nil && 1 <= n && n <= most && text == strconv.Itoa(n)
}

// check returns an error if a key is an address longer than the rule's cut,
// because no request has such a key. The error does not contain the key.
func (c cut) check(v string) error {
	if network, err := netip.ParsePrefix(v); err == nil {
		bits := c.v6
		if network.Addr().Is4() {
			bits = c.v4
		}
		switch {
		case bits == 0:
			return errors.New("an IPv6 network, and the key has IPv6 addresses")
		case network.Bits() != bits:
			return fmt.Errorf("a network of %d bits, want %d", network.Bits(), bits)
		case network != network.Masked():
			return fmt.Errorf("no network of %d bits: bits are set behind these", bits)
		case bits == network.Addr().BitLen() && c.v6 > 0:
			return errors.New("a network of one address, want the address")
		}
		return nil
	}
	addr, err := netip.ParseAddr(v)
	switch {
	case err != nil && c.v6 > 0:
		return fmt.Errorf("neither an IPv4 network of %d bits nor an IPv6 network of %d", c.v4, c.v6)
	case err != nil:
		return fmt.Errorf("neither an IPv4 network of %d bits nor an IPv6 address", c.v4)
	case addr.Unmap().Is4() && (c.v4 < 32 || c.v6 == 0):
		return fmt.Errorf("an IPv4 address, want its network of %d bits", c.v4)
	case addr.Unmap().Is6() && c.v6 > 0 && c.v6 < 128:
		return fmt.Errorf("an IPv6 address, want its network of %d bits", c.v6)
	}
	return nil
}

// checkIP checks a network. A text without a slash need not be an
// address, because the program may use any text as the attribute.
func checkIP(v string) error {
	if !strings.Contains(v, "/") {
		return nil
	}
	network, err := netip.ParsePrefix(v)
	switch {
	case err != nil:
		return errors.New("not a network such as 10.0.0.0/8")
	case network != network.Masked():
		return fmt.Errorf("bits are set behind the first %d: the network is %v", network.Bits(), network.Masked())
	case network.Addr().Is4In6():
		return errors.New("an IPv4 network in IPv6: write it as one of IPv4")
	}
	return nil
}

// addressOf returns an error if a list's value is neither an address nor a network. In
// a rule another text may be a plain value, but in a file of addresses it is a mistake.
func addressOf(v string) error {
	if strings.Contains(v, "/") {
		return checkIP(v)
	}
	if addr, err := netip.ParseAddr(v); err != nil || addr.Zone() != "" {
		return errors.New("neither an address nor a network")
	}
	return nil
}
