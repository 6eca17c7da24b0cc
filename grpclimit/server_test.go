package grpclimit_test

import (
	"context"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/internal/dev/crowd"
	"github.com/weir-go/ratelimit/ratelimittest"
)

func TestHealthChecksPassWhenNothingIsLeft(t *testing.T) {
	i := hourly(t, 1, grpclimit.Options{Skip: grpclimit.SkipServices(healthpb.Health_ServiceDesc.ServiceName), ChargeMessages: true})
	server := grpc.NewServer(with(i)...)
	testgrpc.RegisterTestServiceServer(server, &service{})
	healthpb.RegisterHealthServer(server, health.NewServer())
	conn := dial(t, start(t, server))
	client := testgrpc.NewTestServiceClient(conn)
	_ = call(context.Background(), client)
	require.Equal(t, codes.ResourceExhausted, call(context.Background(), client).code)

	checker := healthpb.NewHealthClient(conn)
	r, err := checker.Check(context.Background(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	assert.Equal(t, healthpb.HealthCheckResponse_SERVING, r.Status)
	watch, err := checker.Watch(context.Background(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	r, err = watch.Recv()
	require.NoError(t, err)
	assert.Equal(t, healthpb.HealthCheckResponse_SERVING, r.Status)
	assert.EqualValues(t, 2, i.Stats().Skipped)
}

func TestReflectionIsLimitedAsAnyStream(t *testing.T) {
	i := hourly(t, 3, grpclimit.Options{ChargeMessages: true})
	server := grpc.NewServer(with(i)...)
	testgrpc.RegisterTestServiceServer(server, &service{})
	reflection.Register(server)
	conn := dial(t, start(t, server))
	stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(context.Background())
	require.NoError(t, err)
	list := &reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}
	for range 2 {
		require.NoError(t, stream.Send(list))
		r, err := stream.Recv()
		require.NoError(t, err)
		assert.NotEmpty(t, r.GetListServicesResponse().GetService())
	}
	require.NoError(t, stream.Send(list))
	_, err = stream.Recv()
	assert.Equal(t, codes.ResourceExhausted, status.Code(err))
}

func TestAPanicThatIsRecoveredOutsideIsGivenBack(t *testing.T) {
	l, left := budget(t)
	i := interceptor(t, l, grpclimit.Options{Settle: grpclimit.RefundServerErrors})
	recovering := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (_ any, err error) {
		defer func() {
			if recover() != nil {
				err = status.Error(codes.Internal, "panic")
			}
		}()
		return next(ctx, req)
	}
	client := serve(t, &service{unary: func(context.Context, *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) { panic("boom") }},
		grpc.ChainUnaryInterceptor(recovering, i.UnaryServerInterceptor()))
	for range 12 {
		assert.Equal(t, codes.Internal, call(context.Background(), client).code)
	}
	assert.Equal(t, 10, left())
}

func TestOneLimiterServesThousandStreamsAtOnce(t *testing.T) {
	const streams, allowed, conns = 1000, 700, 4
	goroutines := runtime.NumGoroutine()
	t.Cleanup(func() { crowd.Gone(t, goroutines+1) }) // when the server and the clients have ended
	// The window counts streams as they open. Of the messages, each stream has enough.
	keyed, err := ratelimit.New(ratelimit.FixedWindow(ratelimit.PerHour(allowed)), &ratelimit.Options[string]{Clock: new(ratelimittest.Clock)})
	require.NoError(t, err)
	i := interceptor(t, ratelimit.Map(keyed, everyone), grpclimit.Options{
		ChargeMessages: true, Settle: func(_ *grpclimit.Call, _ codes.Code, cost int) int { return cost },
		Cost: func(c *grpclimit.Call) int {
			if c.Request != nil {
				return 0
			}
			return 1
		},
	})
	var open atomic.Int64
	leave := make(chan struct{})
	server := grpc.NewServer(with(i)...)
	testgrpc.RegisterTestServiceServer(server, &service{stream: func(s testgrpc.TestService_FullDuplexCallServer) error {
		open.Add(1)
		<-leave
		return echo(s)
	}})
	addr := start(t, server)
	var clients [conns]testgrpc.TestServiceClient
	for k := range clients {
		clients[k] = testgrpc.NewTestServiceClient(dial(t, addr))
	}

	var passed, denied, echoes atomic.Int64
	var all sync.WaitGroup
	for n := range streams {
		all.Go(func() {
			a, echoed := openStream(clients[n%conns])
			echoes.Add(int64(echoed))
			switch a.code {
			case codes.OK:
				passed.Add(1)
			case codes.ResourceExhausted:
				if denied.Add(1) == streams-allowed {
					close(leave)
				}
			default:
				t.Errorf("a stream ended with %v: %s", a.code, a.message)
			}
		})
	}
	all.Wait()
	assert.EqualValues(t, allowed, open.Load(), "all of them at once")
	assert.EqualValues(t, allowed, passed.Load())
	assert.EqualValues(t, streams-allowed, denied.Load())
	assert.EqualValues(t, 3*allowed, echoes.Load())
	assert.EqualValues(t, streams-allowed, i.Stats().Denied)
}

func openStream(client testgrpc.TestServiceClient) (answer, int) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return open(ctx, client, 3)
}

// counting counts the connections that are accepted.
type counting struct {
	net.Listener
	accepted atomic.Int64
}

func (l *counting) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.accepted.Add(1)
	}
	return conn, err
}

func TestConnectionsThatAgeDoNotChangeTheBudget(t *testing.T) {
	i := hourly(t, 1<<20, grpclimit.Options{Settle: grpclimit.RefundServerErrors})
	server := grpc.NewServer(append(with(i), grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: 20 * time.Millisecond, Time: time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Millisecond, PermitWithoutStream: true}))...)
	testgrpc.RegisterTestServiceServer(server, &service{})
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	counted := &counting{Listener: lis}
	done := make(chan struct{})
	go func() { defer close(done); assert.NoError(t, server.Serve(counted)) }()
	defer func() { server.Stop(); <-done }()
	client := testgrpc.NewTestServiceClient(dial(t, lis.Addr().String(), grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, PermitWithoutStream: true})))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	calls := uint64(0)
	for counted.accepted.Load() < 4 {
		_, err := client.UnaryCall(ctx, &testgrpc.SimpleRequest{}, grpc.WaitForReady(true))
		require.NoError(t, err)
		calls++
	}
	assert.Equal(t, httplimit.Stats{Allowed: calls}, i.Stats())
}

func TestLargeMessagesAreChargedBySize(t *testing.T) {
	const mib = 1 << 20
	i := hourly(t, 20*mib, grpclimit.Options{ChargeMessages: true, Settle: grpclimit.RefundServerErrors, Cost: func(c *grpclimit.Call) int {
		switch m := c.Request.(type) {
		case *testgrpc.SimpleRequest:
			return len(m.GetPayload().GetBody())
		case *testgrpc.StreamingOutputCallRequest:
			return len(m.GetPayload().GetBody())
		}
		return 0
	}})
	client := serve(t, &service{}, append(with(i), grpc.MaxRecvMsgSize(10*mib))...)
	large := &testgrpc.Payload{Body: make([]byte, 8*mib)}
	options := []grpc.CallOption{grpc.MaxCallRecvMsgSize(10 * mib)}
	_, err := client.UnaryCall(context.Background(), &testgrpc.SimpleRequest{Payload: large}, options...)
	require.NoError(t, err)
	stream, err := client.FullDuplexCall(context.Background(), options...)
	require.NoError(t, err)
	require.NoError(t, stream.Send(&testgrpc.StreamingOutputCallRequest{Payload: large}))
	r, err := stream.Recv()
	require.NoError(t, err)
	assert.Len(t, r.Payload.Body, 8*mib)
	require.NoError(t, stream.Send(&testgrpc.StreamingOutputCallRequest{Payload: large}))
	_, err = stream.Recv()
	assert.Equal(t, "rate limit exceeded: hourly", status.Convert(err).Message())
}

func TestEnormousMetadataAreRefusedAsAKey(t *testing.T) {
	l := ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerHour(5)), nil))
	i := interceptor(t, ratelimit.Map(l, grpclimit.Metadata("tenant")), grpclimit.Options{})
	client := serve(t, &service{}, with(i)...)
	a := call(outgoing("tenant", string(make1(100_000))), client)
	assert.Equal(t, codes.InvalidArgument, a.code)
	assert.Equal(t, codes.InvalidArgument, call(outgoing("tenant", "a", "tenant", "b"), client).code, "several values")
	assert.Equal(t, codes.InvalidArgument, call(context.Background(), client).code)
	assert.Equal(t, codes.OK, call(outgoing("tenant", "a"), client).code)
	assert.Equal(t, 1, l.Stats().Keys)
}
