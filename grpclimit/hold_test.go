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
	"google.golang.org/grpc/status"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
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

func TestAHeldCallWhoseClientLeavesIsNotServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := pacing(t, grpclimit.Options{Settle: grpclimit.RefundServerErrors})
		call := i.UnaryServerInterceptor()
		_, err := call(context.Background(), nil, info, answering(nil))
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(500*time.Millisecond, cancel)
		start := time.Now()
		_, err = call(ctx, nil, info, unreachable(t))
		assert.Equal(t, codes.Canceled, status.Code(err))
		assert.Equal(t, 500*time.Millisecond, time.Since(start))
		_, err = call(context.Background(), nil, info, answering(nil))
		require.NoError(t, err)
		assert.Equal(t, time.Second, time.Since(start), "it has given its place back")
	})
}

func TestACallWithTooShortADeadlineIsNotHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		call := pacing(t, grpclimit.Options{Settle: grpclimit.RefundServerErrors}).UnaryServerInterceptor()
		_, err := call(context.Background(), nil, info, answering(nil))
		require.NoError(t, err)
		start := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err = call(ctx, nil, info, unreachable(t))
		assert.Zero(t, time.Since(start))
		s := status.Convert(err)
		assert.Equal(t, codes.ResourceExhausted, s.Code())
		require.IsType(t, new(errdetails.RetryInfo), s.Details()[0])
		assert.Equal(t, time.Second, s.Details()[0].(*errdetails.RetryInfo).RetryDelay.AsDuration())
	})
}
