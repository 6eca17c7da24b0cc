package grpclimit_test

import (
	"context"
	"io"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/keepalive"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/internal/dev/crowd"
)

// echoOnce sends a message and receives its echo.
func echoOnce(stream testgrpc.TestService_FullDuplexCallClient, m *testgrpc.StreamingOutputCallRequest) error {
	if err := stream.Send(m); err != nil && err != io.EOF { // RecvMsg then returns the reason
		return err
	}
	_, err := stream.Recv()
	return err
}

// A thousand streams spend one budget with their messages at the same time. Exactly
// as many messages pass as the budget holds, and each stream ends with a denial.
func TestMessagesOfThousandStreamsSpendOneBudget(t *testing.T) {
	const streams, beyond, more = 1000, 1500, 3
	goroutines := runtime.NumGoroutine()
	t.Run("streams", func(t *testing.T) {
		limit := hourly(t, streams*2+beyond, grpclimit.Options{ChargeMessages: true}) // enough for each stream to open and send one message
		client := serve(t, new(service), with(limit)...)
		var open, done sync.WaitGroup
		var echoed, denied atomic.Int64
		open.Add(streams)
		for range streams {
			done.Go(func() {
				stream, err := client.FullDuplexCall(t.Context())
				if err == nil {
					err = echoOnce(stream, new(testgrpc.StreamingOutputCallRequest))
				}
				assert.NoError(t, err)
				open.Done()
				if open.Wait(); err != nil {
					return
				}
				for range more {
					if err := echoOnce(stream, new(testgrpc.StreamingOutputCallRequest)); err != nil {
						a := answer{trailer: stream.Trailer()}.read(err)
						assert.Equal(t, codes.ResourceExhausted, a.code)
						assert.NotNil(t, a.retry)
						assert.Equal(t, []string{"3600000"}, a.pushback)
						denied.Add(1)
						return
					}
					echoed.Add(1)
				}
				assert.NoError(t, stream.CloseSend())
				_, err = stream.Recv()
				assert.Equal(t, io.EOF, err)
			})
		}
		done.Wait()
		assert.Equal(t, int64(beyond), echoed.Load())
		stats := limit.Stats()
		assert.Equal(t, uint64(streams*2+beyond), stats.Allowed)
		assert.Equal(t, uint64(denied.Load()), stats.Denied)
		assert.GreaterOrEqual(t, denied.Load(), int64(streams-beyond/more), "the others had enough")
	})
	crowd.Gone(t, goroutines+1)
}

const megabyte = 1 << 20

// large returns a message of a little more than 5 MB.
func large() *testgrpc.Payload {
	return &testgrpc.Payload{Body: []byte(strings.Repeat("0123456789abcdef", 5*megabyte/16))}
}

var anySize = grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(8*megabyte), grpc.MaxCallSendMsgSize(8*megabyte))

// A stream is denied as it opens, while its client sends large messages.
// The client gets the denial, and not an error of the transport.
func TestStreamDeniedWhileLargeMessagesAreOnTheirWay(t *testing.T) {
	limit := hourly(t, 1, grpclimit.Options{})
	client := testgrpc.NewTestServiceClient(dial(t, start(t, new(service).server(append(with(limit), grpc.MaxRecvMsgSize(8*megabyte))...)), anySize))
	require.Equal(t, codes.OK, call(t.Context(), client).code)
	payload := large()
	for range 3 {
		stream, err := client.FullDuplexCall(t.Context())
		require.NoError(t, err)
		for range 4 {
			if stream.Send(&testgrpc.StreamingOutputCallRequest{Payload: payload}) != nil {
				break
			}
		}
		_, err = stream.Recv()
		a := answer{trailer: stream.Trailer()}.read(err)
		assert.Equal(t, codes.ResourceExhausted, a.code)
		assert.NotNil(t, a.retry)
		assert.Equal(t, []string{"3600000"}, a.pushback)
	}
}

// The connection ends before the pushback, so the retry uses another connection.
func TestRetryOutlivesItsConnection(t *testing.T) {
	server, a := limitedServer(t, ratelimit.FixedWindow(ratelimit.Per(1, 700*time.Millisecond)), 1,
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: 100 * time.Millisecond}))
	client := testgrpc.NewTestServiceClient(dial(t, start(t, server), grpc.WithDefaultServiceConfig(retryPolicy)))
	untilDenied(t, 2, a, "one", "MaxConnectionAge", func(ctx context.Context) error { return ways["unary"](ctx, client) })
}

// Fifty goroutines share a Client, and a server has this package's
// interceptors. Each call gets an answer. Package pace tests the queue.
func TestClientAndServerUnderLoad(t *testing.T) {
	perSecond := ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.Per(30, time.Second)), nil))
	limit := interceptor(t, ratelimit.Map(perSecond, everyone), grpclimit.Options{})
	c, dialling := paced(t, byTarget(t, ratelimit.TokenBucket(ratelimit.PerSecond(1000), 50)), grpclimit.ClientOptions{MaxRetries: 20})
	client := testgrpc.NewTestServiceClient(dial(t, start(t, new(service).server(with(limit)...)), dialling...))
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() { ok(t.Context(), t, client, "unary") })
	}
	wg.Wait()
	served, sent := limit.Stats(), c.Stats()
	assert.Equal(t, httplimit.Stats{Allowed: 50, Denied: sent.Refused}, served)
	assert.Equal(t, httplimit.TransportStats{Sent: 50 + sent.Refused, Waited: sent.Waited, Refused: sent.Refused, Retried: sent.Refused}, sent)
}
