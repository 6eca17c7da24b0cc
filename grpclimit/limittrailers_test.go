package grpclimit_test

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/internal/rpcstatus"
	"github.com/weir-go/ratelimit/ratelimittest"
)

func TestTrailersContainTheRemainingBudget(t *testing.T) {
	clock := new(ratelimittest.Clock)
	costly := func(c *grpclimit.Call) int { return int(c.Request.(*testgrpc.SimpleRequest).ResponseSize) }
	i := interceptor(t, limiterOf(t, clock, ratelimit.FixedWindow(ratelimit.PerMinute(3)).Named("minute"), ratelimit.FixedWindow(ratelimit.PerHour(100)).Named("hour")),
		grpclimit.Options{LimitTrailers: true, Cost: costly, QuotaUnit: func(l ratelimit.Limit) string { return map[string]string{"hour": "tokens"}[l.Name] }})
	client := serve(t, new(service), with(i)...)
	for _, row := range []struct {
		wait            time.Duration
		cost            int32
		code            codes.Code
		limit, pushback []string
	}{
		{0, 1, codes.OK, []string{`"minute";r=2;t=60`}, nil},
		{10500 * time.Millisecond, 2, codes.OK, []string{`"minute";r=0;t=50`}, nil}, // of a stack, ResetAfter is the longest
		{0, 1, codes.ResourceExhausted, []string{`"minute";r=0;t=50`}, []string{"49500"}},
		{0, 4, codes.ResourceExhausted, nil, []string{"-1"}}, // this cost can never pass, so the remaining budget is unknown
	} {
		clock.Advance(row.wait)
		var header, trailer metadata.MD
		_, err := client.UnaryCall(t.Context(), &testgrpc.SimpleRequest{ResponseSize: row.cost}, grpc.Header(&header), grpc.Trailer(&trailer))
		assert.Equal(t, row.code, status.Code(err))
		assert.Empty(t, header["ratelimit"])
		assert.Equal(t, []string{`"minute";q=3;w=60, "hour";q=100;w=3600;qu="tokens"`}, trailer["ratelimit-policy"])
		assert.Equal(t, row.limit, trailer["ratelimit"])
		assert.Equal(t, row.pushback, trailer["grpc-retry-pushback-ms"])
	}

	two := limiterOf(t, clock, ratelimit.FixedWindow(ratelimit.PerMinute(3)).Named("a"), ratelimit.FixedWindow(ratelimit.PerHour(3)).Named("A"))
	_, err := grpclimit.New(two, &grpclimit.Options{LimitTrailers: true})
	assert.ErrorContains(t, err, "grpclimit: limits ")
	_, err = grpclimit.New(two, nil)
	assert.NoError(t, err)
}

// A stream's trailers are sent at its end, for example an hour after its opening.
func TestTrailersOfAStreamContainTheRemainingBudgetAtItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := interceptor(t, limiterOf(t, nil, ratelimit.FixedWindow(ratelimit.PerMinute(1))), grpclimit.Options{LimitTrailers: true})
		client := inBubble(t, new(service).server(with(i)...))
		served, err := client.FullDuplexCall(context.Background())
		require.NoError(t, err)
		synctest.Wait()
		denied, err := client.FullDuplexCall(context.Background())
		require.NoError(t, err)
		_, err = denied.Recv()
		assert.Equal(t, codes.ResourceExhausted, status.Code(err))
		assert.Equal(t, []string{`"default";r=0;t=60`}, denied.Trailer()["ratelimit"], "at once, so it is true")
		time.Sleep(time.Hour)
		require.NoError(t, served.CloseSend())
		_, err = served.Recv()
		require.ErrorIs(t, err, io.EOF)
		assert.Empty(t, served.Trailer()["ratelimit"])
		assert.Empty(t, served.Trailer()["ratelimit-policy"])
	})
}

// A client that obeys the remaining budget is never refused. If another client has spent the budget, the refused
// call is repeated as early as possible: RetryInfo has milliseconds, while the trailers have whole seconds.
func TestAClientKeepsToTheBudgetInTrailers(t *testing.T) {
	for name, row := range map[string]struct {
		limit ratelimit.Limit
		calls int
		took  time.Duration
		want  httplimit.Stats // the server's
	}{
		"the budget of windows":      {ratelimit.FixedWindow(ratelimit.PerMinute(3)), 7, 2 * time.Minute, httplimit.Stats{Allowed: 7}},
		"of which another has spent": {ratelimit.TokenBucket(ratelimit.PerSecond(5), 1), 1, 200 * time.Millisecond, httplimit.Stats{Allowed: 2, Denied: 1}},
	} {
		bubble(t, name, func(t *testing.T) {
			i := interceptor(t, limiterOf(t, nil, row.limit), grpclimit.Options{LimitTrailers: true})
			server := new(service).server(with(i)...)
			if row.calls == 1 {
				ok(t.Context(), t, inBubble(t, server), "unary")
			}
			_, dialling := paced(t, unlimited(t), grpclimit.ClientOptions{MaxRetries: 1})
			client, begin := inBubble(t, server, dialling...), time.Now()
			for range row.calls {
				ok(t.Context(), t, client, "unary")
			}
			assert.Equal(t, row.took, time.Since(begin))
			assert.Equal(t, row.want, i.Stats())
		})
	}
}

// Other servers report their budget under other names, in a call's headers or a stream's trailers.
func TestAClientKeepsToTheBudgetOfOtherServers(t *testing.T) {
	for _, prefix := range []string{"ratelimit-", "x-ratelimit-", "x-rate-limit-"} {
		for way := range ways {
			bubble(t, prefix+way, func(t *testing.T) {
				budget := metadata.Pairs(prefix+"limit", "9", prefix+"remaining", "0", prefix+"reset", "60")
				s := &service{unary: func(ctx context.Context, _ *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
					return new(testgrpc.SimpleResponse), grpc.SetHeader(ctx, budget)
				}, stream: func(s testgrpc.TestService_FullDuplexCallServer) error {
					s.SetTrailer(budget)
					return echo(s)
				}}
				_, dialling := paced(t, unlimited(t), grpclimit.ClientOptions{})
				client, begin := inBubble(t, s.server(), dialling...), time.Now()
				ok(t.Context(), t, client, way)
				ok(t.Context(), t, client, way)
				assert.Equal(t, time.Minute, time.Since(begin))
			})
		}
	}
}

// Package limitfields tests the names.
func TestNestedInterceptorsAnnounceEachNameOnce(t *testing.T) {
	per := func(n int) *grpclimit.Interceptor {
		return interceptor(t, limiterOf(t, new(ratelimittest.Clock), ratelimit.FixedWindow(ratelimit.PerMinute(n))), grpclimit.Options{LimitTrailers: true})
	}
	client := serve(t, new(service), with(per(9), per(1), per(4))...)
	a := call(t.Context(), client)
	assert.Equal(t, []string{`"default";q=9;w=60`, `"default-2";q=1;w=60`, `"default-3";q=4;w=60`}, a.trailer["ratelimit-policy"])
	assert.Equal(t, []string{`"default";r=8;t=60`, `"default-2";r=0;t=60`, `"default-3";r=3;t=60`}, a.trailer["ratelimit"])
	a = call(t.Context(), client)
	assert.Equal(t, []string{`"default";q=9;w=60`, `"default-2";q=1;w=60`}, a.trailer["ratelimit-policy"])
	assert.Equal(t, []string{`"default";r=7;t=60`, `"default-2";r=0;t=60`}, a.trailer["ratelimit"])
}

// By default, Jitter depends on a client's credentials.
func TestTheTrailerHasTheSameWaitAsRetryInfo(t *testing.T) {
	for name, by := range map[string]func(*grpclimit.Call) string{"default": nil, "method": func(c *grpclimit.Call) string { return c.FullMethod }} {
		bubble(t, name, func(t *testing.T) {
			i := interceptor(t, &stub{decision: ratelimit.Decision{RetryAfter: time.Hour}}, grpclimit.Options{Jitter: time.Minute, JitterBy: by})
			client := inBubble(t, new(service).server(with(i)...))
			waits := map[string]bool{}
			for _, who := range []string{"ann", "bob", "cleo"} {
				a := call(metadata.AppendToOutgoingContext(t.Context(), "authorization", who), client)
				require.Len(t, a.pushback, 1)
				assert.Equal(t, strconv.FormatInt(a.retry.RetryDelay.AsDuration().Milliseconds(), 10), a.pushback[0])
				waits[a.pushback[0]] = true
			}
			assert.Equal(t, by == nil, len(waits) > 1) // one pair in sixty thousand has equal waits
		})
	}
}

// The test decodes the status in httplimit's answers with the protobuf library. httplimit encodes it without this library.
func TestStatusIsEncodedAsByProtobuf(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	waits := []time.Duration{0, -time.Second, 1, time.Millisecond, 999 * time.Millisecond, time.Second, time.Hour, math.MaxInt64}
	for i := range 2000 {
		wait := time.Duration(r.Int64N(1 << r.IntN(62)))
		if i < len(waits) {
			wait = waits[i]
		}
		limit := ratelimit.FixedWindow(ratelimit.Per(1+r.IntN(1<<r.IntN(31)), time.Minute))
		if r.IntN(2) == 0 {
			limit = limit.Named(fmt.Sprintf("limit-%d", i))
		}
		text := rpcstatus.TextOf(&limit)
		a := rpcstatus.Answer{Code: rpcstatus.ResourceExhausted, Message: text.Denied, Wait: wait, Limit: text}

		var s spb.Status
		require.NoError(t, proto.Unmarshal(a.AppendStatus(nil), &s))
		assert.EqualValues(t, 8, s.Code)
		assert.Equal(t, text.Denied, s.Message)
		if wait > 0 {
			m, err := s.Details[0].UnmarshalNew()
			require.NoError(t, err)
			delay := m.(*errdetails.RetryInfo).RetryDelay
			require.NoError(t, delay.CheckValid())
			assert.GreaterOrEqual(t, delay.AsDuration(), wait, "never too early")
			assert.Less(t, delay.AsDuration()-wait, time.Millisecond)
			s.Details = s.Details[1:]
		}
		require.Len(t, s.Details, 1)
		m, err := s.Details[0].UnmarshalNew()
		require.NoError(t, err)
		violation := m.(*errdetails.QuotaFailure).Violations[0]
		assert.EqualValues(t, limit.Capacity(), violation.QuotaValue)
		assert.Equal(t, violation.Subject, violation.QuotaId)
		assert.Equal(t, fmt.Sprintf("%d per 1m0s, %d at once", limit.Rate.Units, limit.Rate.Units), violation.Description)
	}
}
