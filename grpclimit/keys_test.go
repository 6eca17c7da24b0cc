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

// callWith is a call with metadata: keys and values in turn.
func callWith(pairs ...string) *grpclimit.Call {
	return grpclimit.NewCall(incoming(tcp("192.0.2.1:4711"), pairs...), "/pkg.Service/Method", nil)
}

func TestMetadataAreAKey(t *testing.T) {
	tenant := grpclimit.Metadata("X-Tenant")
	key, err := tenant(callWith("x-tenant", "acme"))
	require.NoError(t, err)
	assert.Equal(t, "acme", key)
	for name, row := range map[string]struct {
		call *grpclimit.Call
		want error
	}{
		"missing":                   {callWith(), keyfunc.ErrNoKey},
		"empty":                     {callWith("x-tenant", ""), keyfunc.ErrNoKey},
		"several":                   {callWith("x-tenant", "a", "x-tenant", "a"), keyfunc.ErrMalformedKey},
		"above 1 KiB":               {callWith("x-tenant", strings.Repeat("x", 1025)), keyfunc.ErrMalformedKey},
		"a call outside of servers": {new(grpclimit.Call), keyfunc.ErrNoKey},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tenant(row.call)
			assert.ErrorIs(t, err, row.want)
			assert.NotContains(t, err.Error(), "xxx", "no error tells a key's text")
		})
	}
}

func TestWhiteSpaceAroundAValueIsNoPartOfTheKey(t *testing.T) {
	for _, value := range []string{"k", " k", "k\t", " \tk  "} {
		c := callWith("x-key", value, "authorization", value)
		key, err := grpclimit.Metadata("x-key")(c)
		require.NoError(t, err)
		assert.Equal(t, "k", key)
		secret, err := grpclimit.APIKey("x-key")(c)
		require.NoError(t, err)
		assert.Equal(t, keyfunc.HashOf("k"), secret)
		got, ok := grpclimit.PolicyRequest(c, nil).Attribute("header:x-key")
		assert.True(t, ok)
		assert.Equal(t, "k", got)
		over, err := httplimit.APIKey("X-Key")(&http.Request{Header: http.Header{"X-Key": {value}}}) // as HTTP/2 may bring it
		require.NoError(t, err)
		assert.Equal(t, secret, over)
	}
	for _, empty := range []string{" ", "\t \t"} {
		_, err := grpclimit.APIKey("x-key")(callWith("x-key", empty))
		assert.ErrorIs(t, err, keyfunc.ErrNoKey)
	}
}

// Binary metadata are bytes, not text: 9 and 32 are a tab and a space.
func TestBinaryMetadataAreKeptAsTheyAre(t *testing.T) {
	seen := map[string]bool{}
	for _, value := range []string{"\x09", "\x20", "k", " k", "k ", "\x00", "\xff\x20", "\xff"} {
		c := callWith("user-bin", value)
		key, err := grpclimit.Metadata("User-Bin")(c)
		require.NoError(t, err)
		assert.Equal(t, value, key)
		assert.False(t, seen[key])
		seen[key] = true
		secret, err := grpclimit.APIKey("user-bin")(c)
		require.NoError(t, err)
		assert.Equal(t, keyfunc.HashOf(value), secret)
		got, ok := grpclimit.PolicyRequest(c, nil).Attribute("header:User-Bin")
		assert.True(t, ok)
		assert.Equal(t, value, got)
	}
	for name, row := range map[string]struct {
		call *grpclimit.Call
		want error
	}{
		"missing": {callWith(), keyfunc.ErrNoKey},
		"empty":   {callWith("user-bin", ""), keyfunc.ErrNoKey},
		"several": {callWith("user-bin", "a", "user-bin", "a"), keyfunc.ErrMalformedKey},
	} {
		_, err := grpclimit.Metadata("user-bin")(row.call)
		assert.ErrorIs(t, err, row.want, name)
		_, err = grpclimit.APIKey("user-bin")(row.call)
		assert.ErrorIs(t, err, row.want, name)
	}
}

func TestASecretHasTheSameHashAsOverHTTP(t *testing.T) {
	for _, secret := range []string{"s", strings.Repeat("long", 1000)} {
		r := &http.Request{Header: http.Header{"X-Api-Key": {secret}, "Authorization": {"Bearer " + secret}}}
		c := callWith("x-api-key", secret, "authorization", "bearer "+secret)
		over, err := httplimit.APIKey("X-API-Key")(r)
		require.NoError(t, err)
		key, err := grpclimit.APIKey("X-API-Key")(c)
		require.NoError(t, err)
		assert.Equal(t, over, key)
		over, err = httplimit.BearerToken(r)
		require.NoError(t, err)
		token, err := grpclimit.BearerToken(c)
		require.NoError(t, err)
		assert.Equal(t, over, token)
		assert.Equal(t, keyfunc.HashOf(secret), key)
		assert.Equal(t, key, token)
	}
	_, err := grpclimit.APIKey("x-api-key")(callWith())
	assert.ErrorIs(t, err, keyfunc.ErrNoKey)
	_, err = grpclimit.BearerToken(callWith("authorization", "Basic abc"))
	assert.ErrorIs(t, err, keyfunc.ErrNoKey)
	_, err = grpclimit.BearerToken(callWith("authorization", "Bearer a, Bearer b"))
	assert.ErrorIs(t, err, keyfunc.ErrMalformedKey)
}

func TestMethodsAndServicesAreKeys(t *testing.T) {
	c := grpclimit.NewCall(context.Background(), "/pkg.v1.Service/Method", nil)
	method, err := grpclimit.Method(c)
	require.NoError(t, err)
	assert.Equal(t, "/pkg.v1.Service/Method", method)
	service, err := grpclimit.Service(c)
	require.NoError(t, err)
	assert.Equal(t, "pkg.v1.Service", service)

	for _, method := range []string{"", "/", "//", "Service/Method", "/Service", "/Service/", "//Method"} {
		_, err = grpclimit.Service(&grpclimit.Call{FullMethod: method})
		assert.ErrorIs(t, err, keyfunc.ErrMalformedKey, method)
	}
	long := &grpclimit.Call{FullMethod: "/" + strings.Repeat("s", 2000) + "/m"}
	_, err = grpclimit.Service(long)
	assert.ErrorIs(t, err, keyfunc.ErrMalformedKey)
	_, err = grpclimit.Method(long)
	assert.ErrorIs(t, err, keyfunc.ErrMalformedKey)
	_, err = grpclimit.Method(new(grpclimit.Call))
	assert.ErrorIs(t, err, keyfunc.ErrNoKey)
}

// TestAddressesAreFoundAsOverHTTP gives both packages the same connection and header.
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

// fixed are attributes as a map.
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

// behindHTTP is an address as grpc-go has it behind net/http.
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
