package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
	"github.com/weir-go/ratelimit/httplimit"
)

// A key function or a cost that panics ends its own call, and no other.
func TestPanicOfAClientsFunctionHoldsUpNoOther(t *testing.T) {
	for name, opts := range map[string]grpclimit.ClientOptions{
		"Cost": {Cost: func(c *grpclimit.Call) int { return panicOn(c) }},
		"Key":  {Key: func(c *grpclimit.Call) string { return fmt.Sprint(panicOn(c)) }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, c := pacedInBubble(t, newScript(nil), unlimited(t), opts)
				bad := metadata.AppendToOutgoingContext(t.Context(), "panic", "yes")
				for way, do := range ways {
					assert.Panics(t, func() { _ = do(bad, client) }, way)
					ok(t.Context(), t, client, way)
				}
				assert.Zero(t, c.Keys())
			})
		})
	}
}

func panicOn(c *grpclimit.Call) int {
	if md, _ := metadata.FromOutgoingContext(c.Context()); md.Get("panic") != nil {
		panic("told to")
	}
	return 1
}

// An invoker that panics, as another interceptor may, leaves the key as it was.
func TestPanicBehindTheClientHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := grpclimit.NewClient(forAll(t), nil)
		require.NoError(t, err)
		invoke := func(invoker grpc.UnaryInvoker) error {
			return c.UnaryClientInterceptor()(t.Context(), "/a/b", nil, nil, nil, invoker)
		}
		assert.Panics(t, func() {
			_ = invoke(func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { panic("boom") })
		})
		assert.Panics(t, func() {
			_, _ = c.StreamClientInterceptor()(t.Context(), &grpc.StreamDesc{}, nil, "/a/b",
				func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
					panic("boom")
				})
		})
		assert.NoError(t, invoke(func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { return nil }))
		assert.Zero(t, c.Keys())
	})
}

// Details that are garbage, or of unknown types, are ignored.
func TestGarbageInDetailsIsIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		garbage := status.FromProto(&spb.Status{Code: int32(codes.ResourceExhausted), Message: "no", Details: []*anypb.Any{
			{TypeUrl: "type.googleapis.com/google.rpc.RetryInfo", Value: []byte{0xff, 0xff, 0xff}},
			{TypeUrl: "type.googleapis.com/no.such.Type", Value: []byte{1, 2, 3}},
			{}, nil,
		}}).Err()
		s := newScript(once(reply{garbage, []string{"1500"}}))
		client, _ := pacedInBubble(t, s, unlimited(t), grpclimit.ClientOptions{MaxRetries: 1})
		ok(t.Context(), t, client, "unary")
		assert.Equal(t, []time.Duration{0, 1500 * time.Millisecond}, s.times())
	})
}

func TestCostsThatCannotBeFailOneCall(t *testing.T) {
	for cost, want := range map[int]codes.Code{-1: codes.Internal, math.MinInt: codes.Internal, math.MaxInt: codes.ResourceExhausted} {
		synctest.Test(t, func(t *testing.T) {
			client, c := pacedInBubble(t, newScript(nil), byTarget(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 1)),
				grpclimit.ClientOptions{Cost: func(*grpclimit.Call) int { return cost }})
			for way, do := range ways {
				assert.Equal(t, want, status.Code(do(t.Context(), client)), way)
			}
			assert.Equal(t, uint64(2), c.Stats().Failed)
		})
	}
}

// Callers come and go, and the server refuses, all at once and with every deadline. All calls
// end, and nothing is left.
func TestManyCallersThatGiveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calm atomic.Bool // no more denials: one to the last call would be kept for a while
		s := newScript(func(n int) reply {
			if n%7 == 0 && !calm.Load() {
				return denial(time.Duration(n%13) * 100 * time.Millisecond)
			}
			return reply{}
		})
		client, c := pacedInBubble(t, s, byTarget(t, ratelimit.LeakyBucket(ratelimit.PerSecond(50), 20)), grpclimit.ClientOptions{MaxRetries: 2})
		var wg sync.WaitGroup
		for i := range 200 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%40)*50*time.Millisecond)
				defer cancel()
				if i%3 == 0 {
					time.AfterFunc(time.Duration(i)*time.Millisecond, cancel)
				}
				for _, do := range ways {
					err := do(ctx, client)
					assert.Contains(t, []codes.Code{codes.OK, codes.ResourceExhausted, codes.DeadlineExceeded, codes.Canceled}, status.Code(err), err)
				}
			})
		}
		wg.Wait()
		calm.Store(true)
		ok(t.Context(), t, client, "unary")
		time.Sleep(time.Hour)
		ok(t.Context(), t, client, "unary")
		assert.Zero(t, c.Keys())
		assert.Zero(t, c.Stats().Unsettled)
	})
}

// A connection that cannot be made is not the server's refusal.
func TestServerThatIsGoneRefusesNothing(t *testing.T) {
	c, dialling := paced(t, unlimited(t), grpclimit.ClientOptions{MaxRetries: 3})
	client := testgrpc.NewTestServiceClient(dial(t, freeAddress(t), dialling...))
	for way, do := range ways {
		assert.Equal(t, codes.Unavailable, status.Code(do(t.Context(), client)), way)
	}
	assert.Equal(t, httplimit.TransportStats{Sent: 2}, c.Stats())
	assert.Zero(t, c.Keys())
}

func TestErrorWithoutAStatusIsNoRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plain := errors.New("no status at all")
		s := newScript(once(reply{err: plain}))
		client, c := pacedInBubble(t, s, unlimited(t), grpclimit.ClientOptions{MaxRetries: 3})
		assert.Equal(t, codes.Unknown, status.Code(ways["unary"](t.Context(), client)))
		assert.Equal(t, httplimit.TransportStats{Sent: 1}, c.Stats())
	})
}
