package grpclimit_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// quiet is the logger of interceptors with expected errors.
var quiet = slog.New(slog.DiscardHandler)

// everyone is a key function that puts all calls under one key.
func everyone(*grpclimit.Call) (string, error) { return "everyone", nil }

// limiterOf returns a stack of one layer for each limit, all keyed alike.
func limiterOf(t testing.TB, clock ratelimit.Clock, limits ...ratelimit.Limit) *ratelimit.Layered[*grpclimit.Call] {
	t.Helper()
	var layers []ratelimit.Layer[*grpclimit.Call]
	for _, limit := range limits {
		l := ratelimit.Must(ratelimit.New(limit, &ratelimit.Options[string]{Clock: clock}))
		layers = append(layers, ratelimit.By(l, everyone))
	}
	return ratelimit.Must(ratelimit.All(layers...))
}

func interceptor(t testing.TB, l ratelimit.Limiter[*grpclimit.Call], opts grpclimit.Options) *grpclimit.Interceptor {
	t.Helper()
	if opts.Logger == nil {
		opts.Logger = quiet
	}
	return ratelimit.Must(grpclimit.New(l, &opts))
}

// hourly returns an interceptor with a window of n calls an hour, on a clock that stands still.
func hourly(t testing.TB, n int, opts grpclimit.Options) *grpclimit.Interceptor {
	t.Helper()
	limit := ratelimit.FixedWindow(ratelimit.PerHour(n)).Named("hourly")
	return interceptor(t, limiterOf(t, new(ratelimittest.Clock), limit), opts)
}

// service has a server's handlers. If one is nil, the service returns an empty response.
type service struct {
	testgrpc.UnimplementedTestServiceServer
	unary    func(context.Context, *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error)
	stream   func(testgrpc.TestService_FullDuplexCallServer) error
	incoming func(testgrpc.TestService_StreamingInputCallServer) error
}

func (s *service) UnaryCall(ctx context.Context, r *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
	if s.unary == nil {
		return &testgrpc.SimpleResponse{Payload: r.Payload}, nil
	}
	return s.unary(ctx, r)
}

// FullDuplexCall echoes messages.
func (s *service) FullDuplexCall(stream testgrpc.TestService_FullDuplexCallServer) error {
	if s.stream == nil {
		return echo(stream)
	}
	return s.stream(stream)
}

func (s *service) StreamingInputCall(stream testgrpc.TestService_StreamingInputCallServer) error {
	return s.incoming(stream)
}

func echo(stream testgrpc.TestService_FullDuplexCallServer) error {
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := stream.Send(&testgrpc.StreamingOutputCallResponse{Payload: m.Payload}); err != nil {
			return err
		}
	}
}

// bubble runs a subtest in virtual time.
func bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

// with returns the server options for interceptors, the outermost first.
func with(list ...*grpclimit.Interceptor) (opts []grpc.ServerOption) {
	for _, i := range list {
		opts = append(opts, grpc.ChainUnaryInterceptor(i.UnaryServerInterceptor()), grpc.ChainStreamInterceptor(i.StreamServerInterceptor()))
	}
	return opts
}

// serve starts a server on the loopback interface and returns a client.
func serve(t testing.TB, s *service, opts ...grpc.ServerOption) testgrpc.TestServiceClient {
	t.Helper()
	return testgrpc.NewTestServiceClient(dial(t, start(t, s.server(opts...))))
}

// server returns a server with the handlers.
func (s *service) server(opts ...grpc.ServerOption) *grpc.Server {
	server := grpc.NewServer(opts...)
	testgrpc.RegisterTestServiceServer(server, s)
	return server
}

// start serves on the loopback interface until the test ends.
func start(t testing.TB, server *grpc.Server) (addr string) {
	t.Helper()
	lis := ratelimit.Must(net.Listen("tcp", "127.0.0.1:0"))
	listen(t, server, lis)
	return lis.Addr().String()
}

// listen serves on a listener until the test ends.
func listen(t testing.TB, server *grpc.Server, lis net.Listener) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := server.Serve(lis); !errors.Is(err, grpc.ErrServerStopped) { // the server was stopped before it began
			assert.NoError(t, err)
		}
	}()
	t.Cleanup(func() { server.Stop(); <-done })
}

func dial(t testing.TB, addr string, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(addr, append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, conn.Close()) })
	return conn
}

// answer is a call's end at the client: a status, its details and trailers.
type answer struct {
	code     codes.Code
	message  string
	retry    *errdetails.RetryInfo
	quota    *errdetails.QuotaFailure
	pushback []string
	header   metadata.MD
	trailer  metadata.MD
}

// call makes a unary call.
func call(ctx context.Context, client testgrpc.TestServiceClient) answer {
	var a answer
	_, err := client.UnaryCall(ctx, &testgrpc.SimpleRequest{}, grpc.Header(&a.header), grpc.Trailer(&a.trailer))
	return a.read(err)
}

// open opens a stream, sends n messages and closes its side.
func open(ctx context.Context, client testgrpc.TestServiceClient, n int) (a answer, echoed int) {
	stream, err := client.FullDuplexCall(ctx)
	if err != nil {
		return a.read(err), 0
	}
	for range n {
		_ = stream.Send(&testgrpc.StreamingOutputCallRequest{}) // Recv returns a send's error
	}
	_ = stream.CloseSend()
	for {
		if _, err = stream.Recv(); err != nil {
			break
		}
		echoed++
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	a.header, _ = stream.Header()
	a.trailer = stream.Trailer()
	return a.read(err), echoed
}

func (a answer) read(err error) answer {
	s := status.Convert(err)
	a.code, a.message, a.pushback = s.Code(), s.Message(), a.trailer["grpc-retry-pushback-ms"]
	for _, d := range s.Details() {
		switch d := d.(type) {
		case *errdetails.RetryInfo:
			a.retry = d
		case *errdetails.QuotaFailure:
			a.quota = d
		}
	}
	return a
}

// fakeStream is a server's stream with prepared messages.
type fakeStream struct {
	ctx      context.Context
	received []error // RecvMsg's results, in order; io.EOF follows
	trailer  metadata.MD
	sent     int
	sending  error // SendMsg's result
	heading  error // SendHeader's result
}

func (s *fakeStream) Context() context.Context {
	if s.ctx == nil {
		return context.Background()
	}
	return s.ctx
}

func (s *fakeStream) RecvMsg(any) error {
	if len(s.received) == 0 {
		return io.EOF
	}
	err := s.received[0]
	s.received = s.received[1:]
	return err
}

func (s *fakeStream) SendMsg(any) error            { s.sent++; return s.sending }
func (s *fakeStream) SetTrailer(md metadata.MD)    { s.trailer = metadata.Join(s.trailer, md) }
func (s *fakeStream) SetHeader(metadata.MD) error  { return nil }
func (s *fakeStream) SendHeader(metadata.MD) error { return s.heading }

// stub is a limiter that returns the prepared decision.
type stub struct {
	decision ratelimit.Decision
	err      error
}

func (s *stub) Allow(*grpclimit.Call, int) bool { return s.decision.Allowed }

func (s *stub) Take(context.Context, *grpclimit.Call, int) (ratelimit.Decision, error) {
	return s.decision, s.err
}

// script is a server that records each call's time and returns prepared answers.
type script struct {
	mu      sync.Mutex
	begin   time.Time
	arrived []time.Duration   // when calls arrived
	answer  func(n int) reply // n counts the calls from 1; nil means OK
	takes   time.Duration     // how long a call with OK is served
}

// reply is the end of a call.
type reply struct {
	err      error
	pushback []string
}

func newScript(answer func(n int) reply) *script { return &script{begin: time.Now(), answer: answer} }

// once returns r for the first call, and OK for all others.
func once(r reply) func(int) reply {
	return func(n int) reply {
		if n == 1 {
			return r
		}
		return reply{}
	}
}

// next records a call and returns its answer.
func (s *script) next(setTrailer func(metadata.MD)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.arrived = append(s.arrived, time.Since(s.begin))
	if s.answer == nil {
		s.mu.Unlock()
		time.Sleep(s.takes)
		s.mu.Lock()
		return nil
	}
	r := s.answer(len(s.arrived))
	if len(r.pushback) > 0 {
		setTrailer(metadata.MD{"grpc-retry-pushback-ms": r.pushback})
	}
	return r.err
}

func (s *script) server() *grpc.Server {
	return new(service).server(
		grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if err := s.next(func(md metadata.MD) { _ = grpc.SetTrailer(ctx, md) }); err != nil {
				return nil, err
			}
			return handler(ctx, req)
		}),
		grpc.StreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			if err := s.next(ss.SetTrailer); err != nil {
				return err
			}
			return handler(srv, ss)
		}))
}

// times returns when the calls arrived.
func (s *script) times() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.arrived)
}

// refusing returns a status with a RetryInfo for each delay.
func refusing(code codes.Code, delays ...*durationpb.Duration) error {
	st := status.New(code, "refused")
	for _, d := range delays {
		st, _ = st.WithDetails(&errdetails.RetryInfo{RetryDelay: d})
	}
	return st.Err()
}

// denial returns RESOURCE_EXHAUSTED with a RetryInfo.
func denial(wait time.Duration) reply {
	return reply{err: refusing(codes.ResourceExhausted, durationpb.New(wait))}
}

// byTarget returns a limiter with one limit for each target.
func byTarget(t testing.TB, limit ratelimit.Limit) ratelimit.Reserver[*grpclimit.Call] {
	t.Helper()
	return ratelimit.Map(ratelimit.Must(ratelimit.New[string](limit, nil)), func(c *grpclimit.Call) (string, error) { return c.Target, nil })
}

func unlimited(t testing.TB) ratelimit.Reserver[*grpclimit.Call] {
	t.Helper()
	return byTarget(t, ratelimit.Unlimited())
}

// paced returns a Client and a function that connects with it.
func paced(t testing.TB, l ratelimit.Reserver[*grpclimit.Call], opts grpclimit.ClientOptions) (*grpclimit.Client, []grpc.DialOption) {
	t.Helper()
	if opts.MaxWait == 0 {
		opts.MaxWait = -1 // these tests wait as long as the server demands
	}
	c := ratelimit.Must(grpclimit.NewClient(l, &opts))
	return c, []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(c.UnaryClientInterceptor()),
		grpc.WithChainStreamInterceptor(c.StreamClientInterceptor()),
	}
}

// pacedInBubble connects a Client to a scripted server in memory.
func pacedInBubble(t testing.TB, s *script, l ratelimit.Reserver[*grpclimit.Call], opts grpclimit.ClientOptions) (testgrpc.TestServiceClient, *grpclimit.Client) {
	t.Helper()
	c, dialling := paced(t, l, opts)
	return inBubble(t, s.server(), dialling...), c
}

// ok makes a call that must succeed.
func ok(ctx context.Context, t testing.TB, client testgrpc.TestServiceClient, way string) {
	t.Helper()
	assert.NoError(t, ways[way](ctx, client))
}
