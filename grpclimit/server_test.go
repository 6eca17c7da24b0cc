package grpclimit_test

import (
	"bytes"
	"context"
	"log/slog"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/ratelimittest"
)

func TestHealthChecksPassWhenNothingIsLeft(t *testing.T) {
	i := hourly(t, 1, grpclimit.Options{Skip: grpclimit.SkipServices(healthpb.Health_ServiceDesc.ServiceName), ChargeMessages: true})
	server := new(service).server(with(i)...)
	healthpb.RegisterHealthServer(server, health.NewServer())
	conn := dial(t, start(t, server))
	client := testgrpc.NewTestServiceClient(conn)
	_ = call(context.Background(), client)
	require.Equal(t, codes.ResourceExhausted, call(context.Background(), client).code)

	checker := healthpb.NewHealthClient(conn)
	r, err := checker.Check(context.Background(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	assert.Equal(t, healthpb.HealthCheckResponse_SERVING, r.Status)
	watch, err := checker.Watch(context.Background(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	r, err = watch.Recv()
	require.NoError(t, err)
	assert.Equal(t, healthpb.HealthCheckResponse_SERVING, r.Status)
	assert.EqualValues(t, 2, i.Stats().Skipped)
}

func TestACallBeyondTheLimitIsDeniedAndAStreamAsItOpens(t *testing.T) {
	limit := hourly(t, 2, grpclimit.Options{})
	client := serve(t, &service{}, with(limit)...)
	assert.Equal(t, codes.OK, call(t.Context(), client).code)
	a, echoed := open(t.Context(), client, 5)
	assert.Equal(t, codes.OK, a.code)
	assert.Equal(t, 5, echoed, "messages are free")
	assertDenied(t, call(t.Context(), client), time.Hour)
	a, echoed = open(t.Context(), client, 5)
	assertDenied(t, a, time.Hour)
	assert.Zero(t, echoed)
	assert.Equal(t, httplimit.Stats{Allowed: 2, Denied: 2}, limit.Stats())
}

// assertDenied checks all parts of a denial by the limit "hourly".
func assertDenied(t *testing.T, a answer, wait time.Duration) {
	t.Helper()
	assert.Equal(t, codes.ResourceExhausted, a.code)
	assert.Equal(t, "rate limit exceeded: hourly", a.message)
	require.NotNil(t, a.retry)
	assert.Equal(t, wait, a.retry.RetryDelay.AsDuration())
	require.NotNil(t, a.quota)
	require.Len(t, a.quota.Violations, 1)
	assert.Equal(t, "hourly", a.quota.Violations[0].Subject)
	assert.Equal(t, "hourly", a.quota.Violations[0].QuotaId)
	assert.Regexp(t, `^\d+ per 1h0m0s, \d+ at once$`, a.quota.Violations[0].Description)
	assert.Positive(t, a.quota.Violations[0].QuotaValue)
	assert.Equal(t, []string{"3600000"}, a.pushback)
	assert.Empty(t, a.header, "a client does not retry an answer with headers")
}

func TestTheWaitIsRoundedUpToAMillisecond(t *testing.T) {
	down := ratelimit.ErrUnavailable
	for name, row := range map[string]struct {
		wait     time.Duration
		err      error
		retry    time.Duration
		pushback string
	}{
		"a millisecond":                    {time.Millisecond, nil, time.Millisecond, "1"},
		"a nanosecond above a second":      {time.Second + 1, nil, time.Second + time.Millisecond, "1001"},
		"the most that an int32 holds":     {math.MaxInt32 * time.Millisecond, nil, math.MaxInt32 * time.Millisecond, "2147483647"},
		"longer than a client can be told": {math.MaxInt32*time.Millisecond + 1, nil, math.MaxInt32*time.Millisecond + time.Millisecond, "-1"},
		"the longest":                      {math.MaxInt64, nil, math.MaxInt64, "-1"}, // the maximum of a time.Duration
		"of a failed store":                {1500 * time.Microsecond, down, 2 * time.Millisecond, "2"},
	} {
		t.Run(name, func(t *testing.T) {
			limit := interceptor(t, &stub{decision: ratelimit.Decision{RetryAfter: row.wait}, err: row.err}, grpclimit.Options{})
			a := call(context.Background(), serve(t, &service{}, with(limit)...))
			assert.Equal(t, row.err != nil, a.code == codes.Unavailable)
			require.NotNil(t, a.retry)
			assert.Equal(t, row.retry, a.retry.RetryDelay.AsDuration())
			require.NoError(t, a.retry.RetryDelay.CheckValid())
			assert.Equal(t, []string{row.pushback}, a.pushback)
		})
	}
}

func TestADenialWithoutAKnownWaitLeavesTheClientToItsBackoff(t *testing.T) {
	a := call(context.Background(), serve(t, &service{}, with(interceptor(t, &stub{}, grpclimit.Options{}))...))
	assert.Equal(t, codes.ResourceExhausted, a.code)
	assert.Nil(t, a.retry)
	assert.Empty(t, a.pushback)
	require.NotNil(t, a.quota)
	assert.Equal(t, "default", a.quota.Violations[0].Subject, "a limit without a name")
	assert.Empty(t, a.quota.Violations[0].Description, "a limiter that does not tell its limit")
}

func TestACallThatCanNeverPassIsNotToBeRetried(t *testing.T) {
	for name, row := range map[string]struct {
		limit   ratelimit.Limit
		message string
	}{
		"a cost above the capacity": {ratelimit.TokenBucket(ratelimit.PerSecond(1), 4).Named("small"),
			"the call costs more than its limit ever allows: do not retry: small"},
		"a blocked key": {ratelimit.Blocked().Named("small"), "the key is blocked: do not retry: small"},
	} {
		t.Run(name, func(t *testing.T) {
			i := interceptor(t, limiterOf(t, new(ratelimittest.Clock), row.limit), grpclimit.Options{Cost: func(*grpclimit.Call) int { return 5 }})
			client := serve(t, &service{}, with(i)...)
			streamed, _ := open(context.Background(), client, 0)
			for _, a := range []answer{call(context.Background(), client), streamed} {
				assert.Equal(t, codes.ResourceExhausted, a.code)
				assert.Equal(t, row.message, a.message)
				assert.Nil(t, a.retry)
				assert.Equal(t, []string{"-1"}, a.pushback)
				require.NotNil(t, a.quota)
				assert.Equal(t, "small", a.quota.Violations[0].Subject)
				assert.Empty(t, a.header)
			}
			assert.Equal(t, httplimit.Stats{Exceeds: 2}, i.Stats())
		})
	}
}

// A load balancer's clients watch each server's health as long as the connection lives.
func TestStreamsOfHealthAndReflectionTakeNoPermits(t *testing.T) {
	helpers := []string{"/grpc.health.v1.Health/Watch", "/grpc.reflection.v1.ServerReflection/Info", "/grpc.reflection.v1alpha.ServerReflection/Info"}
	for name, row := range map[string]struct {
		skip func(*grpclimit.Call) bool
		want httplimit.Stats
	}{
		"by default":               {nil, httplimit.Stats{Skipped: 3, Allowed: 1}},
		"with a Skip of one's own": {func(*grpclimit.Call) bool { return false }, httplimit.Stats{Allowed: 1, Denied: 1}},
	} {
		i := shedding(t, 1, nil, &grpclimit.InflightOptions{Skip: row.skip})
		var inside func(methods []string) error // makes a call within another call's handler
		inside = func(methods []string) error {
			if len(methods) == 0 {
				_, err := i.UnaryServerInterceptor()(t.Context(), nil, info, answering(nil))
				return err
			}
			return i.StreamServerInterceptor()(nil, &fakeStream{}, &grpc.StreamServerInfo{FullMethod: methods[0]},
				func(any, grpc.ServerStream) error { return inside(methods[1:]) })
		}
		assert.Equal(t, row.skip == nil, inside(helpers) == nil, name)
		assert.Equal(t, row.want, i.Stats(), name)
	}
}

// Package edge tests for which calls the warning is logged.
func TestPerIPBehindAProxyIsWarnedOf(t *testing.T) {
	var log bytes.Buffer
	i := ratelimit.Must(grpclimit.PerIP(window(100), &grpclimit.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}))
	_, err := i.UnaryServerInterceptor()(incoming(tcp("10.0.0.1:1"), "x-forwarded-for", "198.51.100.7"), nil, info, answering(nil))
	require.NoError(t, err)
	assert.Contains(t, log.String(), `msg="grpclimit: PerIP gives one budget to all clients of a proxy: use New with ClientIP" field=X-Forwarded-For`)
}

// pacing returns an interceptor that allows one call a second, and queues ten.
func pacing(t *testing.T, opts grpclimit.Options) *grpclimit.Interceptor {
	t.Helper()
	return interceptor(t, limiterOf(t, nil, ratelimit.LeakyBucket(ratelimit.PerSecond(1), 10).Named("pace")), opts)
}

// Package edge has the tests of holds. A message that gives up its turn gives its place back, and the opening stays charged.
func TestALeakyBucketHoldsCallsAndMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i, begin := pacing(t, grpclimit.Options{ChargeMessages: true}), time.Now()
		unary := func(ctx context.Context) error {
			_, err := i.UnaryServerInterceptor()(ctx, nil, info, answering(nil))
			return err
		}
		stream := func(ctx context.Context) error {
			return i.StreamServerInterceptor()(nil, &fakeStream{ctx: ctx, received: make([]error, 1)}, &grpc.StreamServerInfo{},
				func(_ any, s grpc.ServerStream) error { return s.RecvMsg(nil) })
		}
		for _, row := range []struct {
			name string
			call func(context.Context) error
			time time.Duration // the time until the call's deadline
			want codes.Code
			ends time.Duration
		}{
			{"a call", unary, time.Hour, codes.OK, 0},
			{"the next call", unary, time.Hour, codes.OK, time.Second},
			{"a call beyond its deadline", unary, time.Second, codes.ResourceExhausted, time.Second},
			{"a stream and its message", stream, time.Hour, codes.OK, 3 * time.Second},
			{"a message beyond its deadline", stream, 1500 * time.Millisecond, codes.ResourceExhausted, 4 * time.Second},
			{"a call in its place", unary, time.Hour, codes.OK, 5 * time.Second},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), row.time)
			err := row.call(ctx)
			cancel()
			assert.Equal(t, row.ends, time.Since(begin), row.name)
			a := answer{}.read(err)
			assert.Equal(t, row.want, a.code, row.name)
			if err != nil {
				assert.Equal(t, "the rate limit delays the call beyond its deadline: pace", a.message)
				assert.Equal(t, time.Second, a.retry.RetryDelay.AsDuration())
			}
		}
	})
}

func TestAGracefulStopRefusesHeldCallsAtOnce(t *testing.T) {
	l := ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerHour(1), 1), nil))
	i := interceptor(t, ratelimit.Map(l, everyone), grpclimit.Options{MaxHold: 100 * time.Hour})
	server := new(service).server(with(i)...)
	client := testgrpc.NewTestServiceClient(dial(t, start(t, server)))
	require.Equal(t, codes.OK, call(t.Context(), client).code)
	codesOf := make(chan codes.Code, 10)
	for range 10 {
		go func() { codesOf <- call(t.Context(), client).code }()
	}
	require.Eventually(t, func() bool { return l.Stats().Waiting == 10 }, time.Minute, time.Millisecond)
	i.RefuseHeld()
	server.GracefulStop()
	for range 10 {
		assert.Equal(t, codes.ResourceExhausted, <-codesOf)
	}
	assert.Equal(t, httplimit.Stats{Allowed: 1, Denied: 10}, i.Stats())
	new(grpclimit.Interceptor).RefuseHeld()
}
