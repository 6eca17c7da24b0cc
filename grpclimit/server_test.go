package grpclimit_test

import (
	"bytes"
	"context"
	"log/slog"
	"math"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
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
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/dev/crowd"
	"github.com/weir-go/ratelimit/ratelimittest"
)

func TestHealthChecksPassWhenNothingIsLeft(t *testing.T) {
	i := hourly(t, 1, grpclimit.Options{Skip: grpclimit.SkipServices(healthpb.Health_ServiceDesc.ServiceName), ChargeMessages: true})
	server := new(service).server(with(i)...)
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
	server := new(service).server(with(hourly(t, 3, grpclimit.Options{ChargeMessages: true}))...)
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
	keyed := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerHour(allowed)), &ratelimit.Options[string]{Clock: new(ratelimittest.Clock)}))
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
	server := new(service).server(append(with(i), grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: 20 * time.Millisecond, Time: time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Millisecond, PermitWithoutStream: true}))...)
	lis := ratelimit.Must(net.Listen("tcp", "127.0.0.1:0"))
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

func TestAUnaryCallBeyondTheLimitIsDenied(t *testing.T) {
	limit := hourly(t, 2, grpclimit.Options{})
	client := serve(t, &service{}, with(limit)...)
	for range 2 {
		assert.Equal(t, codes.OK, call(context.Background(), client).code)
	}
	a := call(context.Background(), client)
	assertDenied(t, a, time.Hour)
	assert.Equal(t, httplimit.Stats{Allowed: 2, Denied: 1}, limit.Stats())
}

func TestAStreamBeyondTheLimitIsDeniedWhenItOpens(t *testing.T) {
	limit := hourly(t, 1, grpclimit.Options{})
	client := serve(t, &service{}, with(limit)...)
	a, echoed := open(context.Background(), client, 5)
	assert.Equal(t, codes.OK, a.code)
	assert.Equal(t, 5, echoed, "messages are free")
	a, echoed = open(context.Background(), client, 5)
	assertDenied(t, a, time.Hour)
	assert.Zero(t, echoed)
	assert.Equal(t, httplimit.Stats{Allowed: 1, Denied: 1}, limit.Stats())
}

// assertDenied checks all parts of an answer to a call that the limit "hourly" denies.
func assertDenied(t *testing.T, a answer, wait time.Duration) {
	t.Helper()
	assert.Equal(t, codes.ResourceExhausted, a.code)
	assert.Equal(t, "rate limit exceeded: hourly", a.message)
	require.NotNil(t, a.retry)
	assert.Equal(t, wait, a.retry.RetryDelay.AsDuration())
	require.NotNil(t, a.quota)
	require.Len(t, a.quota.Violations, 1)
	assert.Equal(t, "hourly", a.quota.Violations[0].Subject)
	assert.Equal(t, "hourly", a.quota.Violations[0].QuotaId)
	assert.Regexp(t, `^\d+ per 1h0m0s, \d+ at once$`, a.quota.Violations[0].Description)
	assert.Positive(t, a.quota.Violations[0].QuotaValue)
	assert.Equal(t, []string{"3600000"}, a.pushback)
	assert.Empty(t, a.header, "a client does not retry an answer with headers")
}

func TestTheWaitIsRoundedUpToAMillisecond(t *testing.T) {
	for _, row := range []struct {
		name     string
		wait     time.Duration
		retry    time.Duration
		pushback []string
	}{
		{"a nanosecond", 1, time.Millisecond, []string{"1"}},
		{"a millisecond", time.Millisecond, time.Millisecond, []string{"1"}},
		{"a nanosecond above a second", time.Second + 1, time.Second + time.Millisecond, []string{"1001"}},
		{"the most that an int32 holds", math.MaxInt32 * time.Millisecond, math.MaxInt32 * time.Millisecond, []string{"2147483647"}},
		{"longer than a client can be told", math.MaxInt32*time.Millisecond + 1, math.MaxInt32*time.Millisecond + time.Millisecond, []string{"-1"}},
		{"the longest", math.MaxInt64, math.MaxInt64, []string{"-1"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			limit := interceptor(t, &stub{decision: ratelimit.Decision{RetryAfter: row.wait}}, grpclimit.Options{})
			a := call(context.Background(), serve(t, &service{}, with(limit)...))
			require.NotNil(t, a.retry)
			if row.wait == math.MaxInt64 { // whose Duration holds no more than that
				assert.Equal(t, row.wait, a.retry.RetryDelay.AsDuration())
			} else {
				assert.Equal(t, row.retry, a.retry.RetryDelay.AsDuration())
			}
			require.NoError(t, a.retry.RetryDelay.CheckValid())
			assert.Equal(t, row.pushback, a.pushback)
		})
	}
}

func TestADenialWithoutAKnownWaitLeavesTheClientToItsBackoff(t *testing.T) {
	a := call(context.Background(), serve(t, &service{}, with(interceptor(t, &stub{}, grpclimit.Options{}))...))
	assert.Equal(t, codes.ResourceExhausted, a.code)
	assert.Nil(t, a.retry)
	assert.Empty(t, a.pushback)
	require.NotNil(t, a.quota)
	assert.Equal(t, "default", a.quota.Violations[0].Subject, "a limit without a name")
	assert.Empty(t, a.quota.Violations[0].Description, "a limiter that does not tell its limit")
}

func TestACallThatCanNeverPassIsNotToBeRetried(t *testing.T) {
	for name, row := range map[string]struct {
		limit   ratelimit.Limit
		message string
	}{
		"a cost above the capacity": {ratelimit.TokenBucket(ratelimit.PerSecond(1), 4).Named("small"),
			"the call costs more than its limit ever allows: do not retry: small"},
		"a blocked key": {ratelimit.Blocked().Named("small"), "the key is blocked: do not retry: small"},
	} {
		t.Run(name, func(t *testing.T) {
			i := interceptor(t, limiterOf(t, new(ratelimittest.Clock), row.limit), grpclimit.Options{
				Cost: func(*grpclimit.Call) int { return 5 },
			})
			client := serve(t, &service{}, with(i)...)
			streamed, _ := open(context.Background(), client, 0)
			for _, a := range []answer{call(context.Background(), client), streamed} {
				assert.Equal(t, codes.ResourceExhausted, a.code)
				assert.Equal(t, row.message, a.message)
				assert.Nil(t, a.retry)
				assert.Equal(t, []string{"-1"}, a.pushback)
				require.NotNil(t, a.quota)
				assert.Equal(t, "small", a.quota.Violations[0].Subject)
				assert.Empty(t, a.header)
			}
			assert.Equal(t, httplimit.Stats{Exceeds: 2}, i.Stats())
		})
	}
}

// Each client of a load balancer watches the health of each server, for as long as it lives.
func TestStreamsOfHealthAndReflectionTakeNoPermits(t *testing.T) {
	for name, skip := range map[string]func(*grpclimit.Call) bool{
		"by default":               nil,
		"with a Skip of one's own": func(*grpclimit.Call) bool { return false },
	} {
		t.Run(name, func(t *testing.T) {
			l := ratelimit.Must(inflight.New(10, &inflight.Options[string]{Total: 10}))
			i := ratelimit.Must(grpclimit.NewInflight(l, everyone, &grpclimit.InflightOptions{Skip: skip}))
			server := new(service).server(grpc.ChainUnaryInterceptor(i.UnaryServerInterceptor()), grpc.ChainStreamInterceptor(i.StreamServerInterceptor()))
			healthpb.RegisterHealthServer(server, health.NewServer())
			reflection.Register(server)
			addr := start(t, server)
			opened := 0
			for range 8 {
				conn := dial(t, addr)
				watch, err := healthpb.NewHealthClient(conn).Watch(t.Context(), &healthpb.HealthCheckRequest{})
				require.NoError(t, err)
				if _, err = watch.Recv(); err == nil {
					opened++
				}
				stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
				require.NoError(t, err)
				request := &reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}
				_ = stream.Send(request) // its error is that of Recv
				if _, err = stream.Recv(); err == nil {
					opened++
				}
			}
			got := call(t.Context(), testgrpc.NewTestServiceClient(dial(t, addr))).code
			if skip == nil {
				assert.Equal(t, 16, opened)
				assert.Equal(t, codes.OK, got)
				assert.EqualValues(t, 16, i.Stats().Skipped)
			} else {
				assert.Equal(t, 10, opened)
				assert.Equal(t, codes.Unavailable, got)
			}
		})
	}
}

func TestPerIPBehindAProxyIsWarnedOfOnce(t *testing.T) {
	for peer, want := range map[string]int{"10.0.0.1:1": 1, "127.0.0.1:1": 1, "192.0.2.1:1": 0} {
		var log bytes.Buffer
		i := ratelimit.Must(grpclimit.PerIP(window(100), &grpclimit.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}))
		for range 3 {
			_, err := i.UnaryServerInterceptor()(incoming(tcp(peer), "x-forwarded-for", "198.51.100.7"), nil, info, answering(nil))
			require.NoError(t, err)
		}
		assert.Equal(t, want, strings.Count(log.String(), `level=WARN msg="grpclimit: PerIP gives one budget to all clients of a proxy: use New with ClientIP" field=X-Forwarded-For`), peer)
		assert.NotContains(t, log.String(), "198.51")
	}
}

// pacing is an interceptor that lets one call a second through, and queues ten.
func pacing(t *testing.T, opts grpclimit.Options) *grpclimit.Interceptor {
	t.Helper()
	return interceptor(t, limiterOf(t, nil, ratelimit.LeakyBucket(ratelimit.PerSecond(1), 10).Named("pace")), opts)
}

func TestALeakyBucketHoldsTheCall(t *testing.T) {
	for name, opts := range map[string]grpclimit.Options{"charged": {}, "settled": {Settle: grpclimit.RefundServerErrors}} {
		bubble(t, name, func(t *testing.T) {
			call := pacing(t, opts).UnaryServerInterceptor()
			start := time.Now()
			for n := range 3 {
				_, err := call(context.Background(), nil, info, answering(nil))
				require.NoError(t, err)
				assert.Equal(t, time.Duration(n)*time.Second, time.Since(start))
			}
		})
	}
}

func TestALeakyBucketHoldsMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := pacing(t, grpclimit.Options{ChargeMessages: true})
		start := time.Now()
		err := i.StreamServerInterceptor()(nil, &fakeStream{received: make([]error, 2)}, &grpc.StreamServerInfo{}, func(_ any, s grpc.ServerStream) error {
			assert.Zero(t, time.Since(start))
			require.NoError(t, s.RecvMsg(nil))
			assert.Equal(t, time.Second, time.Since(start))
			require.NoError(t, s.RecvMsg(nil))
			assert.Equal(t, 2*time.Second, time.Since(start))
			return nil
		})
		require.NoError(t, err)
	})
}

func TestACallThatIsNotHeldUntilItsTurnIsNotServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		call := pacing(t, grpclimit.Options{}).UnaryServerInterceptor()
		_, err := call(t.Context(), nil, info, answering(nil))
		require.NoError(t, err)
		hurried, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = call(hurried, nil, info, unreachable(t))
		s := status.Convert(err)
		assert.Equal(t, codes.ResourceExhausted, s.Code())
		assert.Equal(t, "the rate limit delays the call beyond its deadline: pace", s.Message())
		require.IsType(t, new(errdetails.RetryInfo), s.Details()[0])
		assert.Equal(t, time.Second, s.Details()[0].(*errdetails.RetryInfo).RetryDelay.AsDuration())
		ctx, leave := context.WithCancel(t.Context())
		time.AfterFunc(500*time.Millisecond, leave)
		_, err = call(ctx, nil, info, unreachable(t))
		assert.Equal(t, codes.Canceled, status.Code(err))
	})
}

func TestAHeldMessageWhoseClientLeavesGivesItsPlaceBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := pacing(t, grpclimit.Options{ChargeMessages: true})
		start := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		defer cancel()
		err := i.StreamServerInterceptor()(nil, &fakeStream{ctx: ctx, received: make([]error, 1)}, &grpc.StreamServerInfo{}, func(_ any, s grpc.ServerStream) error {
			return s.RecvMsg(nil)
		})
		require.Equal(t, codes.ResourceExhausted, status.Code(err))
		_, err = i.UnaryServerInterceptor()(context.Background(), nil, info, answering(nil))
		require.NoError(t, err)
		assert.Equal(t, time.Second, time.Since(start), "the opening has stayed charged, the message has not")
	})
}

func TestAGracefulStopRefusesHeldCallsAtOnce(t *testing.T) {
	l := ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerHour(1), 1), nil))
	i := interceptor(t, ratelimit.Map(l, everyone), grpclimit.Options{MaxHold: 100 * time.Hour})
	server := new(service).server(with(i)...)
	client := testgrpc.NewTestServiceClient(dial(t, start(t, server)))
	require.Equal(t, codes.OK, call(t.Context(), client).code)
	codesOf := make(chan codes.Code, 10)
	for range 10 {
		go func() { codesOf <- call(t.Context(), client).code }()
	}
	require.Eventually(t, func() bool { return l.Stats().Waiting == 10 }, time.Minute, time.Millisecond)
	i.RefuseHeld()
	server.GracefulStop()
	for range 10 {
		assert.Equal(t, codes.ResourceExhausted, <-codesOf)
	}
	assert.Equal(t, httplimit.Stats{Allowed: 1, Denied: 10}, i.Stats())
	new(grpclimit.Interceptor).RefuseHeld()
}
