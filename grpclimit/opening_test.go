package grpclimit_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
)

// The retry opens the stream again. If the first opening stayed charged, the message would be
// denied again and again.
func TestStockClientOfChargedMessagesSucceedsAtItsFirstRetry(t *testing.T) {
	for name, limit := range map[string]ratelimit.Limit{
		"bucket of two":   ratelimit.TokenBucket(ratelimit.PerSecond(1), 2),
		"bucket of three": ratelimit.TokenBucket(ratelimit.PerSecond(1), 3),
		"log":             ratelimit.SlidingLog(ratelimit.Per(2, 2*time.Second)),
		"window":          ratelimit.FixedWindow(ratelimit.Per(3, time.Second)),
	} {
		for _, layered := range []bool{false, true} {
			for settles, settle := range map[string]func(*grpclimit.Call, codes.Code, int) int{"": nil, ", settled": grpclimit.RefundServerErrors} {
				t.Run(name+settles, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						perClient, err := ratelimit.New[string](limit, nil)
						require.NoError(t, err)
						l := ratelimit.Map(perClient, everyone)
						if layered {
							l = limiterOf(t, nil, limit)
						}
						denials := 0
						i := interceptor(t, l, grpclimit.Options{ChargeMessages: true, Settle: settle, OnDecision: grpclimit.OnOutcome(func(o grpclimit.Outcome) {
							if o != grpclimit.OutcomeAllowed {
								denials++
							}
						})})
						server := grpc.NewServer(with(i)...)
						testgrpc.RegisterTestServiceServer(server, new(service))
						client := inBubble(t, server, grpc.WithDefaultServiceConfig(retryPolicy))
						for range 6 {
							denials = 0
							a, echoed := open(context.Background(), client, 1)
							require.Equal(t, codes.OK, a.code)
							require.Equal(t, 1, echoed)
							require.LessOrEqual(t, denials, 1)
						}
					})
				})
			}
		}
	}
}

func TestAnOpeningIsGivenBackOnlyIfTheStreamGotNothing(t *testing.T) {
	const atOnce = 2
	for name, row := range map[string]struct {
		cost    int // of a message
		handler grpc.StreamHandler
		left    int
	}{
		"its first message is denied": {2, func(_ any, s grpc.ServerStream) error { return s.RecvMsg(nil) }, 2},
		"the handler has answered before": {2, func(_ any, s grpc.ServerStream) error {
			_ = s.SendMsg(nil)
			return s.RecvMsg(nil)
		}, 1},
		"the handler has sent headers": {2, func(_ any, s grpc.ServerStream) error {
			_ = s.SendHeader(nil)
			return s.RecvMsg(nil)
		}, 1},
		"its second message is denied": {1, func(_ any, s grpc.ServerStream) error {
			_ = s.RecvMsg(nil)
			return s.RecvMsg(nil)
		}, 0},
		"the handler ends it in another way": {2, func(_ any, s grpc.ServerStream) error {
			_ = s.RecvMsg(nil)
			return status.Error(codes.Unauthenticated, "")
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			keyed, err := ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerHour(atOnce)), nil)
			require.NoError(t, err)
			opening := true
			i := interceptor(t, ratelimit.Map(keyed, everyone), grpclimit.Options{ChargeMessages: true, Cost: func(*grpclimit.Call) int {
				if opening {
					opening = false
					return 1
				}
				return row.cost
			}})
			require.Error(t, i.StreamServerInterceptor()(nil, &fakeStream{received: make([]error, 5)}, &grpc.StreamServerInfo{}, row.handler))
			d, err := keyed.Peek("everyone", 0)
			require.NoError(t, err)
			assert.Equal(t, row.left, d.Remaining)
		})
	}
}
