package conformance

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/inflight"
)

const (
	checkMethod = "/grpc.health.v1.Health/Check"
	watchMethod = "/grpc.health.v1.Health/Watch"
)

// rpcServer serves HTTP/1.1 and HTTP/2 without TLS on one port, and returns its address.
func rpcServer(t *testing.T, h http.Handler) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	s := &http.Server{Handler: h, Protocols: protocols}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	return l.Addr().String()
}

// rpcClient returns a client for HTTP/2 without TLS.
func rpcClient(t *testing.T) *http.Client {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	tr := &http.Transport{Protocols: protocols}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// connectHealth returns the health service in connect-go's three protocols.
func connectHealth() http.Handler {
	mux := http.NewServeMux()
	mux.Handle(checkMethod, connect.NewUnaryHandler(checkMethod,
		func(context.Context, *connect.Request[healthpb.HealthCheckRequest]) (*connect.Response[healthpb.HealthCheckResponse], error) {
			return connect.NewResponse(&healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}), nil
		}, connect.WithIdempotency(connect.IdempotencyNoSideEffects)))
	mux.Handle(watchMethod, connect.NewServerStreamHandler(watchMethod,
		func(_ context.Context, _ *connect.Request[healthpb.HealthCheckRequest], s *connect.ServerStream[healthpb.HealthCheckResponse]) error {
			return s.Send(&healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING})
		}))
	return mux
}

var rpcProtocols = map[string][]connect.ClientOption{
	"connect":      nil,
	"connect-json": {connect.WithProtoJSON()},
	"connect-get":  {connect.WithHTTPGet(), connect.WithIdempotency(connect.IdempotencyNoSideEffects)},
	"grpc":         {connect.WithGRPC()},
	"grpc-web":     {connect.WithGRPCWeb()},
}

// retryDelay returns the delay of an error's RetryInfo.
func retryDelay(err error) time.Duration {
	var refused *connect.Error
	if !errors.As(err, &refused) {
		return -1
	}
	for _, d := range refused.Details() {
		v, err := d.Value()
		if err != nil {
			return -1
		}
		if info, ok := v.(*errdetails.RetryInfo); ok {
			return info.RetryDelay.AsDuration()
		}
	}
	return 0
}

// quota returns the violation of an error's QuotaFailure.
func quota(err error) *errdetails.QuotaFailure_Violation {
	var refused *connect.Error
	if !errors.As(err, &refused) {
		return nil
	}
	for _, d := range refused.Details() {
		if v, _ := d.Value(); v != nil {
			if q, ok := v.(*errdetails.QuotaFailure); ok {
				return q.Violations[0]
			}
		}
	}
	return nil
}

// TestACallIsDeniedInItsOwnProtocol checks the errors that connect-go's clients get for a denial.
func TestACallIsDeniedInItsOwnProtocol(t *testing.T) {
	for name, options := range rpcProtocols {
		t.Run(name, func(t *testing.T) {
			m, err := httplimit.PerIP(ratelimit.FixedWindow(ratelimit.PerHour(2)).Named("calls"), nil)
			require.NoError(t, err)
			url := "http://" + rpcServer(t, m.Wrap(connectHealth()))
			check := connect.NewClient[healthpb.HealthCheckRequest, healthpb.HealthCheckResponse](rpcClient(t), url+checkMethod, options...)
			watch := connect.NewClient[healthpb.HealthCheckRequest, healthpb.HealthCheckResponse](rpcClient(t), url+watchMethod, options...)

			unary := func() error {
				_, err := check.CallUnary(t.Context(), connect.NewRequest(&healthpb.HealthCheckRequest{Service: "x"}))
				return err
			}
			stream := func() error {
				s, err := watch.CallServerStream(t.Context(), connect.NewRequest(&healthpb.HealthCheckRequest{}))
				if err != nil {
					return err
				}
				defer s.Close()
				for s.Receive() {
				}
				return s.Err()
			}
			require.NoError(t, unary())
			require.NoError(t, stream())
			for kind, call := range map[string]func() error{"unary": unary, "stream": stream} {
				err := call()
				require.Error(t, err, kind)
				assert.Equal(t, connect.CodeResourceExhausted, connect.CodeOf(err), kind)
				assert.ErrorContains(t, err, "rate limit exceeded: calls", kind)
				assert.InDelta(t, time.Hour, retryDelay(err), float64(time.Minute), kind)
				assert.Equal(t, "2 per 1h0m0s, 2 at once", quota(err).GetDescription(), kind)
				assert.EqualValues(t, 2, quota(err).GetQuotaValue(), kind)
			}
		})
	}
}

// TestOtherRefusalsInTheCallsProtocol sends costs that can never pass and calls
// without a key. Other calls are refused because a store is down or no permit is free.
func TestOtherRefusalsInTheCallsProtocol(t *testing.T) {
	blocked, err := httplimit.PerIP(ratelimit.Blocked(), nil)
	require.NoError(t, err)
	keyed, err := httplimit.New(ratelimit.Map(ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerHour(1)), nil)), httplimit.Header("X-Client")),
		&httplimit.Options{KeyCode: http.StatusUnauthorized})
	require.NoError(t, err)
	down, err := httplimit.New(unavailable{}, nil)
	require.NoError(t, err)
	room, err := inflight.New[string](1, nil)
	require.NoError(t, err)
	permit, err := room.Acquire(t.Context(), "", 1)
	require.NoError(t, err)
	defer permit.Release()
	full, err := httplimit.NewInflight(room, func(*http.Request) (string, error) { return "", nil }, nil)
	require.NoError(t, err)
	for _, c := range []struct {
		name string
		wrap func(http.Handler) http.Handler
		want connect.Code
	}{
		{"a cost that can never pass", blocked.Wrap, connect.CodeResourceExhausted},
		{"no key", keyed.Wrap, connect.CodeUnauthenticated},
		{"the store is down", down.Wrap, connect.CodeUnavailable},
		{"no room", full.Wrap, connect.CodeUnavailable},
	} {
		url := "http://" + rpcServer(t, c.wrap(connectHealth()))
		for protocol, options := range rpcProtocols {
			t.Run(c.name+"/"+protocol, func(t *testing.T) {
				check := connect.NewClient[healthpb.HealthCheckRequest, healthpb.HealthCheckResponse](rpcClient(t), url+checkMethod, options...)
				_, err := check.CallUnary(t.Context(), connect.NewRequest(&healthpb.HealthCheckRequest{}))
				require.Error(t, err)
				assert.Equal(t, c.want, connect.CodeOf(err))
				assert.NotContains(t, err.Error(), "X-Client", "the text of errors is the server's own")
			})
		}
	}
}

// unavailable is a limiter with its store down.
type unavailable struct{}

func (unavailable) Allow(*http.Request, int) bool { return false }
func (unavailable) Take(context.Context, *http.Request, int) (ratelimit.Decision, error) {
	return ratelimit.Decision{}, ratelimit.ErrUnavailable
}

// TestGRPCBehindHTTPMiddleware uses grpc-go on both sides, with its server as an http.Handler.
func TestGRPCBehindHTTPMiddleware(t *testing.T) {
	server := grpc.NewServer()
	healthpb.RegisterHealthServer(server, health.NewServer())
	m, err := httplimit.PerIP(ratelimit.FixedWindow(ratelimit.PerHour(2)).Named("calls"), nil)
	require.NoError(t, err)
	conn, err := grpc.NewClient(rpcServer(t, m.Wrap(server)), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	client := healthpb.NewHealthClient(conn)
	for range 2 {
		_, err = client.Check(t.Context(), &healthpb.HealthCheckRequest{})
		require.NoError(t, err)
	}
	denied := func(err error) {
		t.Helper()
		require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
		details := status.Convert(err).Details()
		require.Len(t, details, 2)
		assert.InDelta(t, time.Hour, details[0].(*errdetails.RetryInfo).RetryDelay.AsDuration(), float64(time.Minute))
		assert.Equal(t, "calls", details[1].(*errdetails.QuotaFailure).Violations[0].QuotaId)
	}
	_, err = client.Check(t.Context(), &healthpb.HealthCheckRequest{})
	denied(err)
	watch, err := client.Watch(t.Context(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	_, err = watch.Recv()
	denied(err)
}

// TestARequestThatIsNoCallGetsAProblem sends a POST without any sign of Connect.
func TestARequestThatIsNoCallGetsAProblem(t *testing.T) {
	m, err := httplimit.PerIP(ratelimit.Blocked(), nil)
	require.NoError(t, err)
	url := "http://" + rpcServer(t, m.Wrap(connectHealth()))
	resp, err := http.Post(url+checkMethod, "application/json", strings.NewReader("{}"))
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	assert.Equal(t, http.StatusForbidden, resp.StatusCode)
	assert.Equal(t, "application/problem+json", resp.Header.Get("Content-Type"))
	assert.Contains(t, string(body), "quota-exceeded")
}
