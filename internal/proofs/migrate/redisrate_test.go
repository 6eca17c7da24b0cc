package migrate

import (
	"context"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/proofs/internal/redisserver"
	"github.com/weir-go/ratelimit/redislimit"
)

// long is a timeout not reached even on a busy machine.
var long = &redislimit.Options{Timeout: 10 * time.Second}

// about is the maximum time by which this library may be called later than redis_rate.
const about = float64(time.Minute)

// The page docs/migrate.md quotes the calls.
func TestRedisRateCalls(t *testing.T) {
	ctx, client := t.Context(), redisserver.Start(t)
	perHour := redis_rate.PerHour(10)
	theirs := redis_rate.NewLimiter(client)
	limit := ratelimit.TokenBucket(ratelimit.PerHour(10), 10).Named("api")
	ours, err := redislimit.New(client, limit, long)
	require.NoError(t, err)

	same := func(theirs *redis_rate.Result, ours ratelimit.Decision) {
		t.Helper()
		assert.Equal(t, theirs.Allowed > 0, ours.Allowed)
		if ours.Allowed { // theirs is 0 after a denial, even if a lower cost would fit
			assert.Equal(t, theirs.Remaining, ours.Remaining)
		}
		assert.InDelta(t, max(0, theirs.RetryAfter), ours.RetryAfter, about) // theirs is -1 if the call is allowed
		assert.InDelta(t, theirs.ResetAfter, ours.ResetAfter, about)
	}
	for _, n := range []int{3, 8, 2, 5, 1} {
		r, err := theirs.AllowN(ctx, "ann", perHour, n)
		require.NoError(t, err)
		d, err := ours.Take(ctx, "ann", n)
		require.NoError(t, err)
		same(r, d)
	}
	r, err := theirs.Allow(ctx, "bob", perHour)
	require.NoError(t, err)
	d, err := ours.Take(ctx, "bob", 1)
	require.NoError(t, err)
	same(r, d)

	for range 3 { // first the rest of bob's units, and then none
		r, err = theirs.AllowAtMost(ctx, "bob", perHour, 7)
		require.NoError(t, err)
		granted, d, err := ratelimit.TakeUpTo(ctx, ours, "bob", 7)
		require.NoError(t, err)
		assert.Equal(t, r.Allowed, granted)
		same(r, d)
	}
	require.NoError(t, theirs.Reset(ctx, "bob"))
	require.NoError(t, ours.Reset(ctx, "bob"))
	r, err = theirs.Allow(ctx, "bob", perHour)
	require.NoError(t, err)
	d, err = ours.Take(ctx, "bob", 1)
	require.NoError(t, err)
	same(r, d)

	theirLimit, ourLimit := redis_rate.Limit{Rate: 10, Burst: 20, Period: time.Hour}, ratelimit.TokenBucket(ratelimit.PerHour(10), 20)
	wide, err := redislimit.New(client, ourLimit.Named("wide"), long)
	require.NoError(t, err)
	r, err = theirs.AllowN(ctx, "wide", theirLimit, 15)
	require.NoError(t, err)
	d, err = wide.Take(ctx, "wide", 15)
	require.NoError(t, err)
	same(r, d)
}

// A call's limit depends on its key or its request.
func TestRedisRateLimitOfACall(t *testing.T) {
	ctx, client := t.Context(), redisserver.Start(t)
	theirs := redis_rate.NewLimiter(client)
	perUser := func(user string) int { return map[string]int{"ann": 5}[user] + 5 }
	limitFor := func(user string) ratelimit.Limit {
		return ratelimit.TokenBucket(ratelimit.PerHour(perUser(user)), perUser(user))
	}
	ours, err := redislimit.New(client, ratelimit.TokenBucket(ratelimit.PerHour(5), 5).Named("api"),
		&redislimit.Options{LimitFor: limitFor, Timeout: long.Timeout})
	require.NoError(t, err)
	for _, user := range []string{"ann", "bob"} {
		for range 3 {
			r, err := theirs.AllowN(ctx, user, redis_rate.PerHour(perUser(user)), 3)
			require.NoError(t, err)
			d, err := ours.Take(ctx, user, 3)
			require.NoError(t, err)
			assert.Equal(t, r.Allowed > 0, d.Allowed)
		}
	}
}

// TestRedisRateCostsThatCanNeverPass: redis_rate returns a RetryAfter, again and again.
func TestRedisRateCostsThatCanNeverPass(t *testing.T) {
	ctx, client := t.Context(), redisserver.Start(t)
	r, err := redis_rate.NewLimiter(client).AllowN(ctx, "ann", redis_rate.PerSecond(10), 15)
	require.NoError(t, err)
	assert.Zero(t, r.Allowed)
	assert.Equal(t, 500*time.Millisecond, r.RetryAfter.Round(time.Millisecond))

	ours, err := redislimit.New(client, ratelimit.TokenBucket(ratelimit.PerSecond(10), 10).Named("api"), long)
	require.NoError(t, err)
	_, err = ours.Take(ctx, "ann", 15)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
}

func TestRedisRateCostsBelowZero(t *testing.T) {
	ctx, client := t.Context(), redisserver.Start(t)
	r, err := redis_rate.NewLimiter(client).AllowN(ctx, "ann", redis_rate.PerHour(10), -5)
	require.NoError(t, err)
	assert.Equal(t, 15, r.Remaining, "of 10")

	ours, err := redislimit.New(client, ratelimit.TokenBucket(ratelimit.PerHour(10), 10).Named("api"), long)
	require.NoError(t, err)
	_, err = ours.Take(ctx, "ann", -5)
	require.ErrorIs(t, err, ratelimit.ErrNegativeCost)
}

// TestRedisRateKeepsOneNumberForAllLimitsOfAKey, so spending under a slow limit blocks a fast one.
func TestRedisRateKeepsOneNumberForAllLimitsOfAKey(t *testing.T) {
	ctx, client := t.Context(), redisserver.Start(t)
	theirs := redis_rate.NewLimiter(client)
	_, err := theirs.Allow(ctx, "ann", redis_rate.PerHour(100))
	require.NoError(t, err)
	r, err := theirs.Allow(ctx, "ann", redis_rate.PerSecond(10))
	require.NoError(t, err)
	assert.Zero(t, r.Allowed, "the first of ten in a second")

	hour, err := redislimit.New(client, ratelimit.TokenBucket(ratelimit.PerHour(100), 100).Named("hour"), long)
	require.NoError(t, err)
	second, err := redislimit.New(client, ratelimit.TokenBucket(ratelimit.PerSecond(10), 10).Named("second"), long)
	require.NoError(t, err)
	ann := func(user string) (string, error) { return user, nil }
	both, err := ratelimit.All(ratelimit.By(hour, ann), ratelimit.By(second, ann)) // one round trip for both
	require.NoError(t, err)
	d, err := both.Take(ctx, "ann", 1)
	require.NoError(t, err)
	assert.True(t, d.Allowed)
}

// TestRedisRateChargesTwiceForALostAnswer: go-redis repeats a command if it gets no answer. This
// library's limiter prevents a repetition. Its error states that the call may have been charged.
func TestRedisRateChargesTwiceForALostAnswer(t *testing.T) {
	ctx, direct := t.Context(), redisserver.Start(t)
	proxy := newProxy(t, direct.Options().Addr)
	client := redis.NewClient(&redis.Options{Addr: proxy.addr})
	t.Cleanup(func() { _ = client.Close() })

	theirs := redis_rate.NewLimiter(client)
	_, err := theirs.Allow(ctx, "ann", redis_rate.PerHour(10)) // loads the script and opens a connection
	require.NoError(t, err)
	proxy.drop.Store(true)
	r, err := theirs.Allow(ctx, "ann", redis_rate.PerHour(10))
	require.NoError(t, err)
	assert.Equal(t, 7, r.Remaining, "two calls, three charges")

	ours, err := redislimit.New(client, ratelimit.TokenBucket(ratelimit.PerHour(10), 10).Named("api"), long)
	require.NoError(t, err)
	_, err = ours.Take(ctx, "ann", 1)
	require.NoError(t, err)
	proxy.drop.Store(true)
	_, err = ours.Take(ctx, "ann", 1)
	require.ErrorIs(t, err, ratelimit.ErrUnanswered)
	d, err := ours.Peek(ctx, "ann", 1)
	require.NoError(t, err)
	assert.Equal(t, 8, d.Remaining, "two calls, two charges")
}

// proxy stands between a client and a server, and drops answers.
type proxy struct {
	addr string
	drop atomic.Bool // drops the next answer and its connection
}

func newProxy(t *testing.T, server string) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	p := &proxy{addr: l.Addr().String()}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go p.serve(conn, server)
		}
	}()
	return p
}

func (p *proxy) serve(client net.Conn, addr string) {
	defer client.Close()
	server, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		_, _ = io.Copy(server, client)
		_ = server.Close()
	}()
	answer := make([]byte, 64<<10)
	for {
		n, err := server.Read(answer)
		if err != nil || p.drop.CompareAndSwap(true, false) {
			return
		}
		if _, err := client.Write(answer[:n]); err != nil {
			return
		}
	}
}

// TestOursAnswersInTimeWhenRedisDoesNot: the limiter's own timeout applies, whatever the client's timeouts are.
func TestOursAnswersInTimeWhenRedisDoesNot(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // it accepts no connections
	require.NoError(t, err)
	defer l.Close()
	client := redis.NewClient(&redis.Options{Addr: l.Addr().String()})
	defer client.Close()
	ours, err := redislimit.New(client, ratelimit.TokenBucket(ratelimit.PerHour(10), 10).Named("api"), nil)
	require.NoError(t, err)
	_, err = ours.Take(context.Background(), "ann", 1)
	require.ErrorIs(t, err, ratelimit.ErrUnavailable)
}
