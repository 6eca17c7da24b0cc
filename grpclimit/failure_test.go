package grpclimit_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/keyfunc"
)

const secret = "what-no-client-may-see"

// Package edge tests each error's outcome.
func TestACallThatCannotBeDecidedIsRefused(t *testing.T) {
	for name, row := range map[string]struct {
		err   error
		opts  grpclimit.Options
		want  codes.Code
		stats httplimit.Stats
	}{
		"the store is down":           {ratelimit.ErrUnavailable, grpclimit.Options{}, codes.Unavailable, httplimit.Stats{Failed: 1}},
		"the store is down, FailOpen": {ratelimit.ErrUnavailable, grpclimit.Options{FailOpen: true}, codes.OK, httplimit.Stats{FailedOpen: 1}},
		"no key":                      {keyfunc.ErrNoKey, grpclimit.Options{FailOpen: true}, codes.InvalidArgument, httplimit.Stats{Rejected: 1}},
		"a cost below zero": {nil, grpclimit.Options{Cost: func(*grpclimit.Call) int { return -1 }, KeyCode: codes.Unauthenticated, FailOpen: true},
			codes.InvalidArgument, httplimit.Stats{Rejected: 1}},
		"no key, by the caller's choice": {keyfunc.ErrNoKey, grpclimit.Options{KeyCode: codes.Unauthenticated}, codes.Unauthenticated, httplimit.Stats{Rejected: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			i := interceptor(t, &stub{err: fmt.Errorf("%w: %s", row.err, secret)}, row.opts)
			a := call(context.Background(), serve(t, &service{}, with(i)...))
			assert.Equal(t, row.want, a.code)
			assert.NotContains(t, a.message, secret)
			assert.Empty(t, a.pushback, "the client's backoff knows better")
			assert.Nil(t, a.retry)
			assert.Equal(t, row.stats, i.Stats())
		})
	}
}

func cancelled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// until returns a context with a deadline.
func until(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func unreachable(t *testing.T) grpc.UnaryHandler {
	return func(context.Context, any) (any, error) {
		t.Error("the handler was called")
		return nil, nil
	}
}

func TestAnswersCanBeReplaced(t *testing.T) {
	other := func(_ grpclimit.Event, s *status.Status) *status.Status {
		return status.New(codes.Aborted, "not now: "+s.Message())
	}
	for name, row := range map[string]struct {
		limiter ratelimit.Limiter[*grpclimit.Call]
		opts    grpclimit.Options
		want    codes.Code
	}{
		"a denial":                    {&stub{}, grpclimit.Options{OnDenied: other}, codes.Aborted},
		"what can never pass":         {&stub{err: ratelimit.ErrExceedsLimit}, grpclimit.Options{OnExceeds: other}, codes.Aborted},
		"what could not be decided":   {&stub{err: ratelimit.ErrUnavailable}, grpclimit.Options{OnError: other}, codes.Aborted},
		"nil keeps the answer":        {&stub{}, grpclimit.Options{OnDenied: func(grpclimit.Event, *status.Status) *status.Status { return nil }}, codes.ResourceExhausted},
		"OK does not let a call pass": {&stub{}, grpclimit.Options{OnDenied: func(grpclimit.Event, *status.Status) *status.Status { return status.New(codes.OK, "") }}, codes.ResourceExhausted},
	} {
		t.Run(name, func(t *testing.T) {
			a := call(context.Background(), serve(t, &service{}, with(interceptor(t, row.limiter, row.opts))...))
			assert.Equal(t, row.want, a.code)
			if row.want == codes.Aborted {
				assert.True(t, strings.HasPrefix(a.message, "not now: "))
			}
		})
	}
}

func TestADegradedDecisionIsMarkedInATrailer(t *testing.T) {
	for _, allowed := range []bool{true, false} {
		i := interceptor(t, &stub{decision: ratelimit.Decision{Allowed: allowed, Degraded: true, RetryAfter: time.Second}}, grpclimit.Options{DegradedTrailer: "X-Degraded"})
		client := serve(t, &service{}, with(i)...)
		streamed, _ := open(context.Background(), client, 0)
		for _, a := range []answer{call(context.Background(), client), streamed} {
			assert.Equal(t, []string{"true"}, a.trailer["x-degraded"])
			assert.Equal(t, allowed, a.code == codes.OK)
			assert.Empty(t, a.header["x-degraded"])
		}
		assert.EqualValues(t, 2, i.Stats().Degraded)
	}
}

func TestErrorsAreLoggedWithTheMethod(t *testing.T) {
	var lines strings.Builder
	i := interceptor(t, &stub{err: keyfunc.ErrNoKey}, grpclimit.Options{Logger: slog.New(slog.NewTextHandler(&lines, nil))})
	for range 5 {
		_, _ = i.UnaryServerInterceptor()(context.Background(), nil, info, unreachable(t))
	}
	assert.Equal(t, 1, strings.Count(lines.String(), "\n"), "once a second")
	assert.Regexp(t, "level=INFO .*method=/pkg.Service/Method", lines.String())
}

// Package edge tests the mistakes refused by all middleware.
func TestMistakesAreRefused(t *testing.T) {
	calls := ratelimit.Must(inflight.New[string](1, nil))
	server := func(l ratelimit.Limiter[*grpclimit.Call], o grpclimit.Options) error {
		i, err := grpclimit.New(l, &o)
		assert.Nil(t, i)
		return err
	}
	inFlight := func(l *inflight.Limiter[string], o grpclimit.InflightOptions) error {
		i, err := grpclimit.NewInflight(l, everyone, &o)
		assert.Nil(t, i)
		return err
	}
	_, limit := grpclimit.PerIP(ratelimit.Limit{}, nil)
	assert.ErrorIs(t, limit, ratelimit.ErrInvalidLimit)
	_, hops := grpclimit.ClientIP(httplimit.ClientIPOptions{TrustedHops: -1})
	for want, err := range map[string]error{
		"grpclimit: New: limiter is nil": server(nil, grpclimit.Options{}),
		"grpclimit: this limiter's key is the call itself": server(
			ratelimit.Must(ratelimit.New[*grpclimit.Call](ratelimit.Unlimited(), nil)), grpclimit.Options{}),
		"grpclimit: Options.KeyCode is 17":                                       server(&stub{}, grpclimit.Options{KeyCode: 17}),
		"grpclimit: Options.Settle needs a ratelimit.Reserver, and *grp":         server(&stub{}, grpclimit.Options{Settle: grpclimit.ChargeOnly()}),
		"grpclimit: ClientIPOptions.TrustedHops is -1, want 0 for none, or more": hops,
		"grpclimit: NewInflight: l is nil":                                       inFlight(nil, grpclimit.InflightOptions{}),
		"grpclimit: InflightOptions.MaxWait is -1ns, want 0 for none, or more":   inFlight(calls, grpclimit.InflightOptions{MaxWait: -1}),
		"grpclimit: InflightOptions.KeyCode is 99, which does not exist":         inFlight(calls, grpclimit.InflightOptions{KeyCode: 99}),
	} {
		assert.ErrorContains(t, err, want)
	}
	for _, name := range []string{"grpc-mine", "a b", "content-type", "TE", "user-agent"} { // gRPC does not transmit these keys
		assert.EqualError(t, server(&stub{}, grpclimit.Options{DegradedTrailer: name}),
			"grpclimit: Options.DegradedTrailer is not a metadata key that a server may set", name)
	}
	interceptor(t, &stub{}, grpclimit.Options{DegradedTrailer: "az-09_.Z"})
	for _, zero := range []*grpclimit.Interceptor{nil, {}} {
		assert.PanicsWithError(t, "grpclimit: this Interceptor is nil or zero: make one with New or PerIP", func() { zero.UnaryServerInterceptor() })
		assert.PanicsWithError(t, "grpclimit: this Interceptor is nil or zero: make one with New or PerIP", func() { zero.StreamServerInterceptor() })
	}
}

func TestShadowLetsEverythingPassAndCounts(t *testing.T) {
	for _, limiter := range []ratelimit.Limiter[*grpclimit.Call]{
		&stub{}, &stub{err: ratelimit.ErrExceedsLimit}, &stub{err: keyfunc.ErrNoKey},
		&stub{decision: ratelimit.Decision{Allowed: true, Delay: math.MaxInt64}},
	} {
		i := interceptor(t, limiter, grpclimit.Options{Shadow: true, ChargeMessages: true, DegradedTrailer: "degraded"})
		client := serve(t, &service{}, with(i)...)
		a := call(context.Background(), client)
		assert.Equal(t, codes.OK, a.code)
		assert.Empty(t, a.trailer["grpc-retry-pushback-ms"])
		streamed, echoed := open(context.Background(), client, 3)
		assert.Equal(t, codes.OK, streamed.code)
		assert.Equal(t, 3, echoed)
		s := i.Stats()
		assert.EqualValues(t, 5, s.Allowed+s.Denied+s.Exceeds+s.Rejected+s.Failed, "a call, a stream, and its messages")
	}
}

// All kinds of calls run concurrently, for the race detector.
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

func TestInterceptorsAroundGetTheError(t *testing.T) {
	i := interceptor(t, &stub{err: ratelimit.ErrExceedsLimit}, grpclimit.Options{})
	var none context.Context
	_, err := i.UnaryServerInterceptor()(none, nil, &grpc.UnaryServerInfo{}, unreachable(t))
	assert.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	assert.Equal(t, codes.ResourceExhausted, status.Code(err))
	assert.Contains(t, err.Error(), "ResourceExhausted")
	err = i.StreamServerInterceptor()(nil, &fakeStream{received: []error{io.EOF}}, &grpc.StreamServerInfo{}, nil)
	assert.Equal(t, codes.ResourceExhausted, status.Code(err))
}
