package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/keyfunc"
	"github.com/weir-go/ratelimit/ratelimittest"
)

var errMisconfigured = fmt.Errorf("%w: %w: no way", keyfunc.ErrMisconfigured, keyfunc.ErrNoKey)

const secret = "what-no-client-may-see"

func TestACallThatCannotBeDecidedIsRefused(t *testing.T) {
	for name, row := range map[string]struct {
		err      error
		want     codes.Code
		keyCode  codes.Code
		rejected bool
		open     bool // FailOpen applies
	}{
		"the store is down":              {err: ratelimit.ErrUnavailable, want: codes.Unavailable, open: true},
		"the limiter fails":              {err: errors.New(secret), want: codes.Unavailable, open: true},
		"the table is full":              {err: ratelimit.ErrTableFull, want: codes.Unavailable},
		"the cost is negative":           {err: ratelimit.ErrNegativeCost, want: codes.Internal},
		"no key":                         {err: keyfunc.ErrNoKey, want: codes.InvalidArgument, rejected: true},
		"no key, by the caller's choice": {err: keyfunc.ErrNoKey, keyCode: codes.Unauthenticated, want: codes.Unauthenticated, rejected: true},
		"a malformed key":                {err: keyfunc.ErrMalformedKey, want: codes.InvalidArgument, rejected: true},
		"a malformed key, by choice":     {err: keyfunc.ErrMalformedKey, keyCode: codes.Unauthenticated, want: codes.Unauthenticated, rejected: true},
		"an invalid key":                 {err: ratelimit.ErrInvalidKey, want: codes.InvalidArgument, rejected: true},
		"a misconfigured server":         {err: errMisconfigured, want: codes.Internal},
	} {
		for _, failOpen := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, FailOpen %v", name, failOpen), func(t *testing.T) {
				var outcomes []httplimit.Outcome
				i := interceptor(t, &stub{err: fmt.Errorf("%w: %s", row.err, secret)}, grpclimit.Options{
					FailOpen: failOpen, KeyCode: row.keyCode, OnDecision: func(e grpclimit.Event) { outcomes = append(outcomes, e.Outcome) },
				})
				a := call(context.Background(), serve(t, &service{}, with(i)...))
				if failOpen && row.open {
					assert.Equal(t, codes.OK, a.code)
					assert.Equal(t, httplimit.Stats{FailedOpen: 1}, i.Stats())
					return
				}
				assert.Equal(t, row.want, a.code)
				assert.NotContains(t, a.message, secret)
				assert.Empty(t, a.pushback, "the client's backoff knows better")
				assert.Nil(t, a.retry)
				want, stats := httplimit.OutcomeFailed, httplimit.Stats{Failed: 1}
				if row.rejected {
					want, stats = httplimit.OutcomeRejected, httplimit.Stats{Rejected: 1}
				}
				assert.Equal(t, stats, i.Stats())
				assert.Equal(t, []httplimit.Outcome{want}, outcomes)
			})
		}
	}
}

func TestARetryAfterOfAFailedStoreIsSent(t *testing.T) {
	i := interceptor(t, &stub{decision: ratelimit.Decision{RetryAfter: 1500 * time.Microsecond}, err: ratelimit.ErrUnavailable}, grpclimit.Options{})
	a := call(context.Background(), serve(t, &service{}, with(i)...))
	assert.Equal(t, codes.Unavailable, a.code)
	assert.Equal(t, []string{"2"}, a.pushback)
	require.NotNil(t, a.retry)
	assert.Equal(t, 2*time.Millisecond, a.retry.RetryDelay.AsDuration())
}

func TestACallWhoseContextHasEndedIsNotLetThrough(t *testing.T) {
	for want, ctx := range map[codes.Code]context.Context{
		codes.Canceled:         cancelled(),
		codes.DeadlineExceeded: expired(t),
	} {
		i := interceptor(t, &stub{err: errors.New("the call to the store was cut")}, grpclimit.Options{FailOpen: true})
		_, err := i.UnaryServerInterceptor()(ctx, nil, &grpc.UnaryServerInfo{}, unreachable(t))
		assert.Equal(t, want, status.Code(err))
		assert.Equal(t, httplimit.Stats{Rejected: 1}, i.Stats())
	}
}

func cancelled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func expired(t *testing.T) context.Context {
	ctx, cancel := context.WithDeadline(context.Background(), time.Now().Add(-time.Hour))
	t.Cleanup(cancel)
	return ctx
}

// hurried returns a context whose deadline has not ended yet.
func hurried(t *testing.T) context.Context {
	ctx, cancel := context.WithDeadline(context.Background(), time.Now().Add(time.Hour))
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
		"a denial":                  {&stub{}, grpclimit.Options{OnDenied: other}, codes.Aborted},
		"what can never pass":       {&stub{err: ratelimit.ErrExceedsLimit}, grpclimit.Options{OnExceeds: other}, codes.Aborted},
		"what could not be decided": {&stub{err: ratelimit.ErrUnavailable}, grpclimit.Options{OnError: other}, codes.Aborted},
		"nil keeps the answer": {&stub{}, grpclimit.Options{
			OnDenied: func(grpclimit.Event, *status.Status) *status.Status { return nil },
		}, codes.ResourceExhausted},
		"OK does not let a call pass": {&stub{}, grpclimit.Options{
			OnDenied: func(grpclimit.Event, *status.Status) *status.Status { return status.New(codes.OK, "") },
		}, codes.ResourceExhausted},
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

func TestInterceptorsAroundGetTheError(t *testing.T) {
	i := interceptor(t, &stub{err: ratelimit.ErrExceedsLimit}, grpclimit.Options{})
	_, err := i.UnaryServerInterceptor()(context.Background(), nil, &grpc.UnaryServerInfo{}, unreachable(t))
	assert.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	assert.Equal(t, codes.ResourceExhausted, status.Code(err))
	assert.Contains(t, err.Error(), "ResourceExhausted")
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

func TestErrorsAreLoggedOnceASecond(t *testing.T) {
	var lines strings.Builder
	now := time.Unix(0, 0)
	i := interceptor(t, &stub{err: keyfunc.ErrNoKey}, grpclimit.Options{
		Logger: slog.New(slog.NewTextHandler(&lines, nil)), Now: func() time.Time { return now },
	})
	call := func() {
		_, _ = i.UnaryServerInterceptor()(context.Background(), nil, &grpc.UnaryServerInfo{FullMethod: "/pkg.Service/Method"}, unreachable(t))
	}
	for range 5 {
		call()
	}
	assert.Equal(t, 1, strings.Count(lines.String(), "\n"))
	assert.Contains(t, lines.String(), "level=INFO")
	assert.Contains(t, lines.String(), "method=/pkg.Service/Method")
	now = now.Add(time.Second)
	call()
	assert.Contains(t, lines.String(), "unlogged=4")
}

func TestMistakesAreRefused(t *testing.T) {
	keyed, err := ratelimit.New[*grpclimit.Call](ratelimit.FixedWindow(ratelimit.PerHour(1)), nil)
	require.NoError(t, err)
	var missing *ratelimit.Keyed[*grpclimit.Call]
	settle := grpclimit.ChargeOnly(codes.Unauthenticated)
	for want, row := range map[string]struct {
		limiter ratelimit.Limiter[*grpclimit.Call]
		opts    *grpclimit.Options
	}{
		"grpclimit: New: limiter is nil":                                 {nil, nil},
		"grpclimit: New: limiter is nil ":                                {missing, nil},
		"grpclimit: this limiter's key is the call itself":               {keyed, nil},
		"grpclimit: Options.KeyCode is 17":                               {&stub{}, &grpclimit.Options{KeyCode: 17}},
		"grpclimit: Options.DegradedTrailer is not":                      {&stub{}, &grpclimit.Options{DegradedTrailer: "grpc-mine"}},
		"grpclimit: Options.DegradedTrailer is not a metadata":           {&stub{}, &grpclimit.Options{DegradedTrailer: "a b"}},
		"grpclimit: Options.Settle needs a ratelimit.Reserver, and *grp": {&stub{}, &grpclimit.Options{Settle: settle}},
	} {
		i, err := grpclimit.New(row.limiter, row.opts)
		assert.ErrorContains(t, err, strings.TrimSpace(want))
		assert.Nil(t, i)
		assert.Panics(t, func() { ratelimit.Must(i, err) })
	}
	for _, zero := range []*grpclimit.Interceptor{nil, {}} {
		assert.PanicsWithError(t, "grpclimit: this Interceptor is nil or zero: make one with New or PerIP", func() { zero.UnaryServerInterceptor() })
		assert.PanicsWithError(t, "grpclimit: this Interceptor is nil or zero: make one with New or PerIP", func() { zero.StreamServerInterceptor() })
	}
	_, err = grpclimit.PerIP(ratelimit.Limit{}, nil)
	assert.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
}

func TestOptionsMayBeNil(t *testing.T) {
	i, err := grpclimit.New(limiterOf(t, new(ratelimittest.Clock), ratelimit.FixedWindow(ratelimit.PerHour(1))), nil)
	require.NoError(t, err)
	client := serve(t, &service{}, with(i)...)
	assert.Equal(t, codes.OK, call(context.Background(), client).code)
	assert.Equal(t, codes.ResourceExhausted, call(context.Background(), client).code)
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

func TestSkippedCallsAreNotDecided(t *testing.T) {
	i := interceptor(t, &stub{err: errors.New("asked")}, grpclimit.Options{Skip: grpclimit.SkipServices("grpc.testing.TestService"), ChargeMessages: true})
	client := serve(t, &service{}, with(i)...)
	assert.Equal(t, codes.OK, call(context.Background(), client).code)
	a, echoed := open(context.Background(), client, 2)
	assert.Equal(t, codes.OK, a.code)
	assert.Equal(t, 2, echoed)
	assert.Equal(t, httplimit.Stats{Skipped: 2}, i.Stats())
}

func TestACostOfZeroAlwaysPasses(t *testing.T) {
	i := hourly(t, 1, grpclimit.Options{Cost: func(c *grpclimit.Call) int {
		if c.ClientStream || c.ServerStream {
			return 0
		}
		return 1
	}})
	client := serve(t, &service{}, with(i)...)
	assert.Equal(t, codes.OK, call(context.Background(), client).code)
	assert.Equal(t, codes.ResourceExhausted, call(context.Background(), client).code)
	a, _ := open(context.Background(), client, 1)
	assert.Equal(t, codes.OK, a.code)
}
