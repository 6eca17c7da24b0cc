package redislimit

import (
	"context"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/model"
)

func TestZeroValuesNameTheFault(t *testing.T) {
	const limiter, layered = "redislimit: this Limiter is nil or zero: make one with New", "ratelimit: this Layered is nil or zero: make one with All or AllOf"
	assert.PanicsWithError(t, limiter, func() { new(Limiter).Allow("k", 1) })
	assert.PanicsWithError(t, limiter, func() { new(Limiter).Describe() })
	assert.PanicsWithError(t, limiter, func() { _ = new(Limiter).Reset(context.Background(), "k") })
	assert.PanicsWithError(t, layered, func() { new(ratelimit.Layered[string]).Allow("k", 1) })
	_, err := ratelimit.All(ratelimit.By(new(Limiter), identity))
	assert.ErrorContains(t, err, "this Limiter is nil or zero")
}

// unreachable returns a limiter whose server does not exist.
func unreachable(t *testing.T, limit ratelimit.Limit, o *Options) *Limiter {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", DialerRetries: 1})
	t.Cleanup(func() { client.Close() })
	l, err := New(client, limit, o)
	require.NoError(t, err)
	return l
}

func TestACostOf0IsAllowedWithoutRedis(t *testing.T) {
	var events []ratelimit.Event[string]
	l := unreachable(t, perMinute(5).Named("x"), &Options{OnDecision: func(e ratelimit.Event[string]) { events = append(events, e) }})
	assert.True(t, l.Allow("k", 0))
	stack, err := ratelimit.All(ratelimit.By(l, identity))
	require.NoError(t, err)
	assert.True(t, stack.Allow("k", 0))
	require.Len(t, events, 2)
	assert.False(t, events[0].Spent)
	assert.Equal(t, "x", events[0].Decision.Limit.Name)
}

func TestLimitForSetsTheLimitOfAKey(t *testing.T) {
	f := newFixture(t)
	plans := map[string]ratelimit.Limit{"big": ratelimit.FixedWindow(ratelimit.PerHour(100)), "bad": ratelimit.FixedWindow(ratelimit.PerHour(-1)),
		"free": ratelimit.Unlimited(), "out": ratelimit.Blocked()}
	l, err := New(f.client, perMinute(5).Named("plans"), &Options{Timeout: 10 * time.Second, LimitFor: func(key string) ratelimit.Limit { return plans[key] }})
	require.NoError(t, err)
	d, err := l.Take(t.Context(), "big", 60)
	require.NoError(t, err)
	assert.Equal(t, 40, d.Remaining)
	assert.Equal(t, "plans", d.Limit.Name)
	d, err = l.Take(t.Context(), "other", 5)
	require.NoError(t, err)
	assert.True(t, d.Allowed)
	_, err = l.Take(t.Context(), "bad", 1)
	assert.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
	_, err = l.Take(t.Context(), "out", 1)
	assert.ErrorIs(t, err, ratelimit.ErrBlocked)
	assert.True(t, l.Allow("free", 1<<30))
}

func TestOnDecisionReceivesEachDecision(t *testing.T) {
	f := newFixture(t)
	var events []ratelimit.Event[string]
	l, err := New(f.client, ratelimit.FixedWindow(ratelimit.PerHour(5)).Named("x"), &Options{Timeout: 10 * time.Second,
		OnDecision: func(e ratelimit.Event[string]) { events = append(events, e) }})
	require.NoError(t, err)
	l.Allow("k", 5)
	l.Allow("k", 1)
	l.Take(t.Context(), "k", 9)
	l.Peek(t.Context(), "k", 1)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	err = l.Wait(ctx, "k", 1)
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	var late *ratelimit.LateError
	if assert.ErrorAs(t, err, &late) {
		assert.InDelta(t, time.Hour, late.RetryAfter(), float64(time.Minute))
	}
	require.Len(t, events, 4)
	assert.True(t, events[0].Spent)
	assert.False(t, events[1].Spent)
	assert.ErrorIs(t, events[2].Err, ratelimit.ErrExceedsLimit)
	assert.ErrorIs(t, events[3].Err, context.DeadlineExceeded)
	assert.False(t, events[3].Spent)
}

// TestAnyClientIsLeftInTime calls a paused server through a client without a timeout option.
func TestAnyClientIsLeftInTime(t *testing.T) {
	s := startServer(t)
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": s.addr}, HeartbeatFrequency: time.Hour})
	t.Cleanup(func() { assert.NoError(t, ring.Close()) })
	l := defaults(t, ring)
	warm(t, l)
	s.pause(t)
	err := promptly(t, taking(l))
	assert.ErrorIs(t, err, ratelimit.ErrUnavailable)
	var wg sync.WaitGroup
	for range 2 * maxGoroutines {
		wg.Go(func() { l.Allow("k", 1) })
	}
	assert.ErrorIs(t, promptly(t, taking(l)), ratelimit.ErrUnavailable)
	wg.Wait()
	s.resume(t)
	warm(t, l)
}

func TestWithoutATimeoutTheContextBounds(t *testing.T) {
	s := startServer(t)
	l, err := New(s.client(), perMinute(100), &Options{Name: "none", Timeout: -1})
	require.NoError(t, err)
	require.True(t, l.Allow("k", 1))
	assert.ErrorIs(t, unanswered(t, s, l, func() error {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		time.AfterFunc(30*time.Millisecond, cancel)
		_, err := l.Take(ctx, "k", 1)
		return err
	}), context.Canceled)
	s.resume(t)
}

func TestWaitersOfAFleetLeaveInLine(t *testing.T) {
	f := newFixture(t)
	l := f.real(ratelimit.TokenBucket(ratelimit.PerSecond(50), 1))
	begin := time.Now()
	for range 11 {
		require.NoError(t, l.Wait(t.Context(), "k", 1))
	}
	assert.GreaterOrEqual(t, time.Since(begin), 190*time.Millisecond, "10 of 50 a second")
	leaky := f.real(ratelimit.LeakyBucket(ratelimit.PerHour(1), 1))
	require.NoError(t, leaky.Wait(t.Context(), "k", 1))
	assert.ErrorIs(t, leaky.Wait(t.Context(), "k", 1), ratelimit.ErrLimited)
	stack, err := ratelimit.All(ratelimit.By(l, identity), ratelimit.By(f.real(ratelimit.FixedWindow(ratelimit.PerHour(3))), identity))
	require.NoError(t, err)
	for range 3 {
		require.NoError(t, stack.Wait(t.Context(), "w", 1))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	assert.ErrorIs(t, stack.Wait(ctx, "w", 1), context.DeadlineExceeded)
	assert.NoError(t, ctx.Err(), "at once")
}

func TestHugeFiguresAreCounted(t *testing.T) {
	f := newFixture(t)
	for _, limit := range fiveLimits() {
		l := f.limiter(limit, "huge"+limit.Name)
		r, err := l.Reserve(t.Context(), "k", 3, 0)
		require.NoError(t, err)
		require.NoError(t, r.Settle(math.MaxInt))
		d, err := l.Take(t.Context(), "k", 1)
		require.NoError(t, err)
		assert.False(t, d.Allowed)
		assert.Greater(t, d.RetryAfter, 365*24*time.Hour, "%v", limit)
		require.NoError(t, l.Adjust(t.Context(), "k", math.MaxInt))
		require.NoError(t, l.Adjust(t.Context(), "k", math.MaxInt))
		assert.False(t, l.Allow("k", 1))
		require.NoError(t, l.Adjust(t.Context(), "k", math.MinInt))
		assert.Equal(t, 10, f.left(l, "k"), "%v: a grant of all there is", limit)
		_, err = l.Take(t.Context(), "k", math.MaxInt)
		assert.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
		r, err = l.Reserve(t.Context(), "k", 3, math.MaxInt64)
		require.NoError(t, err)
		assert.True(t, r.Allowed)
		require.NoError(t, r.Settle(math.MinInt))
		r, err = l.Reserve(t.Context(), "k", 3, math.MinInt64)
		require.NoError(t, err)
		assert.True(t, r.Allowed)
	}
}

// A bucket and a calendar of one name would share a key, and each
// would read the other's spending as its own under another limit.
func TestAStackRefusesTwoLimitersOfOneName(t *testing.T) {
	client, other := startServer(t).client(), startServer(t).client()
	bucket := ratelimit.Must(New(client, ratelimit.TokenBucket(ratelimit.PerSecond(10), 10), &Options{Name: "api"}))
	day := ratelimit.Must(New(client, ratelimit.Calendar(30, ratelimit.Day("UTC")), &Options{Name: "api"}))
	split := ratelimit.Must(New(client, ratelimit.Calendar(30, ratelimit.Day("UTC")), &Options{Prefix: "ratelimit:a", Name: "pi"}))
	named := ratelimit.Must(New(client, ratelimit.Calendar(30, ratelimit.Day("UTC")), &Options{Name: "day"}))
	_, err := ratelimit.All(ratelimit.By(bucket, identity), ratelimit.By(named, identity), ratelimit.By(day, identity))
	require.ErrorContains(t, err, "layers 0 and 2 have different limiters of one Name and Prefix")
	_, err = ratelimit.All(ratelimit.By(bucket, identity), ratelimit.By(split, identity))
	require.ErrorContains(t, err, "one Name and Prefix", "the same keys, however prefix and name are divided")
	_, err = ratelimit.All(ratelimit.By(bucket, identity), model.AsShadow(ratelimit.By(day, identity)))
	require.ErrorContains(t, err, "one Name and Prefix")
	_, err = ratelimit.All(ratelimit.By(bucket, identity), ratelimit.By(bucket, func(string) (string, error) { return "all", nil }), ratelimit.By(named, identity))
	require.NoError(t, err, "one limiter may have several layers")
	elsewhere := ratelimit.Must(New(other, ratelimit.Calendar(30, ratelimit.Day("UTC")), &Options{Name: "api"}))
	_, err = ratelimit.All(ratelimit.By(bucket, identity), ratelimit.By(leased(elsewhere, 10), identity))
	require.NoError(t, err, "its keys are on another server")
}
