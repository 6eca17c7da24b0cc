package grpclimit_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
	"github.com/weir-go/ratelimit/httplimit"
)

// A denial has no headers. If a handler has sent headers, it has begun to work.
func TestCallIsSentAgainOnlyIfTheServerHasSentNoHeaders(t *testing.T) {
	for name, row := range map[string]struct {
		headers metadata.MD // nil if the handler sends none
		runs    int
	}{
		"no headers":    {nil, 2},
		"empty headers": {metadata.MD{}, 1},
		"headers":       {metadata.Pairs("charged", "yes"), 1},
	} {
		bubble(t, name, func(t *testing.T) {
			runs := 0
			s := &service{unary: func(ctx context.Context, _ *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
				if row.headers != nil {
					assert.NoError(t, grpc.SendHeader(ctx, row.headers))
				}
				if runs++; runs == 1 {
					return nil, denial(time.Second).err // a backend's denial, which the handler returns
				}
				return &testgrpc.SimpleResponse{}, nil
			}}
			server := s.server()
			c, dialling := paced(t, unlimited(t), grpclimit.ClientOptions{MaxRetries: 3})
			a := call(t.Context(), inBubble(t, server, dialling...))
			assert.Equal(t, row.runs, runs)
			assert.Equal(t, row.runs == 1, a.code == codes.ResourceExhausted)
			assert.Equal(t, row.headers.Get("charged"), a.header.Get("charged"), "the caller's option is obeyed, too")
			assert.Equal(t, uint64(row.runs-1), c.Stats().Retried)
			assert.Equal(t, uint64(1), c.Stats().Refused, "its time is obeyed in any case")
		})
	}
}

// The caller should get the server's answer, and not why there was no second
// attempt. An error of the Client would mean that the call was not sent at all.
func TestCallerGetsTheRefusalIfTheRetryRunsOutOfTime(t *testing.T) {
	for name, row := range map[string]struct {
		limit ratelimit.Limit
		opts  grpclimit.ClientOptions
		time  time.Duration
		sent  int
		want  time.Duration
	}{
		"no time to retry":      {ratelimit.Unlimited(), grpclimit.ClientOptions{MaxRetries: 5}, 500 * time.Millisecond, 1, 0},
		"a refusal is refunded": {ratelimit.TokenBucket(ratelimit.Per(1, 10*time.Second), 1), grpclimit.ClientOptions{MaxRetries: 1}, 9 * time.Second, 2, time.Second},
		"MaxWait is over":       {ratelimit.Unlimited(), grpclimit.ClientOptions{MaxRetries: 5, MaxWait: 2500 * time.Millisecond}, 9 * time.Second, 3, 2 * time.Second},
		"MaxRetries are over":   {ratelimit.Unlimited(), grpclimit.ClientOptions{MaxRetries: 2}, 9 * time.Second, 3, 2 * time.Second},
		"cancelled":             {ratelimit.TokenBucket(ratelimit.PerSecond(1), 1), grpclimit.ClientOptions{MaxRetries: 5}, 9 * time.Second, 3, 2500 * time.Millisecond},
	} {
		bubble(t, name, func(t *testing.T) {
			s := newScript(func(int) reply { return denial(time.Second) })
			client, c := pacedInBubble(t, s, byTarget(t, row.limit), row.opts)
			ctx, cancel := context.WithTimeout(t.Context(), row.time)
			defer cancel()
			if name == "cancelled" {
				time.AfterFunc(row.want, cancel)
			}
			a := call(ctx, client)
			assert.Equal(t, codes.ResourceExhausted, a.code)
			assert.Equal(t, "refused", a.message)
			assert.NotNil(t, a.retry)
			assert.Equal(t, row.want, time.Since(s.begin))
			assert.Len(t, s.times(), row.sent)
			sent := uint64(row.sent)
			assert.Equal(t, httplimit.TransportStats{Sent: sent, Waited: c.Stats().Waited, Refused: sent, Retried: sent - 1}, c.Stats(), "none failed: it was sent")
		})
	}
}

// If a key function or a cost panics, only its own call ends.
func TestPanicOfAClientsFunctionHoldsUpNoOther(t *testing.T) {
	for name, opts := range map[string]grpclimit.ClientOptions{
		"Cost": {Cost: func(c *grpclimit.Call) int { return panicOn(c) }},
		"Key":  {Key: func(c *grpclimit.Call) string { return fmt.Sprint(panicOn(c)) }},
	} {
		bubble(t, name, func(t *testing.T) {
			client, c := pacedInBubble(t, newScript(nil), unlimited(t), opts)
			bad := metadata.AppendToOutgoingContext(t.Context(), "panic", "yes")
			for way, do := range ways {
				assert.Panics(t, func() { _ = do(bad, client) }, way)
				ok(t.Context(), t, client, way)
			}
			assert.Zero(t, c.Keys())
		})
	}
}

func panicOn(c *grpclimit.Call) int {
	if md, _ := metadata.FromOutgoingContext(c.Context()); md.Get("panic") != nil {
		panic("told to")
	}
	return 1
}

// An invoker may panic, for example in another interceptor. Its key is then as before.
func TestPanicBehindTheClientHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := ratelimit.Must(grpclimit.NewClient(forAll(t), nil))
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

// A connection that fails is no refusal by the server.
func TestServerThatIsGoneRefusesNothing(t *testing.T) {
	c, dialling := paced(t, unlimited(t), grpclimit.ClientOptions{MaxRetries: 3})
	client := testgrpc.NewTestServiceClient(dial(t, freeAddress(t), dialling...))
	for way, do := range ways {
		assert.Equal(t, codes.Unavailable, status.Code(do(t.Context(), client)), way)
	}
	assert.Equal(t, httplimit.TransportStats{Sent: 2}, c.Stats())
	assert.Zero(t, c.Keys())
}
