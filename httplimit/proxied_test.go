package httplimit_test

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
)

func TestPerIPBehindAProxyIsWarnedOfOnce(t *testing.T) {
	const warning = `level=WARN msg="httplimit: PerIP gives one budget to all clients of a proxy: use PerKey with ClientIP" field=`
	for name, row := range map[string]struct {
		peer, field, value string
		warns              bool
	}{
		"a proxy of the network":    {"10.0.0.7:1", "X-Forwarded-For", "192.0.2.1", true},
		"a proxy of the machine":    {"127.0.0.1:1", "Forwarded", "for=192.0.2.1", true},
		"over IPv6":                 {"[::1]:1", "X-Real-Ip", "192.0.2.1", true},
		"a unique local address":    {"[fd00::1]:1", "Cf-Connecting-Ip", "192.0.2.1", true},
		"a link-local address":      {"[fe80::1%eth0]:1", "True-Client-Ip", "192.0.2.1", true},
		"a cluster's own addresses": {"100.64.1.2:1", "X-Forwarded-For", "192.0.2.1", true},
		"a public address":          {"192.0.2.1:1", "X-Forwarded-For", "198.51.100.1", false},
		"a private client":          {"10.0.0.7:1", "X-Request-Id", "7", false},
		"no address":                {"@", "X-Forwarded-For", "192.0.2.1", false},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			opts := &httplimit.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}
			m, err := httplimit.PerIP(ratelimit.FixedWindow(ratelimit.PerHour(100)), opts)
			require.NoError(t, err)
			for range 5 {
				r := httptest.NewRequest("GET", "/", nil)
				r.RemoteAddr = row.peer
				r.Header.Set(row.field, row.value)
				send(m.Wrap(ok), r)
			}
			if !row.warns {
				assert.NotContains(t, log.String(), "WARN")
				return
			}
			assert.Equal(t, 1, strings.Count(log.String(), "WARN"))
			assert.Contains(t, log.String(), warning+row.field)
			assert.NotContains(t, log.String(), row.value)

			log.Reset()
			key, err := httplimit.ClientIP(httplimit.ClientIPOptions{TrustedHops: 1, Header: "X-Forwarded-For"})
			require.NoError(t, err)
			m, err = httplimit.PerKey(ratelimit.FixedWindow(ratelimit.PerHour(100)), key, opts)
			require.NoError(t, err)
			r := with("X-Forwarded-For: 192.0.2.1")
			r.RemoteAddr = row.peer
			send(m.Wrap(ok), r)
			assert.Empty(t, log.String())
		})
	}
}

func TestARealProxyIsWarnedOf(t *testing.T) {
	var log bytes.Buffer
	m, err := httplimit.PerIP(ratelimit.FixedWindow(ratelimit.PerHour(100)), &httplimit.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, err)
	backend := httptest.NewServer(m.Wrap(ok))
	defer backend.Close()
	to, err := url.Parse(backend.URL)
	require.NoError(t, err)
	proxy := httptest.NewServer(httputil.NewSingleHostReverseProxy(to))
	defer proxy.Close()
	for range 3 {
		resp, err := http.Get(proxy.URL)
		require.NoError(t, err)
		body(t, resp)
	}
	assert.Equal(t, 1, strings.Count(log.String(), "use PerKey with ClientIP"))
}
