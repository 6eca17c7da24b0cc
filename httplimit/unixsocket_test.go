package httplimit_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/httplimit"
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
		assert.ErrorIs(t, err, httplimit.ErrMalformedKey)
		_, err = behindProxy(r)
		assert.ErrorIs(t, err, httplimit.ErrMalformedKey)
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
