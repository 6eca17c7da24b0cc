package grpclimit_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
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
	"github.com/weir-go/ratelimit/internal/dev/nginx"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/ratelimittest"
)

func outgoing(pairs ...string) context.Context {
	return metadata.NewOutgoingContext(context.Background(), metadata.Pairs(pairs...))
}

// h2c returns gRPC's protocols without TLS.
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

// proxy starts a reverse proxy for gRPC. It writes x-forwarded-for.
// Clients send their address in "from", because all are on this machine.
//
// FlushInterval is 0: streams are flushed at once anyway. With -1, the proxy may flush an answer's headers before
// it knows that nothing else follows. The client then gets no trailers, whichever server has denied the call.
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
	key := ratelimit.Must(grpclimit.ClientIP(httplimit.ClientIPOptions{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}))
	l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerHour(n)).Named("hourly"), &ratelimit.Options[netip.Addr]{Clock: new(ratelimittest.Clock)}))
	return interceptor(t, ratelimit.Map(l, key), opts)
}

// net/http may serve gRPC. Then the peer's address is text.
func TestAServerBehindNetHTTP(t *testing.T) {
	i := ratelimit.Must(grpclimit.PerIP(ratelimit.FixedWindow(ratelimit.PerHour(2)).Named("hourly"), nil))
	client := testgrpc.NewTestServiceClient(dial(t, serveHTTP(t, new(service).server(with(i)...))))
	for range 2 {
		assert.Equal(t, codes.OK, call(context.Background(), client).code)
	}
	a := call(context.Background(), client)
	assert.Equal(t, codes.ResourceExhausted, a.code)
	assert.Len(t, a.pushback, 1)
	assert.NotNil(t, a.retry)
}

func TestAUnixSocketHasNoAddress(t *testing.T) {
	i := ratelimit.Must(grpclimit.PerIP(ratelimit.FixedWindow(ratelimit.PerHour(2)), &grpclimit.Options{Logger: quiet}))
	path := t.TempDir() + "/s"
	listen(t, new(service).server(with(i)...), ratelimit.Must(net.Listen("unix", path)))
	client := testgrpc.NewTestServiceClient(dial(t, "unix:"+path))
	assert.Equal(t, codes.InvalidArgument, call(context.Background(), client).code)
}

// proxies start HTTP/2 proxies by several makers.
var proxies = map[string]func(t *testing.T, backend string) (addr string){"net/http": proxy, "nginx": func(t *testing.T, backend string) string {
	testsize.Extra(t)
	return nginx.Start(t, fmt.Sprintf(nginxConf, "%s", backend))
}}

const nginxConf = `
events {}
http {
	server {
		listen %s http2;
		client_max_body_size 0;
		location / {
			grpc_pass grpc://%s;
			grpc_set_header X-Forwarded-For $http_from;
		}
	}
}
`

// A proxy passes denials on unchanged, for a unary call, an opening stream and an open stream.
func TestDenialsArriveWholeThroughAProxy(t *testing.T) {
	for name, proxied := range proxies {
		t.Run(name, func(t *testing.T) {
			client := testgrpc.NewTestServiceClient(dial(t, proxied(t, start(t, new(service).server(with(perClient(t, 3, grpclimit.Options{ChargeMessages: true}))...)))))
			for _, address := range []string{"192.0.2.1", "2001:db8::1"} {
				ctx := outgoing("from", address)
				if name == "net/http" {
					ctx = outgoing("from", address, "x-forwarded-for", "198.51.100.7") // a spoofed address
				}
				require.Equal(t, codes.OK, call(ctx, client).code)
				midway, echoed := open(ctx, client, 3)
				assert.Equal(t, 1, echoed)
				assert.NotEmpty(t, midway.header, "it was served before")
				midway.header = nil
				opening, echoed := open(ctx, client, 3)
				assert.Zero(t, echoed)
				for _, a := range []answer{call(ctx, client), midway, opening} {
					assertDenied(t, a, time.Hour)
				}
			}
			assert.Equal(t, codes.InvalidArgument, call(outgoing("from", "garbage"), client).code)
		})
	}
}

// thirdOfASecond permits one call in a third of a second.
var thirdOfASecond = ratelimit.FixedWindow(ratelimit.Per(1, time.Second/3))

func TestClientsSucceedAtTheirFirstRetryThroughAProxy(t *testing.T) {
	_, own := paced(t, unlimited(t), grpclimit.ClientOptions{MaxRetries: 1})
	stock := []grpc.DialOption{grpc.WithDefaultServiceConfig(retryPolicy)}
	for name, proxied := range proxies {
		for client, row := range map[string]struct {
			dialling []grpc.DialOption
			way      string
		}{"stock, unary": {stock, "unary"}, "stock, stream": {stock, "stream"}, "own": {own, "unary"}} {
			t.Run(name+" "+client, func(t *testing.T) {
				server, a := limitedServer(t, thirdOfASecond, 1)
				client := testgrpc.NewTestServiceClient(dial(t, proxied(t, start(t, server)), row.dialling...))
				untilDenied(t, 2, a, func() error { return ways[row.way](t.Context(), client) })
			})
		}
	}
}

func TestLargeMessagesAreDeniedThroughAProxy(t *testing.T) {
	for name, proxied := range proxies {
		t.Run(name, func(t *testing.T) {
			client := testgrpc.NewTestServiceClient(dial(t, proxied(t, start(t, new(service).server(append(with(perClient(t, 1, grpclimit.Options{})), grpc.MaxRecvMsgSize(8*megabyte))...))), anySize))
			payload, ctx := large(), outgoing("from", "192.0.2.1")
			resp, err := client.UnaryCall(ctx, &testgrpc.SimpleRequest{Payload: payload})
			require.NoError(t, err)
			assert.Len(t, resp.Payload.Body, len(payload.Body))
			var a answer
			_, err = client.UnaryCall(ctx, &testgrpc.SimpleRequest{Payload: payload}, grpc.Trailer(&a.trailer))
			assertDenied(t, a.read(err), time.Hour)
		})
	}
}
