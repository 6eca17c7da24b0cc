package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
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

// Package edge tests each code's outcome.
func TestAClientsAdaptiveLimitLearnsFromOutcomes(t *testing.T) {
	unary, stream := &grpclimit.Call{}, &grpclimit.Call{ServerStream: true}
	for _, row := range []struct {
		call *grpclimit.Call
		err  error
		want inflight.Outcome
	}{
		{unary, nil, inflight.Success},
		{stream, nil, inflight.Ignored},
		{unary, status.Error(codes.ResourceExhausted, ""), inflight.Dropped},
		// also if the server returns this code before the context ends
		{grpclimit.NewClientCall(until(t, time.Hour), false), status.Error(codes.DeadlineExceeded, ""), inflight.Cancelled},
		{unary, errors.New("no status"), inflight.Cancelled},
		{unary, fmt.Errorf("not sent: %w", ratelimit.ErrLimited), inflight.Ignored},
		{unary, fmt.Errorf("not sent: %w", ratelimit.ErrTableFull), inflight.Ignored},
	} {
		assert.Equal(t, row.want, grpclimit.ResponseOutcome(row.call, row.err), "%v %v", row.call.ServerStream, row.err)
	}
}

func TestOptionsOfAClientThatNeedALimiterOrPermits(t *testing.T) {
	permits := ratelimit.Must(inflight.New[string](1, nil))
	for name, o := range map[string]*grpclimit.ClientOptions{
		"MaxRetries":  {Inflight: permits, MaxRetries: 1},
		"MaxInFlight": {Inflight: permits, MaxInFlight: 1},
		"Cost":        {Inflight: permits, Cost: func(*grpclimit.Call) int { return 1 }},
	} {
		_, err := grpclimit.NewClient(nil, o)
		assert.ErrorContains(t, err, "without a limiter only Key, MaxWait, Inflight and Outcome", name)
	}
	_, err := grpclimit.NewClient(nil, nil)
	assert.ErrorContains(t, err, "NewClient: limiter is nil")
	_, err = grpclimit.NewClient(byTarget(t, ratelimit.Unlimited()), &grpclimit.ClientOptions{
		Outcome: func(_ *grpclimit.Call, _ error, usual inflight.Outcome) inflight.Outcome { return usual },
	})
	assert.ErrorContains(t, err, "ClientOptions.Outcome is for an adaptive limit, and Inflight is not set")
}

// The context contains the call's cost. Later the real cost is settled.
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
