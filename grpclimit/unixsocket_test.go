package grpclimit_test

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/grpclimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/keyfunc"
)

// behindHTTP is an address as grpc-go has it behind net/http.
type behindHTTP string

func (behindHTTP) Network() string  { return "tcp" }
func (n behindHTTP) String() string { return string(n) }

func TestTheFileNameOfAUnixSocketsClientIsNoAddress(t *testing.T) {
	socket := &net.UnixAddr{Name: "s", Net: "unix"}
	behindProxy, err := grpclimit.ClientIP(httplimit.ClientIPOptions{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}})
	require.NoError(t, err)
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
	single, err := grpclimit.ClientIP(httplimit.ClientIPOptions{TrustUnixSockets: true, Header: "x-real-ip"})
	require.NoError(t, err)
	list, err := grpclimit.ClientIP(httplimit.ClientIPOptions{TrustUnixSockets: true})
	require.NoError(t, err)
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
