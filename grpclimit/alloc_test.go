package grpclimit_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/grpclimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/keyfunc"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// incoming returns the context of a server's handler.
func incoming(remote net.Addr, pairs ...string) context.Context {
	ctx := metadata.NewIncomingContext(context.Background(), metadata.Pairs(pairs...))
	if remote == nil {
		return ctx
	}
	return peer.NewContext(ctx, &peer.Peer{Addr: remote})
}

func tcp(s string) net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(s)) }

const ample = 1 << 30 // a limit in calls a second that no test reaches

func unaryBy[K comparable](t testing.TB, key func(*grpclimit.Call) (K, error), opts grpclimit.Options) grpc.UnaryServerInterceptor {
	t.Helper()
	l := ratelimit.Must(ratelimit.New[K](ratelimit.TokenBucket(ratelimit.PerSecond(ample), ample), nil))
	return interceptor(t, ratelimit.Map(l, key), opts).UnaryServerInterceptor()
}

func TestAnAllowedUnaryCallAllocatesAtMostOnce(t *testing.T) {
	testsize.Extra(t) // scripts/test compiles without inlining, which makes calls allocate
	if testsize.Race {
		t.Skip("the race detector allocates")
	}
	behindProxy := ratelimit.Must(grpclimit.ClientIP(httplimit.ClientIPOptions{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}))
	var request any = new(int)
	ctx := incoming(tcp("10.0.0.1:4711"), "x-forwarded-for", "2001:db8::1, 10.0.0.9", "x-api-key", "a-rather-long-secret-of-a-client-0123456789",
		"authorization", "Bearer a-rather-long-secret-of-a-client-0123456789", "tenant", "acme")
	info := &grpc.UnaryServerInfo{FullMethod: "/grpc.testing.TestService/UnaryCall"}
	handler := func(_ context.Context, req any) (any, error) { return req, nil }
	for name, row := range map[string]struct {
		call grpc.UnaryServerInterceptor
		most float64
	}{
		"method":                  {unaryBy(t, grpclimit.Method, grpclimit.Options{}), 0},
		"service":                 {unaryBy(t, grpclimit.Service, grpclimit.Options{}), 0},
		"metadata":                {unaryBy(t, grpclimit.Metadata("tenant"), grpclimit.Options{}), 1}, // gRPC copies the values
		"API key":                 {unaryBy(t, keyfunc.APIKey(grpclimit.Metadata("x-api-key")), grpclimit.Options{}), 1},
		"bearer token":            {unaryBy(t, keyfunc.BearerToken(grpclimit.Metadata("authorization")), grpclimit.Options{}), 1},
		"address":                 {unaryBy(t, grpclimit.RemoteIP, grpclimit.Options{}), 0},
		"address behind a proxy":  {unaryBy(t, behindProxy, grpclimit.Options{}), 1},
		"method and address":      {unaryBy(t, keyfunc.Join(grpclimit.Method, grpclimit.RemoteIP), grpclimit.Options{}), 0},
		"method, with OnDecision": {unaryBy(t, grpclimit.Method, grpclimit.Options{OnDecision: func(grpclimit.Event) {}}), 0},
		"method, skipped":         {unaryBy(t, grpclimit.Method, grpclimit.Options{Skip: grpclimit.SkipServices("grpc.testing.TestService")}), 0},
	} {
		t.Run(name, func(t *testing.T) {
			assert.LessOrEqual(t, testing.AllocsPerRun(1000, func() {
				if _, err := row.call(ctx, request, info, handler); err != nil {
					t.Fatal(err)
				}
			}), row.most)
		})
	}
}

// noTrailers discards the trailers that a server's interceptor sets.
type noTrailers struct{ grpc.ServerTransportStream }

func (noTrailers) SetTrailer(metadata.MD) error { return nil }

// Values that depend only on the limit are made once. In a flood, many denials have the same wait and share one answer.
func TestADenialAllocatesLittle(t *testing.T) {
	testsize.Extra(t) // scripts/test compiles without inlining, which makes calls allocate
	if testsize.Race {
		t.Skip("the race detector allocates")
	}
	ctx := grpc.NewContextWithServerTransportStream(incoming(tcp("10.0.0.1:4711")), noTrailers{})
	handler := func(_ context.Context, req any) (any, error) { return req, nil }
	for name, row := range map[string]struct {
		limit ratelimit.Limit
		step  time.Duration // the time between two calls
		most  float64
	}{
		"the same wait":   {ratelimit.TokenBucket(ratelimit.PerHour(1), 1).Named("hourly"), 0, 0},
		"another wait":    {ratelimit.TokenBucket(ratelimit.PerDay(1), 1).Named("daily"), time.Millisecond, 12},
		"never again":     {ratelimit.Blocked(), 0, 2},
		"no name":         {ratelimit.FixedWindow(ratelimit.PerHour(1)), 0, 0},
		"a sliding count": {ratelimit.SlidingCounter(ratelimit.PerHour(1)), 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			clock := new(ratelimittest.Clock)
			l := ratelimit.Must(ratelimit.New(row.limit, &ratelimit.Options[string]{Clock: clock}))
			call := interceptor(t, ratelimit.Map(l, everyone), grpclimit.Options{}).UnaryServerInterceptor()
			_, _ = call(ctx, nil, info, handler)
			assert.LessOrEqual(t, testing.AllocsPerRun(1000, func() {
				clock.Advance(row.step)
				if _, err := call(ctx, nil, info, handler); err == nil {
					t.Fatal("allowed")
				}
			}), row.most)
		})
	}
}

// An answer shared by several calls has the right limit and the right wait.
func TestSharedAnswersAreRight(t *testing.T) {
	clock := new(ratelimittest.Clock)
	limits := []ratelimit.Limit{
		ratelimit.FixedWindow(ratelimit.PerHour(1)).Named("a"), ratelimit.FixedWindow(ratelimit.PerHour(2)).Named("a"),
		ratelimit.FixedWindow(ratelimit.PerDay(1)).Named("b"),
	}
	l := ratelimit.Must(ratelimit.New(limits[0], &ratelimit.Options[string]{Clock: clock, LimitFor: func(key string) ratelimit.Limit { return limits[key[0]-'0'] }}))
	call := interceptor(t, ratelimit.Map(l, grpclimit.Metadata("key")), grpclimit.Options{}).UnaryServerInterceptor()
	for _, key := range []string{"0", "1", "1", "2"} {
		_, err := call(incoming(nil, "key", key), nil, info, answering(nil))
		require.NoError(t, err)
	}
	for range 3 {
		for range 2 {
			for i, name := range []string{"a", "a", "b"} {
				_, err := call(incoming(nil, "key", fmt.Sprint(i)), nil, info, unreachable(t))
				st := status.Convert(err)
				require.Equal(t, "rate limit exceeded: "+name, st.Message())
				require.Len(t, st.Details(), 2)
				retry, quota := st.Details()[0].(*errdetails.RetryInfo), st.Details()[1].(*errdetails.QuotaFailure)
				require.Equal(t, limits[i].Rate.Per-clock.Now(), retry.RetryDelay.AsDuration())
				require.Equal(t, limits[i].Rate.Units, int(quota.Violations[0].QuotaValue))
			}
		}
		clock.Advance(1_234_000_000)
	}
}

// A fixed limit ignores a call's outcome, so the context has no mark for it.
func TestFixedInflightLimitMakesNoMark(t *testing.T) {
	if testsize.Race {
		t.Skip("the race detector allocates")
	}
	ctx := context.Background()
	handler := func(got context.Context, _ any) (any, error) {
		if got != ctx {
			t.Fatal("another context")
		}
		return nil, nil
	}
	call := shedding(t, 10, nil, nil).UnaryServerInterceptor()
	assert.Zero(t, testing.AllocsPerRun(1000, func() { _, _ = call(ctx, nil, info, handler) }), "the Call is used again")
}

// Calls are reused for later calls. No call sees another's data, even after a panic.
func TestCallsThatAreUsedAgainAreNotMixed(t *testing.T) {
	l := ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerHour(3)), nil))
	check := func(c *grpclimit.Call) {
		assert.Equal(t, "/"+c.Request.(string)+"/Call", c.FullMethod)
		assert.Equal(t, []string{c.Request.(string)}, metadata.ValueFromIncomingContext(c.Context(), "key"))
	}
	call := interceptor(t, ratelimit.Map(l, grpclimit.Metadata("key")), grpclimit.Options{
		Cost:       func(c *grpclimit.Call) int { check(c); return 1 },
		OnDecision: func(e grpclimit.Event) { check(e.Call) },
		Settle:     func(c *grpclimit.Call, _ codes.Code, cost int) int { check(c); return cost },
	}).UnaryServerInterceptor()
	var all sync.WaitGroup
	var allowed, panics atomic.Int64
	for i := range 20 {
		all.Go(func() {
			key := fmt.Sprint("caller-", i)
			for range 20 {
				func() {
					defer func() {
						if recover() != nil {
							panics.Add(1)
						}
					}()
					_, err := call(incoming(nil, "key", key), key, &grpc.UnaryServerInfo{FullMethod: "/" + key + "/Call"}, func(context.Context, any) (any, error) {
						if allowed.Add(1)%2 == 0 {
							panic("in the handler")
						}
						return nil, nil
					})
					if err != nil {
						assert.Equal(t, codes.ResourceExhausted, status.Code(err))
					}
				}()
			}
		})
	}
	all.Wait()
	assert.EqualValues(t, 60, allowed.Load())
	assert.EqualValues(t, 30, panics.Load())
}

// An unused Call keeps no request in memory.
func TestNoRequestIsKeptAfterItsCall(t *testing.T) {
	call, request := unaryBy(t, grpclimit.Method, grpclimit.Options{}), new([64]byte)
	kept := weak.Make(request)
	_, err := call(t.Context(), request, info, answering(nil))
	require.NoError(t, err)
	runtime.GC()
	assert.Nil(t, kept.Value())
}

// lingering is a limiter that may continue a call after its caller has left, as package failover does.
type lingering struct {
	ratelimit.Reserver[*grpclimit.Call]
	calls chan *grpclimit.Call
}

func (l lingering) Take(ctx context.Context, c *grpclimit.Call, cost int) (ratelimit.Decision, error) {
	l.calls <- c
	return l.Reserver.Take(ctx, c, cost)
}

// Package edge tests which limiters may go on.
func TestCallOfALimiterThatMayGoOnIsNotUsedAgain(t *testing.T) {
	l := lingering{limiterOf(t, nil, ratelimit.Unlimited()), make(chan *grpclimit.Call, 10)}
	i := interceptor(t, l, grpclimit.Options{})
	for _, method := range []string{"/a/b", "/c/d"} {
		_, err := i.UnaryServerInterceptor()(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: method}, answering(nil))
		require.NoError(t, err)
	}
	assert.Equal(t, "/a/b", (<-l.calls).FullMethod)
	assert.Equal(t, "/c/d", (<-l.calls).FullMethod)
}
