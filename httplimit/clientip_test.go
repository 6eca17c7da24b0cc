package httplimit_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
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

// trusted is a proxy of the tests below.
const trusted = "10.0.0.0/8"

func TestTheClientIsFoundByThePeerAndTheHeader(t *testing.T) {
	for name, row := range map[string]struct {
		key                     func(*http.Request) (netip.Addr, error)
		proxy, other, noAddress string // the client, by the peer
	}{
		"RemoteIP":     {httplimit.RemoteIP, "10.0.0.1", "2001:db8:1:2::", ""},
		"zero options": {clientIP(t, httplimit.ClientIPOptions{}), "10.0.0.1", "2001:db8:1:2::", ""},
		"a list":       {clientIP(t, httplimit.ClientIPOptions{TrustedProxies: prefixes(t, trusted)}), "203.0.113.7", "2001:db8:1:2::", ""},
		"one address":  {clientIP(t, httplimit.ClientIPOptions{TrustedProxies: prefixes(t, trusted), Header: "x-real-ip"}), "203.0.113.8", "2001:db8:1:2::", ""},
		"hops":         {clientIP(t, httplimit.ClientIPOptions{TrustedHops: 1}), "203.0.113.7", "203.0.113.7", "203.0.113.7"},
	} {
		for peer, want := range map[string]string{"10.0.0.1:80": row.proxy, "[2001:db8:1:2:3::]:80": row.other, "@": row.noAddress} {
			r := from(peer, "X-Forwarded-For", "6.6.6.6, 203.0.113.7")
			r.Header.Set("X-Real-IP", "203.0.113.8")
			got, err := row.key(r)
			if want == "" {
				assert.ErrorIs(t, err, keyfunc.ErrMalformedKey, name)
				continue
			}
			require.NoError(t, err, name)
			assert.Equal(t, want, got.String(), name)
		}
	}
}

func TestMistakesOfClientIPAreNamed(t *testing.T) {
	_, err := httplimit.ClientIP(httplimit.ClientIPOptions{TrustedHops: -1})
	assert.EqualError(t, err, "httplimit: ClientIPOptions.TrustedHops is -1, want 0 for none, or more")
}

func TestIPKeysAllocateNothing(t *testing.T) {
	proxies := prefixes(t, trusted)
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
	opts := httplimit.ClientIPOptions{TrustedProxies: prefixes(b, trusted)}
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
