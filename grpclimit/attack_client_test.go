package grpclimit_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

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
