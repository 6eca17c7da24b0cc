package benchmarks

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	middleware "github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/ratelimit"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// grpcPeers are interceptors in their usual setup; a nil one means a bare server. The interceptor
// of go-grpc-middleware has neither keys nor a limiter, because its user supplies one. So it is
// measured with one rate.Limiter for all calls, and with one for each client address.
var grpcPeers = []struct {
	name string
	new  func(s setup) grpc.UnaryServerInterceptor
}{
	{"bare", func(setup) grpc.UnaryServerInterceptor { return nil }},
	{"grpclimit-all", func(s setup) grpc.UnaryServerInterceptor {
		all := must(ratelimit.All(ratelimit.Global[*grpclimit.Call](must(ratelimit.New[struct{}](limitOf(s), nil)))))
		return must(grpclimit.New(all, nil)).UnaryServerInterceptor()
	}},
	{"grpclimit-address", func(s setup) grpc.UnaryServerInterceptor {
		return must(grpclimit.PerIP(limitOf(s), nil)).UnaryServerInterceptor()
	}},
	// many addresses are denied at different times, so no two answers are equal
	{"grpclimit-another-wait", func(s setup) grpc.UnaryServerInterceptor {
		clock := new(ratelimittest.Clock)
		l := must(ratelimit.New(limitOf(s), &ratelimit.Options[netip.Addr]{Clock: clock}))
		return must(grpclimit.New(ratelimit.Map(l, func(c *grpclimit.Call) (netip.Addr, error) {
			if s.shut {
				clock.Advance(time.Millisecond)
			}
			return grpclimit.RemoteIP(c)
		}), nil)).UnaryServerInterceptor()
	}},
	{"hand-written-all", func(s setup) grpc.UnaryServerInterceptor {
		one := newTimeLimiter(s)
		return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if one.Allow() {
				return handler(ctx, req)
			}
			st, err := status.New(codes.ResourceExhausted, "rate limit exceeded").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Second)})
			if err != nil {
				return nil, err
			}
			return nil, st.Err()
		}
	}},
	{"go-grpc-middleware-all", func(s setup) grpc.UnaryServerInterceptor {
		one := newTimeLimiter(s)
		return middleware.UnaryServerInterceptor(limitFunc(func(context.Context) bool { return one.Allow() }))
	}},
	{"go-grpc-middleware-address", func(s setup) grpc.UnaryServerInterceptor {
		var mu sync.Mutex
		limiters := make(map[netip.Addr]*rate.Limiter)
		return middleware.UnaryServerInterceptor(limitFunc(func(ctx context.Context) bool {
			p, ok := grpcpeer.FromContext(ctx)
			if !ok {
				return false
			}
			addr := p.Addr.(*net.TCPAddr).AddrPort().Addr().Unmap()
			mu.Lock()
			l := limiters[addr]
			if l == nil {
				l = newTimeLimiter(s)
				limiters[addr] = l
			}
			mu.Unlock()
			return l.Allow()
		}))
	}},
}

func limitOf(s setup) ratelimit.Limit {
	units, per := s.figures()
	return ratelimit.TokenBucket(ratelimit.Per(units, per), units)
}

func newTimeLimiter(s setup) *rate.Limiter {
	units, per := s.figures()
	return rate.NewLimiter(rate.Limit(float64(units)/per.Seconds()), units)
}

// limitFunc makes a function a Limiter for go-grpc-middleware.
type limitFunc func(ctx context.Context) bool

var errDenied = status.Error(codes.ResourceExhausted, "rate limit exceeded")

func (a limitFunc) Limit(ctx context.Context) error {
	if a(ctx) {
		return nil
	}
	return errDenied
}

// direct returns a function calling an interceptor as a server does.
func direct(i grpc.UnaryServerInterceptor) func() error {
	ctx := grpcpeer.NewContext(context.Background(), &grpcpeer.Peer{Addr: net.TCPAddrFromAddrPort(netip.MustParseAddrPort("192.0.2.1:4711"))})
	info := &grpc.UnaryServerInfo{FullMethod: "/grpc.testing.TestService/EmptyCall"}
	handler := func(_ context.Context, req any) (any, error) { return req, nil }
	var req any = new(testgrpc.Empty)
	return func() error {
		_, err := i(ctx, req, info, handler)
		return err
	}
}

type emptyService struct {
	testgrpc.UnimplementedTestServiceServer
}

var empty = new(testgrpc.Empty)

func (emptyService) EmptyCall(context.Context, *testgrpc.Empty) (*testgrpc.Empty, error) {
	return empty, nil
}

// overLoopback returns a function that makes a unary call to a real server.
func overLoopback(t testing.TB, i grpc.UnaryServerInterceptor) func() error {
	var opts []grpc.ServerOption
	if i != nil {
		opts = append(opts, grpc.ChainUnaryInterceptor(i))
	}
	server := grpc.NewServer(opts...)
	testgrpc.RegisterTestServiceServer(server, emptyService{})
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = server.Serve(lis) }()
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	client := testgrpc.NewTestServiceClient(conn)
	return func() error {
		_, err := client.EmptyCall(context.Background(), empty)
		return err
	}
}

// BenchmarkGRPC measures an allowed unary call, once with the interceptor alone and once over the loopback interface.
func BenchmarkGRPC(b *testing.B) {
	for _, p := range grpcPeers {
		if i := p.new(setup{}); i != nil {
			b.Run("call=direct/peer="+p.name, func(b *testing.B) { measureCalls(b, direct(i)) })
		}
	}
	for _, p := range grpcPeers {
		b.Run("call=loopback/peer="+p.name, func(b *testing.B) { measureCalls(b, overLoopback(b, p.new(setup{}))) })
	}
}

// BenchmarkGRPCDenial measures a denied unary call, once with the interceptor alone and once over
// the loopback interface. Only grpclimit and the hand-written interceptor send a retry delay.
func BenchmarkGRPCDenial(b *testing.B) {
	for _, p := range grpcPeers {
		if i := p.new(setup{shut: true}); i != nil {
			b.Run("call=direct/peer="+p.name, func(b *testing.B) { measureDenials(b, direct(i)) })
			b.Run("call=loopback/peer="+p.name, func(b *testing.B) { measureDenials(b, overLoopback(b, i)) })
		}
	}
}

func measureDenials(b *testing.B, call func() error) {
	_ = call() // this may be the allowed call
	b.ReportAllocs()
	for b.Loop() {
		if call() == nil {
			b.Fatal("allowed")
		}
	}
}

func measureCalls(b *testing.B, call func() error) {
	require.NoError(b, call())
	b.ReportAllocs()
	for b.Loop() {
		if err := call(); err != nil {
			b.Fatal(err)
		}
	}
}

// The benchmarks' limiters do limit.
func TestGRPCPeersLimit(t *testing.T) {
	for _, p := range grpcPeers {
		i := p.new(setup{shut: true})
		if i == nil {
			continue
		}
		for name, call := range map[string]func() error{"direct": direct(i), "loopback": overLoopback(t, p.new(setup{shut: true}))} {
			assert.NoError(t, call(), "%s %s", p.name, name)
			assert.Equal(t, codes.ResourceExhausted, status.Code(call()), "%s %s", p.name, name)
		}
	}
}
