package grpclimit_test

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/peer"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/keyfunc"
)

// callWith returns a call with metadata. Keys and values alternate in pairs.
func callWith(pairs ...string) *grpclimit.Call {
	return grpclimit.NewCall(incoming(tcp("192.0.2.1:4711"), pairs...), "/pkg.Service/Method", nil)
}

// Key functions and attributes of rules read the same values of metadata, as in httplimit they read the same header fields.
func TestMetadataAreAKey(t *testing.T) {
	long := strings.Repeat("long", 1000)
	for name, row := range map[string]struct {
		name   string
		values []string
		want   string
		err    error
	}{
		"a value":                           {"X-Tenant", []string{"acme"}, "acme", nil},
		"white space before it":             {"x-tenant", []string{" k"}, "k", nil},
		"white space behind it":             {"x-tenant", []string{"k\t"}, "k", nil},
		"white space around it":             {"x-tenant", []string{" \tk  "}, "k", nil},
		"missing":                           {"x-tenant", nil, "", keyfunc.ErrNoKey},
		"empty":                             {"x-tenant", []string{""}, "", keyfunc.ErrNoKey},
		"a space":                           {"x-tenant", []string{" "}, "", keyfunc.ErrNoKey},
		"white space alone":                 {"x-tenant", []string{"\t \t"}, "", keyfunc.ErrNoKey},
		"several":                           {"x-tenant", []string{"a", "a"}, "", keyfunc.ErrMalformedKey},
		"binary, and a tab":                 {"User-Bin", []string{"\x09"}, "\x09", nil}, // bytes, and not text
		"binary, and a space":               {"user-bin", []string{"\x20"}, "\x20", nil},
		"binary, and a space before a byte": {"user-bin", []string{" k"}, " k", nil},
		"binary, and a space behind it":     {"user-bin", []string{"k "}, "k ", nil},
		"binary, and a zero":                {"user-bin", []string{"\x00"}, "\x00", nil},
		"binary, and no text":               {"user-bin", []string{"\xff\x20"}, "\xff\x20", nil},
		"binary, missing":                   {"user-bin", nil, "", keyfunc.ErrNoKey},
		"binary, empty":                     {"user-bin", []string{""}, "", keyfunc.ErrNoKey},
		"binary, several":                   {"user-bin", []string{"a", "a"}, "", keyfunc.ErrMalformedKey},
	} {
		t.Run(name, func(t *testing.T) {
			var pairs []string
			for _, v := range row.values {
				pairs = append(pairs, strings.ToLower(row.name), v)
			}
			key, err := grpclimit.Metadata(row.name)(callWith(pairs...))
			secret, secretErr := keyfunc.APIKey(grpclimit.Metadata(row.name))(callWith(pairs...))
			got, ok := grpclimit.PolicyRequest(callWith(pairs...), nil).Attribute("header:" + row.name)
			assert.Equal(t, []any{row.want, row.want, row.err == nil}, []any{key, got, ok})
			if row.err != nil {
				assert.ErrorIs(t, err, row.err)
				assert.ErrorIs(t, secretErr, row.err)
				return
			}
			require.NoError(t, err)
			require.NoError(t, secretErr)
			assert.Equal(t, keyfunc.HashOf(row.want), secret)
			if strings.EqualFold(row.name, "x-tenant") { // HTTP/2 may pass this value on
				assert.Equal(t, secret, ratelimit.Must(httplimit.APIKey(row.name)(&http.Request{Header: http.Header{"X-Tenant": row.values}})))
			}
		})
	}
	_, err := grpclimit.Metadata("x-tenant")(callWith("x-tenant", strings.Repeat("x", 1025)))
	assert.ErrorIs(t, err, keyfunc.ErrMalformedKey, "above 1 KiB")
	assert.NotContains(t, err.Error(), "xxx", "no error contains a key's text")
	_, err = grpclimit.Metadata("x-tenant")(new(grpclimit.Call))
	assert.ErrorIs(t, err, keyfunc.ErrNoKey, "a call outside of servers")

	for _, secret := range []string{"s", long} {
		c := callWith("x-api-key", secret, "authorization", "bearer "+secret)
		assert.Equal(t, keyfunc.HashOf(secret), ratelimit.Must(keyfunc.APIKey(grpclimit.Metadata("X-API-Key"))(c)))
		assert.Equal(t, keyfunc.HashOf(secret), ratelimit.Must(keyfunc.BearerToken(grpclimit.Metadata("Authorization"))(c)))
		r := &http.Request{Header: http.Header{"X-Api-Key": {secret}, "Authorization": {"Bearer " + secret}}}
		assert.Equal(t, keyfunc.HashOf(secret), ratelimit.Must(httplimit.APIKey("X-API-Key")(r)))
		assert.Equal(t, keyfunc.HashOf(secret), ratelimit.Must(httplimit.BearerToken(r)))
	}
	token := keyfunc.BearerToken(grpclimit.Metadata("authorization"))
	_, err = token(callWith("authorization", "Basic abc"))
	assert.ErrorIs(t, err, keyfunc.ErrNoKey)
	_, err = token(callWith("authorization", "Bearer a, Bearer b"))
	assert.ErrorIs(t, err, keyfunc.ErrMalformedKey)
}

func TestMethodsAndServicesAreKeys(t *testing.T) {
	long := "/" + strings.Repeat("s", 2000) + "/m"
	for method, row := range map[string]struct {
		method, service       string
		methodErr, serviceErr error
	}{
		"/pkg.v1.Service/Method": {"/pkg.v1.Service/Method", "pkg.v1.Service", nil, nil},
		"":                       {"", "", keyfunc.ErrNoKey, keyfunc.ErrMalformedKey},
		"/":                      {"/", "", nil, keyfunc.ErrMalformedKey},
		"//":                     {"//", "", nil, keyfunc.ErrMalformedKey},
		"Service/Method":         {"Service/Method", "", nil, keyfunc.ErrMalformedKey},
		"/Service":               {"/Service", "", nil, keyfunc.ErrMalformedKey},
		"/Service/":              {"/Service/", "", nil, keyfunc.ErrMalformedKey},
		"//Method":               {"//Method", "", nil, keyfunc.ErrMalformedKey},
		long:                     {"", "", keyfunc.ErrMalformedKey, keyfunc.ErrMalformedKey},
	} {
		got, err := grpclimit.Method(&grpclimit.Call{FullMethod: method})
		assert.Equal(t, row.method, got)
		assert.ErrorIs(t, err, row.methodErr, method)
		got, err = grpclimit.Service(&grpclimit.Call{FullMethod: method})
		assert.Equal(t, row.service, got)
		assert.ErrorIs(t, err, row.serviceErr, method)
	}
}

// TestAddressesAreFoundAsOverHTTP passes the same connection and header to both packages.
func TestAddressesAreFoundAsOverHTTP(t *testing.T) {
	proxies := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	options := map[string]httplimit.ClientIPOptions{
		"nothing trusted": {},
		"proxies":         {TrustedProxies: proxies},
		"hops":            {TrustedHops: 2},
		"both":            {TrustedProxies: proxies, TrustedHops: 1},
		"forwarded":       {TrustedProxies: proxies, Header: "Forwarded"},
		"whole addresses": {TrustedProxies: proxies, IPv6Bits: 128},
		"one address":     {TrustedProxies: proxies, Header: "X-Real-IP"},
	}
	peers := []string{"10.0.0.1:80", "[fd00::1]:80", "192.0.2.7:1234", "[2001:db8:1:2:3::4]:1", "[::ffff:10.0.0.1]:80", "[::ffff:192.0.2.9]:80", "[fe80::1%eth0]:80"}
	values := [][]string{
		nil, {""}, {","}, {"192.0.2.1"}, {"198.51.100.1, 10.0.0.2"}, {"192.0.2.1", "10.0.0.3, 10.0.0.2"}, {"10.0.0.2"},
		{"spoofed, 2001:db8:9:9:9::1, 10.1.1.1"}, {"garbage"}, {"192.0.2.1, garbage, 10.0.0.1"}, {"[2001:db8::1]:443"}, {"::ffff:192.0.2.1"},
		{"for=192.0.2.60;proto=https, for=10.0.0.2"}, {`for="[2001:db8:cafe::17]:4711"`}, {"for=unknown"}, {`for="broken`},
	}
	for name, o := range options {
		overHTTP := ratelimit.Must(httplimit.ClientIP(o))
		overGRPC := ratelimit.Must(grpclimit.ClientIP(o))
		for _, remote := range peers {
			for _, list := range values {
				r := &http.Request{RemoteAddr: remote, Header: http.Header{"X-Forwarded-For": list, "Forwarded": list, "X-Real-Ip": list}}
				var pairs []string
				for _, v := range list {
					pairs = append(pairs, "x-forwarded-for", v, "forwarded", v, "x-real-ip", v)
				}
				c := grpclimit.NewCall(incoming(tcp(remote), pairs...), "", nil)
				want, wantErr := overHTTP(r)
				got, err := overGRPC(c)
				assert.Equal(t, want, got, "%s: %s %q", name, remote, list)
				assert.Equal(t, wantErr, err, "%s: %s %q", name, remote, list)
				want, wantErr = httplimit.RemoteIP(r)
				got, err = grpclimit.RemoteIP(c)
				assert.Equal(t, want, got)
				assert.Equal(t, wantErr, err)
			}
		}
	}
	_, err := grpclimit.ClientIP(httplimit.ClientIPOptions{Header: "x real ip", TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}})
	assert.ErrorContains(t, err, "grpclimit: ClientIPOptions.Header")
	_, err = grpclimit.ClientIP(httplimit.ClientIPOptions{TrustedHops: -1})
	assert.EqualError(t, err, "grpclimit: ClientIPOptions.TrustedHops is -1, want 0 for none, or more")
}

func TestAConnectionWithoutAnIPAddressHasAMalformedKey(t *testing.T) {
	for name, ctx := range map[string]context.Context{
		"no peer":       context.Background(),
		"no address":    peer.NewContext(context.Background(), &peer.Peer{}),
		"nil address":   incoming((*net.TCPAddr)(nil)),
		"a Unix socket": incoming(&net.UnixAddr{Name: "@", Net: "unix"}),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := grpclimit.RemoteIP(grpclimit.NewCall(ctx, "/a/b", nil))
			assert.ErrorIs(t, err, keyfunc.ErrMalformedKey)
		})
	}
	hops := ratelimit.Must(grpclimit.ClientIP(httplimit.ClientIPOptions{TrustedHops: 1}))
	got, err := hops(grpclimit.NewCall(incoming(&net.UnixAddr{}, "x-forwarded-for", "192.0.2.1"), "", nil))
	require.NoError(t, err, "a proxy on the same machine")
	assert.Equal(t, netip.MustParseAddr("192.0.2.1"), got)
}

// fixed are attributes in a map.
type fixed map[string]string

func (f fixed) Attribute(name string) (string, bool) { v, ok := f[name]; return v, ok }

func TestACallHasTheAttributesOfItsHTTPRequest(t *testing.T) {
	c := grpclimit.NewCall(incoming(tcp("[2001:db8::1]:80"), ":authority", "API.Example.:443", "x-tenant", "acme", "twice", "a", "twice", "b", "empty", ""),
		"/pkg.Service/Method", nil)
	r := grpclimit.PolicyRequest(c, fixed{"user": "ann", "header:x-region": "eu"})
	for name, want := range map[string]string{
		"method": "POST", "host": "api.example", "path": "/pkg.Service/Method", "route": "/pkg.Service/Method", "ip": "2001:db8::",
		"header:X-Tenant": "acme", "user": "ann", "header:x-region": "eu",
	} {
		got, ok := r.Attribute(name)
		assert.True(t, ok, name)
		assert.Equal(t, want, got, name)
	}
	for _, name := range []string{"plan", "header:missing", "header:twice", "header:empty", ""} {
		_, ok := r.Attribute(name)
		assert.False(t, ok, name)
	}
	bare := grpclimit.PolicyRequest(new(grpclimit.Call), nil)
	for _, name := range []string{"host", "path", "route", "ip", "user"} {
		_, ok := bare.Attribute(name)
		assert.False(t, ok, name)
	}
}

// behindHTTP is the address of a peer in the form that grpc-go has behind net/http.
type behindHTTP string

func (behindHTTP) Network() string  { return "tcp" }
func (n behindHTTP) String() string { return string(n) }

func TestTheFileNameOfAUnixSocketsClientIsNoAddress(t *testing.T) {
	socket := &net.UnixAddr{Name: "s", Net: "unix"}
	behindProxy := ratelimit.Must(grpclimit.ClientIP(httplimit.ClientIPOptions{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}))
	for name, ctx := range map[string]context.Context{
		"grpc's own server": incoming(&net.UnixAddr{Name: "10.0.0.1", Net: "unix"}, "x-forwarded-for", "203.0.113.1"),
		"with a port":       incoming(&net.UnixAddr{Name: "10.0.0.1:80", Net: "unix"}),
		"behind net/http":   context.WithValue(incoming(behindHTTP("10.0.0.1:80")), http.LocalAddrContextKey, socket),
	} {
		t.Run(name, func(t *testing.T) {
			c := grpclimit.NewCall(ctx, "/pkg.Service/Method", nil)
			_, err := grpclimit.RemoteIP(c)
			assert.ErrorIs(t, err, keyfunc.ErrMalformedKey)
			_, err = behindProxy(c)
			assert.ErrorIs(t, err, keyfunc.ErrMalformedKey)
		})
	}
	a, err := grpclimit.RemoteIP(grpclimit.NewCall(incoming(behindHTTP("10.0.0.1:80")), "", nil))
	require.NoError(t, err)
	assert.Equal(t, netip.MustParseAddr("10.0.0.1"), a)
}

func TestPeersOfAUnixSocketMayBeTrusted(t *testing.T) {
	socket := &net.UnixAddr{Net: "unix"}
	single := ratelimit.Must(grpclimit.ClientIP(httplimit.ClientIPOptions{TrustUnixSockets: true, Header: "x-real-ip"}))
	list := ratelimit.Must(grpclimit.ClientIP(httplimit.ClientIPOptions{TrustUnixSockets: true}))
	for name, ctx := range map[string]context.Context{
		"grpc's own server": incoming(socket, "x-real-ip", "203.0.113.1", "x-forwarded-for", "6.6.6.6, 203.0.113.1"),
		"behind net/http": context.WithValue(incoming(behindHTTP("@"), "x-real-ip", "203.0.113.1", "x-forwarded-for", "203.0.113.1"),
			http.LocalAddrContextKey, socket),
		"the client itself": incoming(tcp("203.0.113.1:80"), "x-real-ip", "6.6.6.6", "x-forwarded-for", "6.6.6.6"),
	} {
		for _, key := range []func(*grpclimit.Call) (netip.Addr, error){single, list} {
			a, err := key(grpclimit.NewCall(ctx, "/pkg.Service/Method", nil))
			require.NoError(t, err, name)
			assert.Equal(t, "203.0.113.1", a.String(), name)
		}
	}
}
