package grpclimit_test

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
	"github.com/weir-go/ratelimit/inflight"
)

// An inner limiter refuses calls in all ways, and the handler passes the refusals on, changes them or hides them.
func TestARefusalInsideIsNoOverloadOfTheLimitAround(t *testing.T) {
	busy := shedding(t, 1, nil, nil)
	full := func(next grpc.UnaryHandler) grpc.UnaryHandler {
		return func(ctx context.Context, req any) (any, error) {
			return busy.UnaryServerInterceptor()(ctx, req, info, next)
		}
	}
	none := ratelimit.Must(ratelimit.New[netip.Addr](ratelimit.FixedWindow(ratelimit.PerHour(1)), nil))
	_ = none.Allow(netip.Addr{}, 1)
	rate, err := grpclimit.New(ratelimit.Map(none, func(*grpclimit.Call) (netip.Addr, error) { return netip.Addr{}, nil }), nil)
	require.NoError(t, err)
	limited, err := ratelimit.All(ratelimit.By(none, func(*grpclimit.Call) (netip.Addr, error) { return netip.Addr{}, nil }))
	require.NoError(t, err)
	client, err := grpclimit.NewClient(limited, &grpclimit.ClientOptions{MaxWait: time.Nanosecond})
	require.NoError(t, err)
	for name, row := range map[string]struct {
		inner grpc.UnaryHandler
		want  inflight.Outcome
	}{
		"in flight": {full(answering(nil)), inflight.Ignored},
		"rate": {func(ctx context.Context, req any) (any, error) {
			return rate.UnaryServerInterceptor()(ctx, req, info, answering(nil))
		}, inflight.Ignored},
		"client": {func(ctx context.Context, _ any) (any, error) {
			err := client.UnaryClientInterceptor()(ctx, "/a.B/C", nil, nil, nil, nil)
			require.Error(t, err)
			return nil, status.Error(codes.Unavailable, "the other server is not available")
		}, inflight.Ignored},
		"none": {answering(status.Error(codes.Unavailable, "")), inflight.Dropped},
	} {
		t.Run(name, func(t *testing.T) {
			var got []inflight.Outcome
			outer := shedding(t, 1, nil, &grpclimit.InflightOptions{Outcome: func(_ *grpclimit.Call, _ codes.Code, usual inflight.Outcome) inflight.Outcome {
				got = append(got, usual)
				return got[0]
			}})
			_, _ = busy.UnaryServerInterceptor()(context.Background(), nil, info, func(ctx context.Context, _ any) (any, error) {
				_, err := outer.UnaryServerInterceptor()(context.Background(), nil, info, row.inner)
				require.Error(t, err)
				return nil, nil
			})
			assert.Equal(t, []inflight.Outcome{row.want}, got)
		})
	}
}

// One call's refusal does not count for any other call.
func TestOtherCallsTeachTheLimitAroundAsBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outcomes := make(chan inflight.Outcome, 3)
		inner := shedding(t, 1, nil, nil).UnaryServerInterceptor()
		outer := shedding(t, 10, nil, &grpclimit.InflightOptions{Outcome: func(_ *grpclimit.Call, _ codes.Code, usual inflight.Outcome) inflight.Outcome {
			outcomes <- usual
			return inflight.Success
		}}).UnaryServerInterceptor()
		for range 3 {
			go func() {
				_, _ = outer(context.Background(), nil, info, func(ctx context.Context, req any) (any, error) {
					return inner(ctx, req, info, func(context.Context, any) (any, error) { time.Sleep(time.Second); return nil, nil })
				})
			}()
			synctest.Wait()
		}
		for _, want := range []inflight.Outcome{inflight.Ignored, inflight.Ignored, inflight.Success} {
			assert.Equal(t, want, <-outcomes)
		}
	})
}
