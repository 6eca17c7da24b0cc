package grpclimit_test

import (
	"io"
	"strings"
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
)

// echoOnce sends a message and receives its echo.
func echoOnce(stream testgrpc.TestService_FullDuplexCallClient, m *testgrpc.StreamingOutputCallRequest) error {
	if err := stream.Send(m); err != nil && err != io.EOF { // RecvMsg then returns the reason
		return err
	}
	_, err := stream.Recv()
	return err
}

const megabyte = 1 << 20

// large returns a message of a little more than 5 MB.
func large() *testgrpc.Payload {
	return &testgrpc.Payload{Body: []byte(strings.Repeat("0123456789abcdef", 5*megabyte/16))}
}

var anySize = grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(8*megabyte), grpc.MaxCallSendMsgSize(8*megabyte))

// A stream is denied as it opens, while its client sends large
// messages. The client gets the denial, not an error of the transport.
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
	untilDenied(t, 2, a, func() error { return ways["unary"](t.Context(), client) })
}
