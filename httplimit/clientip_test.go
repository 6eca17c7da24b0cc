package httplimit_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/keyfunc"
)

// from is a request from that peer with these lines of that header.
func from(peer, header string, lines ...string) *http.Request {
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = peer
	r.Header[header] = lines
	return r
}

func clientIP(t testing.TB, opts httplimit.ClientIPOptions) func(*http.Request) (netip.Addr, error) {
	t.Helper()
	key, err := httplimit.ClientIP(opts)
	require.NoError(t, err)
	return key
}

// trusted are the proxies of the tests below.
var trusted = []string{"10.0.0.0/8", "fd00::/8", "::ffff:172.16.0.0/108"}

// The kinds of results in the rows besides an address.
const (
	malformed = "malformed"
	noKey     = "no key"
)

func assertClient(t *testing.T, want string, r *http.Request, key func(*http.Request) (netip.Addr, error)) {
	t.Helper()
	got, err := key(r)
	switch want {
	case malformed:
		assert.ErrorIs(t, err, keyfunc.ErrMalformedKey)
		assert.Equal(t, netip.Addr{}, got)
	case noKey:
		assert.ErrorIs(t, err, keyfunc.ErrNoKey)
		assert.Equal(t, netip.Addr{}, got)
	default:
		require.NoError(t, err)
		assert.Equal(t, want, got.String())
	}
}

func TestPeerIsTheClientUnlessItIsTrusted(t *testing.T) {
	key := clientIP(t, httplimit.ClientIPOptions{TrustedProxies: prefixes(t, trusted...)})
	for peer, want := range map[string]string{
		"192.0.2.1:1234":                "192.0.2.1",
		"192.0.2.1":                     "192.0.2.1",
		"[2001:db8:1:2:3:4:5:6]:443":    "2001:db8:1:2::",
		"2001:db8:1:2:3:4:5:6":          "2001:db8:1:2::",
		"[fe80::1%eth0]:443":            "fe80::",
		"[::ffff:192.0.2.1]:80":         "192.0.2.1",
		"[::ffff:c000:201]:80":          "192.0.2.1",
		"[2001:db8::1.2.3.4]:80":        "2001:db8::",
		"@":                             malformed,
		"":                              malformed,
		"/run/app.sock":                 malformed,
		"[::1":                          malformed,
		"[192.0.2.1]:80":                malformed,
		"192.0.2.1:port":                malformed,
		"192.0.2.1%eth0:80":             malformed,
		"[::ffff:192.0.2.1%eth0]:80":    malformed,
		"[fe80::1%]:80":                 malformed,
		"192.0.2.010:80":                malformed,
		"192.0.2.1:123456":              malformed,
		strings.Repeat("1", 10_000):     malformed,
		"[2001:db8:1:2:3:4:5:6]443":     malformed,
		"[2001:db8:1:2:3:4:5:6]:443:80": malformed,
	} {
		t.Run(peer[:min(len(peer), 40)], func(t *testing.T) {
			assertClient(t, want, from(peer, "X-Forwarded-For", "203.0.113.66"), key)
		})
	}
}

func TestHeaderThatProxiesDoNotWriteIsNotRead(t *testing.T) {
	proxies := prefixes(t, trusted...)
	assertClient(t, noKey, from("10.0.0.1:80", "Forwarded", "for=6.6.6.6"),
		clientIP(t, httplimit.ClientIPOptions{TrustedProxies: proxies}))
	assertClient(t, noKey, from("10.0.0.1:80", "X-Forwarded-For", "6.6.6.6"),
		clientIP(t, httplimit.ClientIPOptions{TrustedProxies: proxies, Header: "Forwarded"}))
	assertClient(t, noKey, from("10.0.0.1:80", "X-Real-Ip", "6.6.6.6"),
		clientIP(t, httplimit.ClientIPOptions{TrustedProxies: proxies}))
}

func TestZeroClientIPOptionsTrustNoPeer(t *testing.T) {
	for _, key := range []func(*http.Request) (netip.Addr, error){clientIP(t, httplimit.ClientIPOptions{}), httplimit.RemoteIP} {
		assertClient(t, "10.0.0.1", from("10.0.0.1:80", "X-Forwarded-For", "6.6.6.6"), key)
		assertClient(t, "2001:db8:1:2::", from("[2001:db8:1:2:3::]:80", "X-Forwarded-For", "6.6.6.6"), key)
		assertClient(t, malformed, from("@", "X-Forwarded-For", "6.6.6.6"), key)
	}
}

func TestIPKeysAllocateNothing(t *testing.T) {
	proxies := prefixes(t, trusted...)
	xff := clientIP(t, httplimit.ClientIPOptions{TrustedProxies: proxies})
	fwd := clientIP(t, httplimit.ClientIPOptions{TrustedProxies: proxies, Header: "Forwarded"})
	for name, row := range map[string]struct {
		key func(*http.Request) (netip.Addr, error)
		r   *http.Request
	}{
		"IPv4":            {httplimit.RemoteIP, from("192.0.2.1:1234", "X")},
		"IPv6":            {httplimit.RemoteIP, from("[2001:db8::1]:1234", "X")},
		"IPv6 with zone":  {httplimit.RemoteIP, from("[fe80::1%eth0]:1234", "X")},
		"X-Forwarded-For": {xff, from("10.0.0.1:80", "X-Forwarded-For", "6.6.6.6, 2001:db8::1, ::ffff:10.0.0.1", "10.0.0.3")},
		"Forwarded":       {fwd, from("10.0.0.1:80", "Forwarded", `for=6.6.6.6, for="[2001:db8::1]:80";proto=https, for=10.0.0.2`)},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Zero(t, testing.AllocsPerRun(100, func() {
				if _, err := row.key(row.r); err != nil {
					t.Fatal(err)
				}
			}))
		})
	}
}

func BenchmarkClientIP(b *testing.B) {
	opts := httplimit.ClientIPOptions{TrustedProxies: prefixes(b, trusted...)}
	for name, r := range map[string]*http.Request{
		"peer": from("192.0.2.1:1234", "X"),
		"xff":  from("10.0.0.1:80", "X-Forwarded-For", "6.6.6.6, 203.0.113.7, 10.0.0.2"),
	} {
		b.Run(fmt.Sprint("source=", name), func(b *testing.B) {
			key := clientIP(b, opts)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := key(r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
