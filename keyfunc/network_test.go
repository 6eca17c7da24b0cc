package keyfunc_test

import (
	"fmt"
	"net"
	"net/http/httptest"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/keyfunc"
)

func TestNetworkCutsAnAddressAsTheKeyFunctionsOfMiddlewareDo(t *testing.T) {
	for in, want := range map[string]string{
		"192.0.2.1":                     "192.0.2.1",
		"::ffff:192.0.2.1":              "192.0.2.1",
		"64:ff9b::192.0.2.1":            "192.0.2.1",
		"::ffff:0:192.0.2.1":            "192.0.2.1",
		"64:ff9b:1:2::3":                "64:ff9b:1:2::3",
		"2001:db8:1:2:3:4:5:6":          "2001:db8:1:2::",
		"fe80::1%eth0":                  "fe80::",
		"2002:c000:201:5::1":            "2002:c000:201::",
		"::":                            "::",
		"ff:ffff:ffff:ffff:ffff:f::fff": "ff:ffff:ffff:ffff::",
	} {
		got, err := keyfunc.Network(netip.MustParseAddr(in), 0)
		require.NoError(t, err)
		assert.Equal(t, want, got.String(), in)
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = "[" + in + "]:1"
		if netip.MustParseAddr(in).Is4() {
			r.RemoteAddr = in + ":1"
		}
		key, err := httplimit.RemoteIP(r)
		require.NoError(t, err)
		assert.Equal(t, got, key, in)
	}
	for bits, want := range map[int]string{1: "::", 32: "2001:db8::", 56: "2001:db8:1:200::", 64: "2001:db8:1:234::", 128: "2001:db8:1:234::6"} {
		got, err := keyfunc.Network(netip.MustParseAddr("2001:db8:1:234::6"), bits)
		require.NoError(t, err)
		assert.Equal(t, want, got.String())
		v4, err := keyfunc.Network(netip.MustParseAddr("192.0.2.1"), bits)
		require.NoError(t, err)
		assert.Equal(t, "192.0.2.1", v4.String(), bits)
	}
}

func TestNetworkRefusesWhatIsNoAddressOrNoLength(t *testing.T) {
	_, err := keyfunc.Network(netip.Addr{}, 0)
	assert.ErrorIs(t, err, keyfunc.ErrMalformedKey)
	for _, bits := range []int{-1, 129} {
		_, err = keyfunc.Network(netip.MustParseAddr("::1"), bits)
		assert.ErrorIs(t, err, keyfunc.ErrMisconfigured)
		assert.ErrorContains(t, err, fmt.Sprintf("ipv6Bits is %d, want 1 to 128, or 0 for 64", bits))
	}
}

// A server limits packets by the client's network.
func ExampleNetwork() {
	limiter := ratelimit.Must(ratelimit.New[netip.Addr](ratelimit.TokenBucket(ratelimit.PerHour(2), 2), nil))
	for _, from := range []string{"[2001:db8::1]:53", "[2001:db8::2]:53", "[2001:db8::3]:53", "192.0.2.1:53"} {
		addr := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(from)) // as net.PacketConn.ReadFrom returns
		client, err := keyfunc.Network(addr.AddrPort().Addr(), 0)
		fmt.Println(client, err == nil && limiter.Allow(client, 1))
	}
	// Output:
	// 2001:db8:: true
	// 2001:db8:: true
	// 2001:db8:: false
	// 192.0.2.1 true
}
