package grpclimit_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// quiet is for interceptors whose errors are expected.
var quiet = slog.New(slog.DiscardHandler)

// everyone is a key function that puts all calls under one key.
func everyone(*grpclimit.Call) (string, error) { return "everyone", nil }

// limiterOf returns a stack of one layer for each limit, all keyed alike.
func limiterOf(t testing.TB, clock ratelimit.Clock, limits ...ratelimit.Limit) *ratelimit.Layered[*grpclimit.Call] {
	t.Helper()
	var layers []ratelimit.Layer[*grpclimit.Call]
	for _, limit := range limits {
		l, err := ratelimit.New(limit, &ratelimit.Options[string]{Clock: clock})
		require.NoError(t, err)
		layers = append(layers, ratelimit.By(l, everyone))
	}
	all, err := ratelimit.All(layers...)
	require.NoError(t, err)
	return all
}

func interceptor(t testing.TB, l ratelimit.Limiter[*grpclimit.Call], opts grpclimit.Options) *grpclimit.Interceptor {
	t.Helper()
	if opts.Logger == nil {
		opts.Logger = quiet
	}
	i, err := grpclimit.New(l, &opts)
	require.NoError(t, err)
	return i
}

// hourly is an interceptor with a window of n calls an hour, at a time that stands still.
func hourly(t testing.TB, n int, opts grpclimit.Options) *grpclimit.Interceptor {
	t.Helper()
	limit := ratelimit.FixedWindow(ratelimit.PerHour(n)).Named("hourly")
	return interceptor(t, limiterOf(t, new(ratelimittest.Clock), limit), opts)
}

// service is a server's handlers. A nil one answers as simply as possible.
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

// with returns the server options for interceptors, in order from the outside.
func with(list ...*grpclimit.Interceptor) (opts []grpc.ServerOption) {
	for _, i := range list {
		opts = append(opts, grpc.ChainUnaryInterceptor(i.UnaryServerInterceptor()), grpc.ChainStreamInterceptor(i.StreamServerInterceptor()))
	}
	return opts
}

// serve starts a server on the loopback interface, and returns a client.
func serve(t testing.TB, s *service, opts ...grpc.ServerOption) testgrpc.TestServiceClient {
	t.Helper()
	server := grpc.NewServer(opts...)
	testgrpc.RegisterTestServiceServer(server, s)
	return testgrpc.NewTestServiceClient(dial(t, start(t, server)))
}

// start serves on the loopback interface until the test ends.
func start(t testing.TB, server *grpc.Server) (addr string) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := server.Serve(lis); !errors.Is(err, grpc.ErrServerStopped) { // stopped before it could begin
			assert.NoError(t, err)
		}
	}()
	t.Cleanup(func() { server.Stop(); <-done })
	return lis.Addr().String()
}

func dial(t testing.TB, addr string, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(addr, append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, conn.Close()) })
	return conn
}

// answer is the answer that a client gets: a status, its details, and trailers.
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
		_ = stream.Send(&testgrpc.StreamingOutputCallRequest{}) // Recv returns the error
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
