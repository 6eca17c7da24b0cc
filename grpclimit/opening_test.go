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
	"github.com/weir-go/ratelimit/httplimit"
)

// The retry opens the stream again, and pays for that again. If the wait covered the message alone, the message would be denied again and
// again.
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
						i := interceptor(t, l, grpclimit.Options{ChargeMessages: true, Settle: settle, OnDecision: func(e grpclimit.Event) {
							if e.Outcome != httplimit.OutcomeAllowed {
								denials++
							}
						}})
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

// A stream that is denied at its first message has run its handler. So its opening stays
// charged, whatever the handler has done.
func TestAnOpeningStaysChargedIfAMessageIsDenied(t *testing.T) {
	for name, row := range map[string]struct {
		cost    int // of a message
		handler grpc.StreamHandler
		left    int
	}{
		"the first message is denied": {2, func(_ any, s grpc.ServerStream) error { return s.RecvMsg(nil) }, 1},
		"the handler has answered before": {2, func(_ any, s grpc.ServerStream) error {
			_ = s.SendMsg(nil)
			return s.RecvMsg(nil)
		}, 1},
		"the second message is denied": {1, func(_ any, s grpc.ServerStream) error {
			_ = s.RecvMsg(nil)
			return s.RecvMsg(nil)
		}, 0},
		"the handler ends it in another way": {2, func(_ any, s grpc.ServerStream) error {
			_ = s.RecvMsg(nil)
			return status.Error(codes.Unauthenticated, "")
		}, 1},
	} {
		for settles, settle := range map[string]func(*grpclimit.Call, codes.Code, int) int{"": nil, ", settled": grpclimit.RefundServerErrors} {
			t.Run(name+settles, func(t *testing.T) {
				keyed, err := ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerHour(2)), nil)
				require.NoError(t, err)
				opening := true
				i := interceptor(t, ratelimit.Map(keyed, everyone), grpclimit.Options{ChargeMessages: true, Settle: settle, Cost: func(*grpclimit.Call) int {
					if opening {
						opening = false
						return 1
					}
					return row.cost
				}})
				require.Error(t, i.StreamServerInterceptor()(nil, &fakeStream{received: make([]error, 5)}, &grpc.StreamServerInfo{}, row.handler))
				d, err := keyed.Peek(context.Background(), "everyone", 0)
				require.NoError(t, err)
				assert.Equal(t, row.left, d.Remaining)
			})
		}
	}
}

// A denied stream is one denial of the limiter, although its wait also covers a message.
func TestADeniedStreamIsDeniedOnce(t *testing.T) {
	for name, limit := range map[string]ratelimit.Limit{
		"bucket": ratelimit.TokenBucket(ratelimit.PerMinute(1), 2), "leaky bucket": ratelimit.LeakyBucket(ratelimit.PerMinute(1), 2),
	} {
		t.Run(name, func(t *testing.T) {
			denials := 0
			keyed, err := ratelimit.New(limit, &ratelimit.Options[string]{OnDecision: func(e ratelimit.Event[string]) {
				if !e.Decision.Allowed {
					denials++
				}
			}})
			require.NoError(t, err)
			_, err = keyed.Take(t.Context(), "everyone", 2)
			require.NoError(t, err)
			var retry time.Duration
			i := interceptor(t, ratelimit.Map(keyed, everyone), grpclimit.Options{ChargeMessages: true, OnDecision: func(e grpclimit.Event) { retry = e.Decision.RetryAfter }})
			require.Error(t, i.StreamServerInterceptor()(nil, &fakeStream{}, &grpc.StreamServerInfo{}, func(any, grpc.ServerStream) error { return nil }))
			assert.Equal(t, 1, denials)
			assert.InDelta(t, 2*time.Minute, retry, float64(time.Second)) // until two pass
		})
	}
}

// A client that does not wait opens no more streams than the budget has openings: there
// are no handler runs for nothing.
func TestHandlersRunNoMoreOftenThanTheBudgetAllows(t *testing.T) {
	for name, limit := range map[string]ratelimit.Limit{
		"bucket": ratelimit.TokenBucket(ratelimit.PerSecond(10), 10), "log": ratelimit.SlidingLog(ratelimit.PerSecond(10)),
		"window": ratelimit.FixedWindow(ratelimit.PerSecond(10)), "counter": ratelimit.SlidingCounter(ratelimit.PerSecond(10)),
	} {
		for settles, settle := range map[string]func(*grpclimit.Call, codes.Code, int) int{"": nil, ", settled": grpclimit.RefundServerErrors} {
			t.Run(name+settles, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					i := interceptor(t, limiterOf(t, nil, limit), grpclimit.Options{ChargeMessages: true, Settle: settle})
					runs := 0
					for range 2000 { // in two seconds
						_ = i.StreamServerInterceptor()(nil, &fakeStream{received: make([]error, 5)}, &grpc.StreamServerInfo{}, func(_ any, s grpc.ServerStream) error {
							runs++
							return s.RecvMsg(nil)
						})
						time.Sleep(time.Millisecond)
					}
					assert.LessOrEqual(t, runs, 30)
					assert.GreaterOrEqual(t, runs, 10)
				})
			})
		}
	}
}
