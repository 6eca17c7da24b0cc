package grpclimit_test

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
	"github.com/weir-go/ratelimit/keyfunc"
)

func TestAPanicInAHookEndsOneCallOnly(t *testing.T) {
	boom := func() { panic("boom") }
	for name, opts := range map[string]grpclimit.Options{
		"Skip":       {Skip: func(*grpclimit.Call) bool { boom(); return false }},
		"Cost":       {Cost: func(*grpclimit.Call) int { boom(); return 1 }},
		"OnDecision": {OnDecision: func(grpclimit.Event) { boom() }},
		"OnDenied":   {OnDenied: func(grpclimit.Event, *status.Status) *status.Status { boom(); return nil }},
	} {
		t.Run(name, func(t *testing.T) {
			i := interceptor(t, &stub{decision: ratelimit.Decision{Allowed: name != "OnDenied"}}, opts)
			recovering := func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
				defer func() {
					if r := recover(); r != nil {
						err = status.Error(codes.Internal, fmt.Sprint(r))
					}
				}()
				return next(srv, ss)
			}
			client := serve(t, &service{}, grpc.ChainStreamInterceptor(recovering, i.StreamServerInterceptor()))
			for range 2 {
				a, _ := open(context.Background(), client, 1)
				assert.Equal(t, codes.Internal, a.code)
				assert.Equal(t, "boom", a.message)
				assert.Empty(t, a.pushback)
			}
		})
	}
}

func TestAStreamWhoseClientLeavesIsSettled(t *testing.T) {
	settled := make(chan codes.Code, 1)
	i := interceptor(t, limiterOf(t, nil, ratelimit.FixedWindow(ratelimit.PerHour(5))), grpclimit.Options{
		Settle: func(_ *grpclimit.Call, code codes.Code, cost int) int { settled <- code; return cost },
	})
	entered := make(chan struct{})
	client := serve(t, &service{stream: func(s testgrpc.TestService_FullDuplexCallServer) error {
		close(entered)
		_, err := s.Recv() // a client that never sends
		return err
	}}, with(i)...)
	ctx, cancel := context.WithCancel(context.Background())
	_, err := client.FullDuplexCall(ctx)
	require.NoError(t, err)
	<-entered
	cancel()
	assert.Equal(t, codes.Canceled, <-settled)
}

// TestEverythingAtOnce runs everything at once, for the race detector.
func TestEverythingAtOnce(t *testing.T) {
	var events atomic.Int64
	i := interceptor(t, limiterOf(t, nil, ratelimit.TokenBucket(ratelimit.PerSecond(1000), 50)), grpclimit.Options{
		ChargeMessages: true, Settle: grpclimit.RefundServerErrors, DegradedTrailer: "degraded",
		OnDecision: func(grpclimit.Event) { events.Add(1) },
	})
	client := serve(t, &service{}, with(i, i)...)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			for range 20 {
				_, _ = open(context.Background(), client, 3)
				_ = call(context.Background(), client)
				_ = i.Stats()
			}
		})
	}
	all.Wait()
	s := i.Stats()
	assert.EqualValues(t, events.Load(), s.Allowed+s.Denied)
	assert.Positive(t, s.Denied)
}

func TestADenialInsideOfAnotherInterceptorHasOnePushback(t *testing.T) {
	outer, inner := hourly(t, 100, grpclimit.Options{ChargeMessages: true}), hourly(t, 2, grpclimit.Options{ChargeMessages: true})
	client := serve(t, &service{}, with(outer, inner)...)
	a, echoed := open(context.Background(), client, 3)
	assert.Equal(t, 1, echoed)
	assert.Equal(t, []string{"3600000"}, a.pushback)
	a, _ = open(context.Background(), client, 3)
	assert.Equal(t, []string{"3600000"}, a.pushback)
	assert.Equal(t, []string{"3600000"}, call(context.Background(), client).pushback)

	outer, inner = hourly(t, 2, grpclimit.Options{ChargeMessages: true}), hourly(t, 100, grpclimit.Options{ChargeMessages: true, Settle: grpclimit.RefundServerErrors})
	client = serve(t, &service{}, with(outer, inner)...)
	a, echoed = open(context.Background(), client, 3)
	assert.Equal(t, 1, echoed)
	assert.Equal(t, codes.ResourceExhausted, a.code)
	assert.Equal(t, []string{"3600000"}, a.pushback)
}

func TestAHandlerThatHidesTheDenialInItsOwnErrorKeepsTheCode(t *testing.T) {
	i := hourly(t, 1, grpclimit.Options{ChargeMessages: true})
	client := serve(t, &service{stream: func(s testgrpc.TestService_FullDuplexCallServer) error {
		_, err := s.Recv()
		return fmt.Errorf("reading: %w", err)
	}}, with(i)...)
	a, _ := open(context.Background(), client, 1)
	assert.Equal(t, codes.ResourceExhausted, a.code)
	assert.NotNil(t, a.retry)
}

func TestTheZeroCallAnswersEverything(t *testing.T) {
	c := new(grpclimit.Call)
	assert.NotNil(t, c.Context())
	_, err := grpclimit.RemoteIP(c)
	assert.ErrorIs(t, err, keyfunc.ErrMalformedKey)
	_, err = grpclimit.Metadata("x")(c)
	assert.ErrorIs(t, err, keyfunc.ErrNoKey)
	_, err = grpclimit.Service(c)
	assert.ErrorIs(t, err, keyfunc.ErrMalformedKey)
	assert.False(t, c.ClientStream || c.ServerStream)
	i := interceptor(t, &stub{err: ratelimit.ErrExceedsLimit}, grpclimit.Options{})
	var none context.Context
	_, err = i.UnaryServerInterceptor()(none, nil, &grpc.UnaryServerInfo{}, unreachable(t))
	assert.Equal(t, codes.ResourceExhausted, status.Code(err))
	err = i.StreamServerInterceptor()(nil, &fakeStream{received: []error{io.EOF}}, &grpc.StreamServerInfo{}, nil)
	assert.Equal(t, codes.ResourceExhausted, status.Code(err))
}
