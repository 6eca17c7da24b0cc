package httplimit_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/keyfunc"
)

// boundTo returns a client of the Unix socket "s" whose own end is a file of that name.
func boundTo(name string) *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		d := net.Dialer{LocalAddr: &net.UnixAddr{Name: name, Net: "unix"}}
		return d.DialContext(ctx, "unix", "s")
	}}}
}

func TestTheFileNameOfAUnixSocketsClientIsNoAddress(t *testing.T) {
	t.Chdir(t.TempDir())
	lis, err := net.Listen("unix", "s")
	require.NoError(t, err)
	behindProxy, err := httplimit.ClientIP(httplimit.ClientIPOptions{TrustedProxies: prefixes(t, "10.0.0.0/8")})
	require.NoError(t, err)
	seen := make(chan string, 10)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		seen <- r.RemoteAddr
		_, err := httplimit.RemoteIP(r)
		assert.ErrorIs(t, err, keyfunc.ErrMalformedKey)
		_, err = behindProxy(r)
		assert.ErrorIs(t, err, keyfunc.ErrMalformedKey)
	}))
	require.NoError(t, s.Listener.Close())
	s.Listener = lis
	s.Start()
	defer s.Close()
	for _, name := range []string{"10.0.0.1", "10.0.0.2:80"} {
		r, err := http.NewRequest("GET", "http://server/", nil)
		require.NoError(t, err)
		r.Header.Set("X-Forwarded-For", "203.0.113.1")
		resp, err := boundTo(name).Do(r)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, name, <-seen, "what the server takes for the client's address")
	}
}

// nginx on the same host connects over a Unix socket. Its address is no address; its
// header is believed if the socket is trusted.
func TestPeersOfAUnixSocketMayBeTrusted(t *testing.T) {
	list := httplimit.ClientIPOptions{TrustUnixSockets: true, TrustedProxies: prefixes(t, "10.0.0.0/8")}
	hops := httplimit.ClientIPOptions{TrustUnixSockets: true, TrustedHops: 2}
	single := httplimit.ClientIPOptions{TrustUnixSockets: true, Header: "x-real-ip", IPv6Bits: 56}
	forwarded := httplimit.ClientIPOptions{TrustUnixSockets: true, Header: "Forwarded"}
	unix := func(r *http.Request) *http.Request {
		r.RemoteAddr = "@"
		return r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, &net.UnixAddr{Name: "s", Net: "unix"}))
	}
	for name, row := range map[string]struct {
		opts httplimit.ClientIPOptions
		r    *http.Request
		want string
	}{
		"a list":                      {list, unix(from("", "X-Forwarded-For", "6.6.6.6, 203.0.113.7, 10.0.0.1")), "203.0.113.7"},
		"a list without the client":   {list, unix(from("", "X-Forwarded-For", "10.0.0.1")), noKey},
		"Forwarded":                   {forwarded, unix(from("", "Forwarded", "for=6.6.6.6, for=203.0.113.7")), "203.0.113.7"},
		"hops":                        {hops, unix(from("", "X-Forwarded-For", "6.6.6.6, 203.0.113.7, 198.51.100.1")), "203.0.113.7"},
		"hops of a peer by TCP":       {hops, from("192.0.2.1:80", "X-Forwarded-For", "6.6.6.6, 203.0.113.7"), "192.0.2.1"},
		"one address":                 {single, unix(from("", "X-Real-Ip", "203.0.113.7")), "203.0.113.7"},
		"one address, cut":            {single, unix(from("", "X-Real-Ip", "2001:db8:1:2345::1")), "2001:db8:1:2300::"},
		"two addresses":               {single, unix(from("", "X-Real-Ip", "203.0.113.7", "203.0.113.8")), malformed},
		"no address":                  {single, unix(from("", "X-Real-Ip")), noKey},
		"one address, peer by TCP":    {single, from("192.0.2.1:80", "X-Real-Ip", "6.6.6.6"), "192.0.2.1"},
		"no address, not a socket":    {single, from("@", "X-Real-Ip", "6.6.6.6"), malformed},
		"not trusted":                 {httplimit.ClientIPOptions{TrustedProxies: prefixes(t, "10.0.0.0/8")}, unix(from("", "X-Forwarded-For", "6.6.6.6")), malformed},
		"not trusted, with hops":      {httplimit.ClientIPOptions{TrustedHops: 1, TrustedProxies: prefixes(t, "10.0.0.0/8")}, unix(from("", "X-Forwarded-For", "6.6.6.6")), malformed},
		"everyone trusted, with hops": {httplimit.ClientIPOptions{TrustedHops: 1}, unix(from("", "X-Forwarded-For", "6.6.6.6, 203.0.113.7")), "203.0.113.7"},
	} {
		t.Run(name, func(t *testing.T) { assertClient(t, row.want, row.r, clientIP(t, row.opts)) })
	}
}

func TestAHeaderWithOneAddressRefusesOptionsThatCannotBeMeant(t *testing.T) {
	proxies := prefixes(t, "10.0.0.0/8")
	for want, opts := range map[string]httplimit.ClientIPOptions{
		"ClientIPOptions.Header: X-Real-Ip needs":  {Header: "X-Real-IP"},
		"TrustedProxies[0]: 0.0.0.0/0 trusts":      {Header: "X-Real-IP", TrustedProxies: prefixes(t, "0.0.0.0/0")},
		"not the name of a header field":           {Header: "X Real IP", TrustedProxies: proxies},
		"TrustedHops: X-Real-Ip holds one address": {Header: "X-Real-IP", TrustedProxies: proxies, TrustedHops: 1},
	} {
		_, err := httplimit.ClientIP(opts)
		assert.ErrorContains(t, err, want)
	}
}

// A real server on a Unix socket, and a proxy that connects to it.
func TestClientBehindAProxyOnAUnixSocketHasItsOwnLimit(t *testing.T) {
	t.Chdir(t.TempDir())
	lis, err := net.Listen("unix", "s")
	require.NoError(t, err)
	key := clientIP(t, httplimit.ClientIPOptions{Header: "X-Real-IP", TrustUnixSockets: true})
	perIP, err := ratelimit.New[netip.Addr](ratelimit.TokenBucket(ratelimit.PerHour(1), 1), nil)
	require.NoError(t, err)
	limit := ratelimit.Must(httplimit.New(ratelimit.Map(perIP, key), nil))
	s := httptest.NewUnstartedServer(limit.Wrap(http.NotFoundHandler()))
	require.NoError(t, s.Listener.Close())
	s.Listener = lis
	s.Start()
	defer s.Close()
	for i, row := range []struct {
		ip   string
		want int
	}{{"203.0.113.7", 404}, {"203.0.113.7", 429}, {"203.0.113.8", 404}, {"", 400}} {
		r, err := http.NewRequest("GET", "http://server/", nil)
		require.NoError(t, err)
		r.Header.Set("X-Real-IP", row.ip)
		resp, err := boundTo(fmt.Sprint("client", i)).Do(r)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, row.want, resp.StatusCode, row.ip)
	}
}
