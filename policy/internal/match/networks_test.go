package match

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestANetworkIsFoundAmongMany compares a set of networks with a linear search. Networks
// are nested, equal or adjacent, and addresses are at their ends or just outside.
func TestANetworkIsFoundAmongMany(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var all []netip.Prefix
		for range 1 + rng.IntN(40) {
			var addr netip.Addr
			bits := 0
			if rng.IntN(2) == 0 {
				addr, bits = netip.AddrFrom4([4]byte{10, 0, byte(rng.IntN(4)), byte(rng.UintN(256))}), rng.IntN(33)
			} else {
				addr, bits = netip.AddrFrom16([16]byte{0x20, 1, 14: byte(rng.IntN(4)), 15: byte(rng.UintN(256))}), 100+rng.IntN(29)
			}
			if bits < 8 && rng.IntN(10) > 0 {
				bits += 20
			}
			all = append(all, netip.PrefixFrom(addr, bits))
		}
		set := newNetworks(all)
		for _, n := range all {
			for _, addr := range []netip.Addr{n.Addr(), n.Masked().Addr(), n.Masked().Addr().Prev(), last(n), last(n).Next()} {
				if !addr.IsValid() {
					continue
				}
				want := false
				for _, n := range all {
					want = want || n.Contains(addr)
				}
				require.Equal(t, want, set.contain(addr), "%v in %v", addr, all)
			}
		}
	}
	require.False(t, newNetworks(nil).contain(netip.MustParseAddr("10.0.0.1")))
}

// last returns a network's last address.
func last(n netip.Prefix) netip.Addr {
	addr := n.Masked().Addr().AsSlice()
	for i := n.Bits(); i < 8*len(addr); i++ {
		addr[i/8] |= 1 << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(addr)
	return a
}

// BenchmarkDenyList looks an address up in a deny-list.
func BenchmarkDenyList(b *testing.B) {
	for _, n := range []int{10, 10_000} {
		b.Run(fmt.Sprintf("networks=%d", n), func(b *testing.B) {
			values := make([]string, n)
			for i := range values {
				values[i] = netip.PrefixFrom(netip.AddrFrom4([4]byte{11, byte(i >> 8), byte(i), 0}), 24).String()
			}
			c := NewCondition(OneOf, attrIP, values)
			r := Attributes{attrIP: "198.51.100.7"}
			for b.Loop() {
				if c.holds(r) {
					b.Fatal("the address is in no network")
				}
			}
		})
	}
}
