package grpclimit_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/edge"
	"github.com/weir-go/ratelimit/ratelimittest"
)

func window(n int) ratelimit.Limit { return ratelimit.FixedWindow(ratelimit.PerHour(n)) }

// remaining returns a limiter's remaining budget.
func remaining(t *testing.T, l ratelimit.Limiter[*grpclimit.Call]) int {
	t.Helper()
	d, err := ratelimit.Peek(t.Context(), l, &grpclimit.Call{}, 1)
	require.NoError(t, err)
	return d.Remaining
}

func TestTheOuterInterceptorGivesBackWhatTheInnerOneRefuses(t *testing.T) {
	one := func(t *testing.T) []grpc.ServerOption { return with(hourly(t, 1, grpclimit.Options{})) }
	aborted := func(grpclimit.Event, *status.Status) *status.Status { return status.New(codes.Aborted, "") }
	for name, row := range map[string]struct {
		opts   grpclimit.Options
		inner  func(*testing.T) []grpc.ServerOption
		served int
	}{
		"a rate": {grpclimit.Options{}, one, 1},
		"a rate, two deep": {grpclimit.Options{}, func(t *testing.T) []grpc.ServerOption {
			return append(with(hourly(t, 60, grpclimit.Options{})), one(t)...)
		}, 1},
		"settled":            {grpclimit.Options{Settle: grpclimit.RefundServerErrors}, one, 1},
		"a shadow around it": {grpclimit.Options{Shadow: true}, one, 1},
		"an error of its own": {grpclimit.Options{}, func(t *testing.T) []grpc.ServerOption {
			return with(hourly(t, 1, grpclimit.Options{OnDenied: aborted}))
		}, 1},
		"an Inflight": {grpclimit.Options{}, func(t *testing.T) []grpc.ServerOption {
			full := ratelimit.Must(inflight.New[string](1, nil))
			_ = ratelimit.Must(full.TryAcquire("everyone", 1))
			return with(ratelimit.Must(grpclimit.NewInflight(full, everyone, nil)))
		}, 0},
	} {
		for _, stream := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				l := limiterOf(t, new(ratelimittest.Clock), window(100))
				client := serve(t, &service{}, append(with(interceptor(t, l, row.opts)), row.inner(t)...)...)
				served := 0
				for range 50 {
					var got answer
					if stream {
						got, _ = open(t.Context(), client, 0)
					} else {
						got = call(t.Context(), client)
					}
					if got.code == codes.OK {
						served++
					}
				}
				assert.Equal(t, row.served, served)
				assert.Equal(t, 100-served, remaining(t, l))
			})
		}
	}
}

// If an inner limit denies a message, the stream's opening stays charged.
func TestADeniedMessageGivesNoOpeningBack(t *testing.T) {
	l := limiterOf(t, new(ratelimittest.Clock), window(2))
	client := serve(t, &service{}, with(interceptor(t, l, grpclimit.Options{}), hourly(t, 2, grpclimit.Options{ChargeMessages: true}))...)
	got, echoed := open(t.Context(), client, 2)
	assert.Equal(t, codes.ResourceExhausted, got.code)
	assert.Equal(t, 1, echoed)
	assert.Equal(t, 1, remaining(t, l))
}

// Around a handler of net/http the middleware learns of refusals by the context. A denied message is not the call's refusal.
func TestADeniedMessageIsNoRefusalOfTheCall(t *testing.T) {
	for name, row := range map[string]struct {
		limit int
		want  bool
	}{"the opening": {0, true}, "a message": {1, false}} {
		limit := ratelimit.Blocked()
		if row.limit > 0 {
			limit = window(row.limit)
		}
		i := interceptor(t, limiterOf(t, new(ratelimittest.Clock), limit), grpclimit.Options{ChargeMessages: true})
		ctx := edge.Inside(t.Context())
		err := i.StreamServerInterceptor()(nil, &fakeStream{ctx: ctx, received: []error{nil}}, &grpc.StreamServerInfo{},
			func(_ any, s grpc.ServerStream) error { return s.RecvMsg(nil) })
		assert.Equal(t, codes.ResourceExhausted, status.Code(err), name)
		assert.Equal(t, row.want, edge.WasRefused(ctx), name)
	}
}

// A client that leaves while an inner interceptor holds its call has used the outer limit.
func TestACallLeftDuringAnInnerHoldStaysCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, new(ratelimittest.Clock), window(100))
		outer, inner := interceptor(t, l, grpclimit.Options{}), interceptor(t, limiterOf(t, nil, ratelimit.LeakyBucket(ratelimit.PerHour(1), 5)), grpclimit.Options{})
		call := func(ctx context.Context) error {
			_, err := outer.UnaryServerInterceptor()(ctx, nil, info, func(ctx context.Context, req any) (any, error) {
				return inner.UnaryServerInterceptor()(ctx, req, info, answering(nil))
			})
			return err
		}
		require.NoError(t, call(t.Context()))
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan error)
		go func() { left <- call(ctx) }()
		synctest.Wait()
		leave()
		assert.Equal(t, codes.Canceled, status.Code(<-left))
		assert.Equal(t, 98, remaining(t, l))
	})
}

// httplimit's middleware is around a gRPC server, served by net/http.
func TestMiddlewareOfHTTPGivesBackWhatAnInterceptorRefuses(t *testing.T) {
	keyed := ratelimit.Must(ratelimit.New(window(100), &ratelimit.Options[string]{Clock: new(ratelimittest.Clock)}))
	m := ratelimit.Must(httplimit.New(ratelimit.Map(keyed, func(*http.Request) (string, error) { return "k", nil }), nil))
	s := httptest.NewUnstartedServer(m.Wrap(new(service).server(with(hourly(t, 1, grpclimit.Options{}))...)))
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	creds := credentials.NewTLS(s.Client().Transport.(*http.Transport).TLSClientConfig.Clone())
	client := testgrpc.NewTestServiceClient(dial(t, s.Listener.Addr().String(), grpc.WithTransportCredentials(creds)))
	served := 0
	for range 20 {
		if call(t.Context(), client).code == codes.OK {
			served++
		}
	}
	assert.Equal(t, 1, served)
	d, err := keyed.Peek(t.Context(), "k", 1)
	require.NoError(t, err)
	assert.Equal(t, 99, d.Remaining)
}
