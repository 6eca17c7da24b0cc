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

// Attributes of rules read metadata in the same way as httplimit reads header fields.
func TestMetadataAreAKey(t *testing.T) {
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
		"binary, and a tab":                 {"User-Bin", []string{"\x09"}, "\x09", nil}, // bytes, not text
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
			got, ok := grpclimit.PolicyRequest(callWith(pairs...), nil).Attribute("header:" + row.name)
			assert.Equal(t, []any{row.want, row.want, row.err == nil}, []any{key, got, ok})
			if row.err != nil {
				assert.ErrorIs(t, err, row.err)
				return
			}
			require.NoError(t, err)
		})
	}
	_, err := grpclimit.Metadata("x-tenant")(callWith("x-tenant", strings.Repeat("x", 1025)))
	assert.ErrorIs(t, err, keyfunc.ErrMalformedKey, "above 1 KiB")
	assert.NotContains(t, err.Error(), "xxx", "no error contains a key's text")
	_, err = grpclimit.Metadata("x-tenant")(new(grpclimit.Call))
	assert.ErrorIs(t, err, keyfunc.ErrNoKey, "a call outside of servers")
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

// behindHTTP is a peer's address as grpc-go reports it behind net/http.
type behindHTTP string

func (behindHTTP) Network() string  { return "tcp" }
func (n behindHTTP) String() string { return string(n) }

// Package edge tests how the client is found. A Unix socket's file name is not an address.
// With TrustedHops or TrustUnixSockets, the peer on a socket is a proxy on the same machine.
func TestTheClientIsFoundByThePeerAndTheMetadata(t *testing.T) {
	socket := &net.UnixAddr{Name: "s", Net: "unix"}
	fields := []string{"x-forwarded-for", "6.6.6.6, 203.0.113.1", "x-real-ip", "203.0.113.1", "forwarded", "for=203.0.113.2;proto=https, for=10.0.0.2"}
	inside := func(peer string) context.Context {
		return context.WithValue(incoming(behindHTTP(peer), fields...), http.LocalAddrContextKey, socket)
	}
	key := func(o httplimit.ClientIPOptions) func(*grpclimit.Call) (netip.Addr, error) {
		return ratelimit.Must(grpclimit.ClientIP(o))
	}
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	proxies, forwarded := key(httplimit.ClientIPOptions{TrustedProxies: trusted}), key(httplimit.ClientIPOptions{TrustedProxies: trusted, Header: "Forwarded"})
	sockets, single := key(httplimit.ClientIPOptions{TrustUnixSockets: true}), key(httplimit.ClientIPOptions{TrustUnixSockets: true, Header: "x-real-ip"})
	for name, row := range map[string]struct {
		ctx  context.Context
		key  func(*grpclimit.Call) (netip.Addr, error)
		want string
	}{
		"no peer":                            {context.Background(), grpclimit.RemoteIP, ""},
		"no address":                         {peer.NewContext(context.Background(), &peer.Peer{}), grpclimit.RemoteIP, ""},
		"nil address":                        {incoming((*net.TCPAddr)(nil)), grpclimit.RemoteIP, ""},
		"a socket":                           {incoming(&net.UnixAddr{Name: "@", Net: "unix"}), grpclimit.RemoteIP, ""},
		"a socket with the name of an IP":    {incoming(&net.UnixAddr{Name: "10.0.0.1", Net: "unix"}, fields...), proxies, ""},
		"and with a port":                    {incoming(&net.UnixAddr{Name: "10.0.0.1:80", Net: "unix"}), grpclimit.RemoteIP, ""},
		"behind net/http":                    {inside("10.0.0.1:80"), grpclimit.RemoteIP, ""},
		"behind net/http, and a proxy":       {inside("10.0.0.1:80"), proxies, ""},
		"net/http without a socket":          {incoming(behindHTTP("10.0.0.1:80")), grpclimit.RemoteIP, "10.0.0.1"},
		"hops":                               {incoming(socket, fields...), key(httplimit.ClientIPOptions{TrustedHops: 1}), "203.0.113.1"},
		"a trusted socket":                   {incoming(socket, fields...), sockets, "203.0.113.1"},
		"a trusted socket, one address":      {incoming(socket, fields...), single, "203.0.113.1"},
		"a trusted socket behind net/http":   {inside("@"), sockets, "203.0.113.1"},
		"the same, one address":              {inside("@"), single, "203.0.113.1"},
		"a proxy":                            {incoming(tcp("10.0.0.1:80"), fields...), proxies, "203.0.113.1"},
		"a proxy, as IPv4 in IPv6":           {incoming(tcp("[::ffff:10.0.0.1]:80"), fields...), proxies, "203.0.113.1"},
		"a proxy that writes Forwarded":      {incoming(tcp("10.0.0.1:80"), fields...), forwarded, "203.0.113.2"},
		"an address with a zone":             {incoming(tcp("[fe80::1%eth0]:80"), fields...), grpclimit.RemoteIP, "fe80::"},
		"the client itself":                  {incoming(tcp("203.0.113.7:80"), fields...), sockets, "203.0.113.7"},
		"the client itself, and one address": {incoming(tcp("203.0.113.7:80"), fields...), single, "203.0.113.7"},
	} {
		a, err := row.key(grpclimit.NewCall(row.ctx, "/pkg.Service/Method", nil))
		if row.want == "" {
			assert.ErrorIs(t, err, keyfunc.ErrMalformedKey, name)
		} else if assert.NoError(t, err, name) {
			assert.Equal(t, row.want, a.String(), name)
		}
	}
}

// fixed has attributes in a map.
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
