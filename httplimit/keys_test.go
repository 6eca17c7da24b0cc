package httplimit_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/keyfunc"
)

// with returns a request with these header lines, each "Name: value".
func with(lines ...string) *http.Request {
	r := httptest.NewRequest("GET", "/", nil)
	for _, line := range lines {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Add(name, value)
	}
	return r
}

func TestHeaderKeys(t *testing.T) {
	key := httplimit.Header("x-tenant")
	for name, row := range map[string]struct {
		r    *http.Request
		want string
		err  error
	}{
		"one value":                 {with("X-Tenant: acme"), "acme", nil},
		"missing":                   {with(), "", keyfunc.ErrNoKey},
		"empty":                     {with("X-Tenant: "), "", keyfunc.ErrNoKey},
		"as long as may be kept":    {with("X-Tenant: " + strings.Repeat("a", 1024)), strings.Repeat("a", 1024), nil},
		"longer":                    {with("X-Tenant: " + strings.Repeat("a", 1025)), "", keyfunc.ErrMalformedKey},
		"several lines":             {with("X-Tenant: acme", "X-Tenant: other"), "", keyfunc.ErrMalformedKey},
		"an empty and another line": {with("X-Tenant: ", "X-Tenant: other"), "", keyfunc.ErrMalformedKey},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := key(row.r)
			assert.Equal(t, row.want, got)
			assert.ErrorIs(t, err, row.err)
		})
	}
}

func TestSecretsAreKeptAsHashes(t *testing.T) {
	want := keyfunc.Hash(sha256.Sum256([]byte("s3cret")))
	assert.Equal(t, want, keyfunc.HashOf("s3cret"))
	for name, row := range map[string]struct {
		key func(*http.Request) (keyfunc.Hash, error)
		r   *http.Request
		err error
	}{
		"API key":                           {httplimit.APIKey("X-API-Key"), with("X-Api-Key: s3cret"), nil},
		"no API key":                        {httplimit.APIKey("X-API-Key"), with(), keyfunc.ErrNoKey},
		"two API keys":                      {httplimit.APIKey("X-API-Key"), with("X-Api-Key: s3cret", "X-Api-Key: b"), keyfunc.ErrMalformedKey},
		"bearer token":                      {httplimit.BearerToken, with("Authorization: Bearer s3cret"), nil},
		"scheme in another case":            {httplimit.BearerToken, with("Authorization: bEARER s3cret"), nil},
		"more spaces":                       {httplimit.BearerToken, with("Authorization: Bearer   s3cret"), nil},
		"another scheme":                    {httplimit.BearerToken, with("Authorization: Basic s3cret"), keyfunc.ErrNoKey},
		"no scheme":                         {httplimit.BearerToken, with("Authorization: s3cret"), keyfunc.ErrNoKey},
		"no token":                          {httplimit.BearerToken, with("Authorization: Bearer"), keyfunc.ErrNoKey},
		"blank token":                       {httplimit.BearerToken, with("Authorization: Bearer  "), keyfunc.ErrNoKey},
		"no Authorization":                  {httplimit.BearerToken, with(), keyfunc.ErrNoKey},
		"token with a comment of one's own": {httplimit.BearerToken, with("Authorization: Bearer s3cret 1"), keyfunc.ErrMalformedKey},
		"tab after the scheme":              {httplimit.BearerToken, with("Authorization: Bearer\ts3cret"), keyfunc.ErrMalformedKey},
		"token with a comma":                {httplimit.BearerToken, with("Authorization: Bearer s3cret,b"), keyfunc.ErrMalformedKey},
		"two credentials":                   {httplimit.BearerToken, with("Authorization: Bearer s3cret", "Authorization: Bearer b"), keyfunc.ErrMalformedKey},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := row.key(row.r)
			assert.ErrorIs(t, err, row.err)
			if row.err == nil {
				assert.Equal(t, want, got)
				return
			}
			assert.Zero(t, got)
			assert.NotContains(t, err.Error(), "s3cret")
		})
	}
	assert.Regexp(t, "^[0-9a-f]{16}$", want.String())
	assert.NotContains(t, fmt.Sprintf("%v %+v", want, want), "s3cret")
}

func TestRouteKeysAreThePatternOfTheMux(t *testing.T) {
	var pattern, tenant string
	var err, err2 error
	mux := http.NewServeMux()
	mux.HandleFunc("GET /tenants/{tenant}/items", func(_ http.ResponseWriter, r *http.Request) {
		pattern, err = httplimit.Pattern(r)
		tenant, err2 = httplimit.PathValue("tenant")(r)
	})
	send(mux, httptest.NewRequest("GET", "/tenants/acme/items", nil))
	require.NoError(t, err)
	require.NoError(t, err2)
	assert.Equal(t, "GET /tenants/{tenant}/items", pattern)
	assert.Equal(t, "acme", tenant)

	outside := httptest.NewRequest("GET", "/tenants/acme/items", nil)
	_, err = httplimit.Pattern(outside)
	assert.ErrorIs(t, err, keyfunc.ErrNoKey)
	assert.ErrorIs(t, err, keyfunc.ErrMisconfigured)
	_, err = httplimit.PathValue("tenant")(outside)
	assert.ErrorIs(t, err, keyfunc.ErrNoKey)
	assert.ErrorIs(t, err, keyfunc.ErrMisconfigured)
	outside.Pattern = "/tenants/{tenant...}"
	_, err = httplimit.PathValue("tenant")(outside)
	assert.ErrorIs(t, err, keyfunc.ErrNoKey)
	assert.NotErrorIs(t, err, keyfunc.ErrMisconfigured, "the client has left it empty")
}

// A missing key is an error, or its layer is left out. Requests without a key never share one bucket.
func TestMissingKeyIsAnErrorOrASkippedLayer(t *testing.T) {
	limits := func(key func(*http.Request) (keyfunc.Hash, error)) http.Handler {
		perKey := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerMinute(1)).Named("key"), &ratelimit.Options[keyfunc.Hash]{Clock: new(fakeClock)}))
		return middleware(t, ratelimit.Map(perKey, key), httplimit.Options{}).Wrap(ok)
	}
	required := limits(httplimit.APIKey("X-API-Key"))
	optional := limits(keyfunc.Optional(httplimit.APIKey("X-API-Key")))
	for range 3 {
		assert.Equal(t, http.StatusBadRequest, send(required, with()).StatusCode)
		resp := send(optional, with())
		assert.Equal(t, http.StatusOK, resp.StatusCode)
		assert.Empty(t, resp.Header.Get("RateLimit"), "there is nothing to tell")
	}
	for _, h := range []http.Handler{required, optional} {
		assert.Equal(t, http.StatusOK, send(h, with("X-Api-Key: a")).StatusCode)
		assert.Equal(t, http.StatusTooManyRequests, send(h, with("X-Api-Key: a")).StatusCode)
		assert.Equal(t, http.StatusOK, send(h, with("X-Api-Key: b")).StatusCode)
	}
}

// A key is kept for as long as its budget. It must not keep the rest of the request.
func TestKeysKeepNothingElseOfTheRequestInMemory(t *testing.T) {
	junk := strings.Repeat("x", 100<<10)
	for name, key := range map[string]func(*http.Request) (string, error){
		"path value": httplimit.PathValue("t"), "header": httplimit.Header("X-Tenant"),
	} {
		t.Run(name, func(t *testing.T) {
			before := testsize.Heap()
			var keys []string
			for range 100 {
				raw := "GET /items?" + junk + " HTTP/1.1\r\nHost: x\r\nX-Tenant: acme\r\n\r\n"
				r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(raw)))
				require.NoError(t, err)
				r.SetPathValue("t", r.URL.Path[1:])
				k, err := key(r)
				require.NoError(t, err)
				keys = append(keys, k)
			}
			assert.Less(t, testsize.Heap(), before+1<<20, "10 MiB of requests have passed")
			runtime.KeepAlive(keys)
		})
	}
}

// from returns a request from the peer, with these lines of the header.
func from(peer, header string, lines ...string) *http.Request {
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = peer
	r.Header[header] = lines
	return r
}

func clientIP(t testing.TB, opts httplimit.ClientIPOptions) func(*http.Request) (netip.Addr, error) {
	t.Helper()
	return ratelimit.Must(httplimit.ClientIP(opts))
}

// trusted has the trusted proxies of the tests below.
const trusted = "10.0.0.0/8"

func TestTheClientIsFoundByThePeerAndTheHeader(t *testing.T) {
	for name, row := range map[string]struct {
		key                     func(*http.Request) (netip.Addr, error)
		proxy, other, noAddress string // the client for a request by the proxy, by another peer, and by a peer without an address
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

// boundTo returns a client of the Unix socket "s". Its own end of the connection is bound to a file of this name.
func boundTo(name string) *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		d := net.Dialer{LocalAddr: &net.UnixAddr{Name: name, Net: "unix"}}
		return d.DialContext(ctx, "unix", "s")
	}}}
}

func TestTheFileNameOfAUnixSocketsClientIsNoAddress(t *testing.T) {
	t.Chdir(t.TempDir())
	lis := ratelimit.Must(net.Listen("unix", "s"))
	behindProxy := ratelimit.Must(httplimit.ClientIP(httplimit.ClientIPOptions{TrustedProxies: prefixes(t, "10.0.0.0/8")}))
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
		r := ratelimit.Must(http.NewRequest("GET", "http://server/", nil))
		r.Header.Set("X-Forwarded-For", "203.0.113.1")
		resp, err := boundTo(name).Do(r)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, name, <-seen, "what the server takes for the client's address")
	}
}

// A proxy connects to a real server on a Unix socket.
func TestClientBehindAProxyOnAUnixSocketHasItsOwnLimit(t *testing.T) {
	t.Chdir(t.TempDir())
	lis := ratelimit.Must(net.Listen("unix", "s"))
	key := clientIP(t, httplimit.ClientIPOptions{Header: "X-Real-IP", TrustUnixSockets: true})
	perIP := ratelimit.Must(ratelimit.New[netip.Addr](ratelimit.TokenBucket(ratelimit.PerHour(1), 1), nil))
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
		r := ratelimit.Must(http.NewRequest("GET", "http://server/", nil))
		r.Header.Set("X-Real-IP", row.ip)
		resp, err := boundTo(fmt.Sprint("client", i)).Do(r)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, row.want, resp.StatusCode, row.ip)
	}
}

// Package edge tests when the warning is logged.
func TestPerIPBehindAProxyIsWarnedOf(t *testing.T) {
	var log bytes.Buffer
	m := ratelimit.Must(httplimit.PerIP(ratelimit.FixedWindow(ratelimit.PerHour(100)), &httplimit.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}))
	send(m.Wrap(ok), from("10.0.0.7:1", "X-Forwarded-For", "192.0.2.1"))
	assert.Contains(t, log.String(), `msg="httplimit: PerIP gives one budget to all clients of a proxy: use PerKey with ClientIP" field=X-Forwarded-For`)
}

func TestARealProxyIsWarnedOf(t *testing.T) {
	var log bytes.Buffer
	m := ratelimit.Must(httplimit.PerIP(ratelimit.FixedWindow(ratelimit.PerHour(100)), &httplimit.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}))
	backend := started(t, m.Wrap(ok))
	proxy := started(t, httputil.NewSingleHostReverseProxy(ratelimit.Must(url.Parse(backend.URL))))
	for range 3 {
		resp, err := http.Get(proxy.URL)
		require.NoError(t, err)
		body(t, resp)
	}
	assert.Equal(t, 1, strings.Count(log.String(), "use PerKey with ClientIP"))
}
