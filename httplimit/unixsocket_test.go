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
