package grpclimit_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
)

// proxies are HTTP/2 proxies of different makes.
var proxies = map[string]func(t *testing.T, backend string) (addr string){"net/http": proxy, "nginx": nginx}

// A denial arrives whole through a proxy: from unary calls, from streams that open, and from streams that are denied mid-way.
func TestDenialsArriveWholeThroughAProxy(t *testing.T) {
	for name, proxied := range proxies {
		t.Run(name, func(t *testing.T) {
			server := grpc.NewServer(with(perClient(t, 3, grpclimit.Options{ChargeMessages: true}))...)
			testgrpc.RegisterTestServiceServer(server, new(service))
			client := testgrpc.NewTestServiceClient(dial(t, proxied(t, start(t, server))))
			for _, address := range []string{"192.0.2.1", "192.0.2.2"} {
				ctx := outgoing("from", address)
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
		})
	}
}

// thirdOfASecond serves one call in that time.
func thirdOfASecond(t *testing.T, more ...grpc.ServerOption) *grpc.Server {
	t.Helper()
	l, err := ratelimit.New[string](ratelimit.FixedWindow(ratelimit.Per(1, time.Second/3)), nil)
	require.NoError(t, err)
	server := grpc.NewServer(append(more, with(interceptor(t, ratelimit.Map(l, everyone), grpclimit.Options{}))...)...)
	testgrpc.RegisterTestServiceServer(server, new(service))
	return server
}

func TestStockClientSucceedsAtItsFirstRetryThroughAProxy(t *testing.T) {
	for name, proxied := range proxies {
		for way, do := range ways {
			t.Run(name+" "+way, func(t *testing.T) {
				a := &attempts{arrived: map[string]int{}, previous: map[string]string{}}
				server := thirdOfASecond(t, grpc.ChainUnaryInterceptor(a.unary), grpc.ChainStreamInterceptor(a.stream))
				client := testgrpc.NewTestServiceClient(dial(t, proxied(t, start(t, server)), grpc.WithDefaultServiceConfig(retryPolicy)))
				untilDenied(t, 2, a, "one", way, func(ctx context.Context) error { return do(ctx, client) })
			})
		}
	}
}

func TestClientObeysAdviceThroughAProxy(t *testing.T) {
	for name, proxied := range proxies {
		t.Run(name, func(t *testing.T) {
			c, dialling := paced(t, unlimited(t), grpclimit.ClientOptions{MaxRetries: 1})
			client := testgrpc.NewTestServiceClient(dial(t, proxied(t, start(t, thirdOfASecond(t))), dialling...))
			for c.Stats().Refused < 2 {
				require.NoError(t, ways["unary"](t.Context(), client))
			}
			assert.Equal(t, c.Stats().Refused, c.Stats().Retried)
		})
	}
}

func TestLargeMessagesAreDeniedThroughAProxy(t *testing.T) {
	for name, proxied := range proxies {
		t.Run(name, func(t *testing.T) {
			server := grpc.NewServer(append(with(perClient(t, 1, grpclimit.Options{})), grpc.MaxRecvMsgSize(8*megabyte))...)
			testgrpc.RegisterTestServiceServer(server, new(service))
			client := testgrpc.NewTestServiceClient(dial(t, proxied(t, start(t, server)), anySize))
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
