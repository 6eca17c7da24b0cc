package grpclimit_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/inflight"
)

func TestClientHoldsAPermitForAsLongAsACallTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(inflight.New[string](1, nil))
		c, dialling := paced(t, nil, grpclimit.ClientOptions{Inflight: l})
		s := &service{unary: func(context.Context, *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
			time.Sleep(time.Second)
			return &testgrpc.SimpleResponse{}, nil
		}}
		client := inBubble(t, s.server(), dialling...)
		done := make(chan error)
		go func() {
			_, err := client.UnaryCall(t.Context(), &testgrpc.SimpleRequest{})
			done <- err
		}()
		synctest.Wait()
		assert.Equal(t, 1, l.Totals().InFlight)
		assert.Equal(t, httplimit.TransportStats{Sent: 1, InFlight: 1}, c.Stats())
		_, err := client.UnaryCall(t.Context(), &testgrpc.SimpleRequest{})
		assert.Equal(t, codes.ResourceExhausted, status.Code(err))
		assert.ErrorIs(t, err, ratelimit.ErrLimited)
		_, err = client.FullDuplexCall(t.Context())
		assert.Equal(t, codes.ResourceExhausted, status.Code(err))
		require.NoError(t, <-done)
		assert.Zero(t, l.Totals().InFlight)
		assert.Equal(t, httplimit.TransportStats{Sent: 1, Failed: 2}, c.Stats())
	})
}

// The context contains the call's cost. Later, the real cost is settled.
func TestClientChargesTheDeclaredCost(t *testing.T) {
	for way := range ways {
		bubble(t, way, func(t *testing.T) {
			s := newScript(nil)
			client, _ := pacedInBubble(t, s, byTarget(t, ratelimit.TokenBucket(ratelimit.PerSecond(10), 10)), grpclimit.ClientOptions{})
			first := httplimit.WithCost(t.Context(), 10)
			ok(first, t, client, way)
			require.NoError(t, httplimit.SettleCost(first, 5))
			require.NoError(t, httplimit.SettleCost(first, 0), "only the first counts")
			ok(httplimit.WithCost(t.Context(), 10), t, client, way)
			ok(t.Context(), t, client, way)
			assert.Equal(t, []time.Duration{0, 500 * time.Millisecond, 600 * time.Millisecond}, s.times())
			assert.NoError(t, httplimit.SettleCost(t.Context(), 5), "nothing was declared")
			assert.NoError(t, httplimit.SettleCost(httplimit.WithCost(t.Context(), 5), 5), "nothing was sent")
			err := ways[way](httplimit.WithCost(t.Context(), -1), client)
			assert.Equal(t, codes.Internal, status.Code(err))
		})
	}
}
