package grpclimit_test

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/ratelimittest"
)

func outgoing(pairs ...string) context.Context {
	return metadata.NewOutgoingContext(context.Background(), metadata.Pairs(pairs...))
}

func make1(n int) []byte { return bytes.Repeat([]byte("x"), n) }

// h2c is the protocol of gRPC without TLS.
func h2c() *http.Protocols {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	return p
}

// serveHTTP serves HTTP/2 without TLS on the loopback interface until the test ends.
func serveHTTP(t *testing.T, h http.Handler) (addr string) {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.Protocols = h2c()
	s.Start()
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// proxy is a reverse proxy for gRPC that writes x-forwarded-for. Clients give their address in "from", as all of them are on this machine.
//
// Its FlushInterval is 0, which flushes streams at once anyway. With -1 it may flush the headers of an answer that consists of headers only
// before it knows that this is the end of it. So the client gets no trailers, whichever server has denied the call.
func proxy(t *testing.T, backend string) (addr string) {
	t.Helper()
	transport := &http.Transport{Protocols: h2c()}
	t.Cleanup(transport.CloseIdleConnections)
	return serveHTTP(t, &httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: backend})
			r.Out.Header["X-Forwarded-For"] = append(r.In.Header["X-Forwarded-For"], r.In.Header.Get("From"))
		},
	})
}

// perClient limits each client behind a proxy on this machine.
func perClient(t *testing.T, n int, opts grpclimit.Options) *grpclimit.Interceptor {
	t.Helper()
	key, err := grpclimit.ClientIP(httplimit.ClientIPOptions{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	require.NoError(t, err)
	l, err := ratelimit.New(ratelimit.FixedWindow(ratelimit.PerHour(n)).Named("hourly"), &ratelimit.Options[netip.Addr]{Clock: new(ratelimittest.Clock)})
	require.NoError(t, err)
	return interceptor(t, ratelimit.Map(l, key), opts)
}

func TestClientsBehindAnHTTP2ProxyAreLimitedEach(t *testing.T) {
	i := perClient(t, 2, grpclimit.Options{})
	server := grpc.NewServer(with(i)...)
	testgrpc.RegisterTestServiceServer(server, &service{})
	client := testgrpc.NewTestServiceClient(dial(t, proxy(t, start(t, server))))
	for _, from := range []string{"192.0.2.1", "2001:db8::1"} {
		ctx := outgoing("from", from, "x-forwarded-for", "198.51.100.7") // which is spoofed
		assert.Equal(t, codes.OK, call(ctx, client).code)
		a, echoed := open(ctx, client, 3)
		assert.Equal(t, codes.OK, a.code)
		assert.Equal(t, 3, echoed)
		assertDenied(t, call(ctx, client), time.Hour)
		a, _ = open(ctx, client, 3)
		assert.Equal(t, codes.ResourceExhausted, a.code)
		assert.Equal(t, []string{"3600000"}, a.pushback)
	}
	assert.Equal(t, codes.InvalidArgument, call(outgoing("from", "garbage"), client).code)
}

func TestManyStreamsThroughAnHTTP2Proxy(t *testing.T) {
	const streams = 200
	i := perClient(t, 1, grpclimit.Options{ChargeMessages: true, Cost: func(c *grpclimit.Call) int {
		if c.Request != nil {
			return 0
		}
		return 1
	}})
	server := grpc.NewServer(with(i)...)
	testgrpc.RegisterTestServiceServer(server, &service{})
	client := testgrpc.NewTestServiceClient(dial(t, proxy(t, start(t, server))))
	var all sync.WaitGroup
	for n := range streams {
		all.Go(func() {
			ctx := outgoing("from", netip.AddrFrom4([4]byte{192, 0, 2, byte(n)}).String())
			a, echoed := open(ctx, client, 2)
			assert.Equal(t, codes.OK, a.code, a.message)
			assert.Equal(t, 2, echoed)
			a, _ = open(ctx, client, 2)
			assert.Equal(t, codes.ResourceExhausted, a.code, a.message)
		})
	}
	all.Wait()
	assert.Equal(t, uint64(streams), i.Stats().Denied)
}

// A server may hang behind net/http, whose connections have their address as text.
func TestAServerBehindNetHTTP(t *testing.T) {
	i, err := grpclimit.PerIP(ratelimit.FixedWindow(ratelimit.PerHour(2)).Named("hourly"), nil)
	require.NoError(t, err)
	server := grpc.NewServer(with(i)...)
	testgrpc.RegisterTestServiceServer(server, &service{})
	client := testgrpc.NewTestServiceClient(dial(t, serveHTTP(t, server)))
	for range 2 {
		assert.Equal(t, codes.OK, call(context.Background(), client).code)
	}
	a := call(context.Background(), client)
	assert.Equal(t, codes.ResourceExhausted, a.code)
	assert.Len(t, a.pushback, 1)
	assert.NotNil(t, a.retry)
}

func TestAUnixSocketHasNoAddress(t *testing.T) {
	i, err := grpclimit.PerIP(ratelimit.FixedWindow(ratelimit.PerHour(2)), &grpclimit.Options{Logger: quiet})
	require.NoError(t, err)
	server := grpc.NewServer(with(i)...)
	testgrpc.RegisterTestServiceServer(server, &service{})
	path := t.TempDir() + "/s"
	lis, err := net.Listen("unix", path)
	require.NoError(t, err)
	done := make(chan struct{})
	go func() { defer close(done); assert.NoError(t, server.Serve(lis)) }()
	defer func() { server.Stop(); <-done }()
	client := testgrpc.NewTestServiceClient(dial(t, "unix:"+path))
	assert.Equal(t, codes.InvalidArgument, call(context.Background(), client).code)
}
