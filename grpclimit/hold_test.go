package grpclimit_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
	"github.com/weir-go/ratelimit/httplimit"
)

// pacing is an interceptor that lets one call a second through, and queues ten.
func pacing(t *testing.T, opts grpclimit.Options) *grpclimit.Interceptor {
	t.Helper()
	return interceptor(t, limiterOf(t, nil, ratelimit.LeakyBucket(ratelimit.PerSecond(1), 10).Named("pace")), opts)
}

func TestALeakyBucketHoldsTheCall(t *testing.T) {
	for name, opts := range map[string]grpclimit.Options{"charged": {}, "settled": {Settle: grpclimit.RefundServerErrors}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				call := pacing(t, opts).UnaryServerInterceptor()
				start := time.Now()
				for n := range 3 {
					_, err := call(context.Background(), nil, info, answering(nil))
					require.NoError(t, err)
					assert.Equal(t, time.Duration(n)*time.Second, time.Since(start))
				}
			})
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
	server := grpc.NewServer(with(i)...)
	testgrpc.RegisterTestServiceServer(server, &service{})
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
