package clientaddr_test

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/clientaddr"
	"github.com/weir-go/ratelimit/keyfunc"
)

var proxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}

func finder(t testing.TB, o clientaddr.Options) *clientaddr.Finder {
	t.Helper()
	f, err := clientaddr.New(o)
	require.NoError(t, err)
	return f
}

// behind returns the client behind a trusted proxy that sends these header lines.
func behind(f *clientaddr.Finder, lines ...string) (netip.Addr, error) {
	return f.Find(clientaddr.Peer{Addr: netip.MustParseAddr("10.0.0.1")}, func() []string { return lines })
}

// If a line of Forwarded is broken anywhere, the extent of its quotes is
// unknown. So the whole line is rejected, wherever the valid element is.
func TestABrokenElementSpoilsItsLineOfForwarded(t *testing.T) {
	f := finder(t, clientaddr.Options{TrustedProxies: proxies, Header: "Forwarded"})
	for _, broken := range []string{
		"=x", `="x"`, "=", "x", "for", "for x=y", "for =1.2.3.4", "for= 1.2.3.4", `fo"r=1.2.3.4`, `"for"=1.2.3.4`, `for="1.2.3.4`,
		`for="1.2.3.4\`, `for="1.2.3.4"x`, `for=1.2.3.4"`, "for=1.2.3.4 x", "for=1.2.3.4;for=1.2.3.4", "for=1.2.3.4;FOR=x", "a=b;=c",
		"a=b;c", "a=b; ;c", "for=1.2.3.4;by",
	} {
		for _, line := range []string{broken + ", for=198.51.100.9", "for=198.51.100.9, " + broken, broken, "for=198.51.100.9, " + broken + ", for=10.0.0.2"} {
			a, err := behind(f, line)
			assert.ErrorIs(t, err, keyfunc.ErrMalformedKey, line)
			assert.Equal(t, netip.Addr{}, a, line)
		}
		a, err := behind(f, broken, "for=198.51.100.9")
		require.NoError(t, err, "an own line of the client, which is not read: %s", broken)
		assert.Equal(t, "198.51.100.9", a.String(), broken)
		_, err = behind(f, "for=198.51.100.9", broken)
		assert.ErrorIs(t, err, keyfunc.ErrMalformedKey, broken)
	}
}

// An entry that is not an address counts neither as the client nor as a proxy.
func TestAnEntryThatIsNoAddressIsNotSkipped(t *testing.T) {
	list := finder(t, clientaddr.Options{TrustedProxies: proxies})
	forwarded := finder(t, clientaddr.Options{TrustedProxies: proxies, Header: "Forwarded"})
	for _, bad := range []string{
		"", "unknown", "_hidden", "1.2.3", "1.2.3.4.5", "01.2.3.4", "1.2.3.256", "10.0.0.1%eth0", "[10.0.0.1]", "10.0.0.1:", "10.0.0.1:x",
		"10.0.0.1:123456", "::1:80:", "[::1", "::1]", "[::1]80", "[::1]:", "fe80::1%", "1.2.3.4 5.6.7.8",
	} {
		for _, line := range []string{bad + ", 10.0.0.2", "6.6.6.6, " + bad, "6.6.6.6," + bad + ",10.0.0.2"} {
			_, err := behind(list, line)
			assert.ErrorIs(t, err, keyfunc.ErrMalformedKey, line)
		}
		a, err := behind(list, bad+", 198.51.100.9")
		require.NoError(t, err, "the client has written what comes before it: %s", bad)
		assert.Equal(t, "198.51.100.9", a.String(), bad)

		quoted := `for="` + bad + `"`
		for _, line := range []string{quoted + ", for=10.0.0.2", "for=6.6.6.6, " + quoted} {
			_, err := behind(forwarded, line)
			assert.ErrorIs(t, err, keyfunc.ErrMalformedKey, line)
		}
		a, err = behind(forwarded, quoted+", for=198.51.100.9")
		require.NoError(t, err, quoted)
		assert.Equal(t, "198.51.100.9", a.String(), quoted)
	}
}

func TestFieldsOfOneAddressHoldOneAddress(t *testing.T) {
	f, err := clientaddr.New(clientaddr.Options{Header: "x-real-ip", TrustedProxies: proxies})
	require.NoError(t, err)
	assert.Equal(t, "X-Real-Ip", f.Name())
	for _, lines := range [][]string{{"198.51.100.9"}, {" 198.51.100.9\t"}, {"198.51.100.9:80"}, {"::ffff:c633:6409"}} {
		a, err := behind(f, lines...)
		require.NoError(t, err)
		assert.Equal(t, "198.51.100.9", a.String())
	}
	for _, lines := range [][]string{{"x, 198.51.100.9"}, {"x 198.51.100.9"}, {"198.51.100.9, x"}, {"x", "198.51.100.9"}, {"198.51.100.9", "198.51.100.9"}, {" "}} {
		_, err := behind(f, lines...)
		assert.ErrorIs(t, err, keyfunc.ErrMalformedKey, lines)
	}
	for _, lines := range [][]string{nil, {""}} {
		_, err := behind(f, lines...)
		assert.ErrorIs(t, err, keyfunc.ErrNoKey, lines)
	}
}

func TestHeaderOfAPeerThatIsNotTrustedIsNotRead(t *testing.T) {
	for _, f := range []*clientaddr.Finder{clientaddr.Remote(), finder(t, clientaddr.Options{TrustedProxies: proxies, TrustUnixSockets: true})} {
		a, err := f.Find(clientaddr.Peer{Addr: netip.MustParseAddr("2001:db8:1:2:3:4:5:6")}, func() []string { panic("asked") })
		require.NoError(t, err)
		assert.Equal(t, "2001:db8:1:2::", a.String())
		_, err = f.Find(clientaddr.Peer{}, func() []string { panic("asked") })
		assert.ErrorIs(t, err, keyfunc.ErrMalformedKey)
	}
}

// Only a Unix socket's peer is trusted as one. Its name makes no peer a proxy.
func TestPeersOfUnixSockets(t *testing.T) {
	lines := func() []string { return []string{"198.51.100.9"} }
	named := clientaddr.Peer{Addr: netip.MustParseAddr("10.0.0.1"), Unix: true}
	for name, row := range map[string]struct {
		opts clientaddr.Options
		ok   bool
	}{
		"nobody trusted":             {clientaddr.Options{}, false},
		"proxies trusted":            {clientaddr.Options{TrustedProxies: proxies}, false},
		"proxies trusted, with hops": {clientaddr.Options{TrustedProxies: proxies, TrustedHops: 1}, false},
		"everyone trusted":           {clientaddr.Options{TrustedHops: 1}, true},
		"sockets trusted":            {clientaddr.Options{TrustUnixSockets: true}, true},
		"sockets and hops":           {clientaddr.Options{TrustUnixSockets: true, TrustedHops: 1}, true},
	} {
		for _, peer := range []clientaddr.Peer{{Unix: true}, named} {
			a, err := finder(t, row.opts).Find(peer, lines)
			if row.ok {
				require.NoError(t, err, name)
				assert.Equal(t, "198.51.100.9", a.String(), name)
			} else {
				assert.ErrorIs(t, err, keyfunc.ErrMalformedKey, name)
			}
		}
	}
}

func TestUnixSocketsAreKnownByTheServersOwnAddress(t *testing.T) {
	over := func(a any) bool {
		return clientaddr.OverUnix(context.WithValue(context.Background(), http.LocalAddrContextKey, a))
	}
	assert.False(t, clientaddr.OverUnix(context.Background()))
	assert.False(t, over(&net.TCPAddr{}))
	assert.False(t, over("unix"))
	for _, network := range []string{"unix", "unixgram", "unixpacket"} {
		assert.True(t, over(&net.UnixAddr{Net: network}))
	}
}

// No broken line causes a panic, and the returned client is never a proxy.
func FuzzForwarded(f *testing.F) {
	for _, line := range []string{`for=1.2.3.4, for="[::1]:80";by=x`, `for="a\"b"`, "=x, for=198.51.100.9", ";;=,"} {
		f.Add(line, "for=10.0.0.2")
	}
	o := clientaddr.Options{TrustedProxies: proxies, Header: "Forwarded"}
	f.Fuzz(func(t *testing.T, first, second string) {
		a, err := behind(finder(t, o), first, second)
		if err == nil {
			assert.True(t, a.IsValid())
			assert.False(t, proxies[0].Contains(a))
			return
		}
		assert.Equal(t, netip.Addr{}, a)
		long := strings.TrimSpace(first)
		assert.False(t, len(long) > 8 && strings.Contains(err.Error(), long), "the text is not told")
	})
}
