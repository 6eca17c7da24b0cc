package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
	"github.com/weir-go/ratelimit/httplimit"
)

func TestCallsAndMessagesCostTheirContents(t *testing.T) {
	i := hourly(t, 15, grpclimit.Options{ChargeMessages: true, Cost: func(c *grpclimit.Call) int {
		if m, ok := c.Request.(interface{ GetPayload() *testgrpc.Payload }); ok {
			return len(m.GetPayload().GetBody())
		}
		return 0 // opening a stream is free
	}})
	client := serve(t, &service{}, with(i)...)
	of := func(n int) *testgrpc.Payload { return &testgrpc.Payload{Body: make([]byte, n)} }
	_, err := client.UnaryCall(t.Context(), &testgrpc.SimpleRequest{Payload: of(5)})
	require.NoError(t, err)
	stream, err := client.FullDuplexCall(t.Context())
	require.NoError(t, err)
	for _, size := range []int{4, 6} {
		require.NoError(t, echoOnce(stream, &testgrpc.StreamingOutputCallRequest{Payload: of(size)}))
	}
	assert.Equal(t, codes.ResourceExhausted, status.Code(echoOnce(stream, &testgrpc.StreamingOutputCallRequest{Payload: of(1)})))
}

func TestADeniedMessageEndsTheStreamWhateverTheHandlerDoes(t *testing.T) {
	for name, row := range map[string]struct {
		returns func(denial error) error
		want    codes.Code
	}{
		"it returns nil":                       {func(error) error { return nil }, codes.ResourceExhausted},
		"it hides the denial in its own error": {func(denial error) error { return fmt.Errorf("reading: %w", denial) }, codes.ResourceExhausted},
		"it returns another status":            {func(error) error { return status.Error(codes.FailedPrecondition, "") }, codes.FailedPrecondition},
	} {
		t.Run(name, func(t *testing.T) {
			i := hourly(t, 2, grpclimit.Options{ChargeMessages: true})
			ss := &fakeStream{received: make([]error, 10)}
			err := i.StreamServerInterceptor()(nil, ss, &grpc.StreamServerInfo{}, func(_ any, s grpc.ServerStream) error {
				require.NoError(t, s.RecvMsg(nil))
				denial := s.RecvMsg(nil)
				assert.Equal(t, codes.ResourceExhausted, status.Code(denial))
				assert.Equal(t, denial, s.RecvMsg(nil))
				assert.NoError(t, s.SendMsg(nil), "the handler may still say goodbye")
				return row.returns(denial)
			})
			a := answer{}.read(err)
			assert.Equal(t, row.want, a.code)
			assert.Equal(t, row.want == codes.ResourceExhausted, a.retry != nil)
			assert.Len(t, ss.received, 8, "the denied message is received once")
			assert.Equal(t, []string{"3600000"}, ss.trailer["grpc-retry-pushback-ms"], "one value, or clients do not retry")
			assert.Equal(t, httplimit.Stats{Allowed: 2, Denied: 1}, i.Stats())
		})
	}
}

func TestMessagesAreNotSettled(t *testing.T) {
	l, left := budget(t)
	i := interceptor(t, l, grpclimit.Options{ChargeMessages: true, Settle: grpclimit.ChargeOnly()})
	a, echoed := open(context.Background(), serve(t, &service{}, with(i)...), 3)
	assert.Equal(t, codes.OK, a.code)
	assert.Equal(t, 3, echoed)
	assert.Equal(t, 7, left(), "the stream itself is given back")
}

func TestAStreamsCallNamesTheSideThatStreams(t *testing.T) {
	for method, row := range map[string]struct {
		call           func(ctx context.Context, client testgrpc.TestServiceClient)
		client, server bool
		request        any
	}{
		"FullDuplexCall": {func(ctx context.Context, client testgrpc.TestServiceClient) { _, _ = open(ctx, client, 0) }, true, true, nil},
		"StreamingInputCall": {func(ctx context.Context, client testgrpc.TestServiceClient) {
			stream, err := client.StreamingInputCall(ctx)
			require.NoError(t, err)
			_, err = stream.CloseAndRecv()
			require.NoError(t, err)
		}, true, false, nil},
		"UnaryCall": {func(ctx context.Context, client testgrpc.TestServiceClient) { _ = call(ctx, client) }, false, false, new(testgrpc.SimpleRequest)},
	} {
		t.Run(method, func(t *testing.T) {
			seen := make(chan grpclimit.Call, 10)
			i := interceptor(t, &stub{decision: ratelimit.Decision{Allowed: true}}, grpclimit.Options{Cost: func(c *grpclimit.Call) int {
				seen <- *c
				return 1
			}})
			client := serve(t, &service{incoming: func(s testgrpc.TestService_StreamingInputCallServer) error {
				return s.SendAndClose(&testgrpc.StreamingInputCallResponse{})
			}}, with(i)...)
			row.call(context.Background(), client)
			c := <-seen
			assert.Equal(t, "/grpc.testing.TestService/"+method, c.FullMethod)
			assert.Equal(t, []bool{row.client, row.server}, []bool{c.ClientStream, c.ServerStream})
			assert.IsType(t, row.request, c.Request)
			_, err := grpclimit.RemoteIP(&c)
			assert.NoError(t, err)
			_, err = grpclimit.Metadata("USER-AGENT")(&c)
			assert.NoError(t, err)
			host, _ := grpclimit.PolicyRequest(&c, nil).Attribute("host")
			assert.Equal(t, "127.0.0.1", host)
		})
	}
}

func TestSendingAndReceivingAtTheSameTime(t *testing.T) {
	const messages = 200
	client := serve(t, &service{stream: func(s testgrpc.TestService_FullDuplexCallServer) error {
		var sending sync.WaitGroup
		sending.Go(func() {
			for range messages {
				_ = s.Send(&testgrpc.StreamingOutputCallResponse{}) // fails after the end
			}
		})
		defer sending.Wait()
		for {
			if _, err := s.Recv(); err != nil {
				return err
			}
		}
	}}, with(hourly(t, 1+messages, grpclimit.Options{ChargeMessages: true}))...)
	a, received := open(context.Background(), client, messages+1)
	assert.Equal(t, codes.ResourceExhausted, a.code)
	assert.Equal(t, messages, received)
}

// A retry pays for another opening. If the wait covered only the message, each retry would be denied at its message.
func TestStockClientOfChargedMessagesSucceedsAtItsFirstRetry(t *testing.T) {
	for name, limit := range map[string]ratelimit.Limit{
		"bucket of two":   ratelimit.TokenBucket(ratelimit.PerSecond(1), 2),
		"bucket of three": ratelimit.TokenBucket(ratelimit.PerSecond(1), 3),
		"log":             ratelimit.SlidingLog(ratelimit.Per(2, 2*time.Second)),
		"window":          ratelimit.FixedWindow(ratelimit.Per(3, time.Second)),
	} {
		for _, layered := range []bool{false, true} {
			for settles, settle := range map[string]func(*grpclimit.Call, codes.Code, int) int{"": nil, ", settled": grpclimit.RefundServerErrors} {
				bubble(t, name+settles, func(t *testing.T) {
					l := ratelimit.Map(ratelimit.Must(ratelimit.New[string](limit, nil)), everyone)
					if layered {
						l = limiterOf(t, nil, limit)
					}
					denials := 0
					i := interceptor(t, l, grpclimit.Options{ChargeMessages: true, Settle: settle, OnDecision: func(e grpclimit.Event) {
						if e.Outcome != httplimit.OutcomeAllowed {
							denials++
						}
					}})
					client := inBubble(t, new(service).server(with(i)...), grpc.WithDefaultServiceConfig(retryPolicy))
					for range 6 {
						denials = 0
						a, echoed := open(context.Background(), client, 1)
						require.Equal(t, codes.OK, a.code)
						require.Equal(t, 1, echoed)
						require.LessOrEqual(t, denials, 1)
					}
				})
			}
		}
	}
}

// A stream denied at its first message has run its handler. So its opening stays charged, whatever the handler has returned.
func TestAnOpeningStaysChargedIfAMessageIsDenied(t *testing.T) {
	for name, row := range map[string]struct {
		cost    int // a message's cost
		handler grpc.StreamHandler
		left    int
	}{
		"the first message is denied":     {2, func(_ any, s grpc.ServerStream) error { return s.RecvMsg(nil) }, 1},
		"the handler has answered before": {2, func(_ any, s grpc.ServerStream) error { _ = s.SendMsg(nil); return s.RecvMsg(nil) }, 1},
		"the second message is denied":    {1, func(_ any, s grpc.ServerStream) error { _ = s.RecvMsg(nil); return s.RecvMsg(nil) }, 0},
		"the handler ends it in another way": {2, func(_ any, s grpc.ServerStream) error {
			_ = s.RecvMsg(nil)
			return status.Error(codes.Unauthenticated, "")
		}, 1},
	} {
		for settles, settle := range map[string]func(*grpclimit.Call, codes.Code, int) int{"": nil, ", settled": grpclimit.RefundServerErrors} {
			t.Run(name+settles, func(t *testing.T) {
				keyed := ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerHour(2)), nil))
				opening := true
				i := interceptor(t, ratelimit.Map(keyed, everyone), grpclimit.Options{ChargeMessages: true, Settle: settle, Cost: func(*grpclimit.Call) int {
					if opening {
						opening = false
						return 1
					}
					return row.cost
				}})
				require.Error(t, i.StreamServerInterceptor()(nil, &fakeStream{received: make([]error, 5)}, &grpc.StreamServerInfo{}, row.handler))
				d, err := keyed.Peek(context.Background(), "everyone", 0)
				require.NoError(t, err)
				assert.Equal(t, row.left, d.Remaining)
			})
		}
	}
}

// The limiter counts one denial for a denied stream, although the wait also
// covers a message. Once a message has passed, the wait covers only one message.
func TestADeniedStreamIsDeniedOnce(t *testing.T) {
	bucket := ratelimit.TokenBucket(ratelimit.PerMinute(1), 2)
	for name, row := range map[string]struct {
		limit ratelimit.Limit
		taken int // before the stream
		wait  time.Duration
	}{
		"bucket": {bucket, 2, 2 * time.Minute}, "leaky bucket": {ratelimit.LeakyBucket(ratelimit.PerMinute(1), 2), 2, 2 * time.Minute},
		"first message": {bucket, 1, 2 * time.Minute}, "second message": {bucket, 0, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			denials := 0
			keyed := ratelimit.Must(ratelimit.New(row.limit, &ratelimit.Options[string]{OnDecision: func(e ratelimit.Event[string]) {
				if !e.Decision.Allowed {
					denials++
				}
			}}))
			_, err := keyed.Take(t.Context(), "everyone", row.taken)
			require.NoError(t, err)
			var retry time.Duration
			i := interceptor(t, ratelimit.Map(keyed, everyone), grpclimit.Options{ChargeMessages: true, OnDecision: func(e grpclimit.Event) { retry = e.Decision.RetryAfter }})
			require.Error(t, i.StreamServerInterceptor()(nil, &fakeStream{received: make([]error, 5)}, &grpc.StreamServerInfo{}, func(_ any, s grpc.ServerStream) error {
				return errors.Join(s.RecvMsg(nil), s.RecvMsg(nil))
			}))
			assert.Equal(t, 1, denials)
			assert.InDelta(t, row.wait, retry, float64(time.Second)) // the time until an opening and a message pass
		})
	}
}
