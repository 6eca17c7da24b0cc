package grpclimit_test

import (
	"context"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
)

// incoming is the context of a server's handler.
func incoming(remote net.Addr, pairs ...string) context.Context {
	ctx := metadata.NewIncomingContext(context.Background(), metadata.Pairs(pairs...))
	if remote == nil {
		return ctx
	}
	return peer.NewContext(ctx, &peer.Peer{Addr: remote})
}

func tcp(s string) net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(s)) }

const ample = 1 << 30 // calls a second

func unaryBy[K comparable](t testing.TB, key func(*grpclimit.Call) (K, error), opts grpclimit.Options) grpc.UnaryServerInterceptor {
	t.Helper()
	l, err := ratelimit.New[K](ratelimit.TokenBucket(ratelimit.PerSecond(ample), ample), nil)
	require.NoError(t, err)
	return interceptor(t, ratelimit.Map(l, key), opts).UnaryServerInterceptor()
}

func TestAnAllowedUnaryCallAllocatesAtMostTwice(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	behindProxy, err := grpclimit.ClientIP(grpclimit.ClientIPOptions{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}})
	require.NoError(t, err)
	var request any = new(int)
	ctx := incoming(tcp("10.0.0.1:4711"), "x-forwarded-for", "2001:db8::1, 10.0.0.9", "x-api-key", "a-rather-long-secret-of-a-client-0123456789",
		"authorization", "Bearer a-rather-long-secret-of-a-client-0123456789", "tenant", "acme")
	info := &grpc.UnaryServerInfo{FullMethod: "/grpc.testing.TestService/UnaryCall"}
	handler := func(_ context.Context, req any) (any, error) { return req, nil }
	for name, call := range map[string]grpc.UnaryServerInterceptor{
		"method":                  unaryBy(t, grpclimit.Method, grpclimit.Options{}),
		"service":                 unaryBy(t, grpclimit.Service, grpclimit.Options{}),
		"metadata":                unaryBy(t, grpclimit.Metadata("tenant"), grpclimit.Options{}),
		"API key":                 unaryBy(t, grpclimit.APIKey("x-api-key"), grpclimit.Options{}),
		"bearer token":            unaryBy(t, grpclimit.BearerToken, grpclimit.Options{}),
		"address":                 unaryBy(t, grpclimit.RemoteIP, grpclimit.Options{}),
		"address behind a proxy":  unaryBy(t, behindProxy, grpclimit.Options{}),
		"method and address":      unaryBy(t, grpclimit.Join(grpclimit.Method, grpclimit.RemoteIP), grpclimit.Options{}),
		"method, with OnDecision": unaryBy(t, grpclimit.Method, grpclimit.Options{OnDecision: func(grpclimit.Event) {}}),
		"method, skipped":         unaryBy(t, grpclimit.Method, grpclimit.Options{Skip: grpclimit.SkipServices("grpc.testing.TestService")}),
	} {
		t.Run(name, func(t *testing.T) {
			assert.LessOrEqual(t, testing.AllocsPerRun(1000, func() {
				if _, err := call(ctx, request, info, handler); err != nil {
					t.Fatal(err)
				}
			}), 2.0)
		})
	}
}
