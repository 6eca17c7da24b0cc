package redislimit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/fair"
)

func TestNewFairRefusesWhatItCannotCount(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	ok := ratelimit.TokenBucket(ratelimit.PerSecond(10), 10)
	named := &FairOptions{Name: "x"}
	for name, c := range map[string]struct {
		client redis.UniversalClient
		limit  ratelimit.Limit
		opts   *FairOptions
		want   string
		is     error
	}{
		"client is nil":    {nil, ok, named, "client is nil", nil},
		"nil in interface": {(*redis.Client)(nil), ok, named, "client is nil", nil},
		"no name":          {client, ok, nil, "FairOptions.Name", nil},
		"braces":           {client, ok, &FairOptions{Name: "a{b"}, "braces", nil},
		"prefix":           {client, ok, &FairOptions{Name: "a", Prefix: "}"}, "braces", nil},
		"waiting":          {client, ok, &FairOptions{Name: "a", MaxWaiting: -1}, "MaxWaiting is -1", nil},
		"window":           {client, ratelimit.FixedWindow(ratelimit.PerSecond(10)), named, "want a token bucket", ratelimit.ErrInvalidLimit},
		"unlimited":        {client, ratelimit.Unlimited(), named, "want a token bucket", ratelimit.ErrInvalidLimit},
		"zero":             {client, ratelimit.Limit{}, named, "", ratelimit.ErrInvalidLimit},
		"large burst":      {client, ratelimit.TokenBucket(ratelimit.PerSecond(10), 1<<30+1), named, "want at most 2^30", ratelimit.ErrInvalidLimit},
		"slow":             {client, ratelimit.TokenBucket(ratelimit.Per(7, 10*time.Second), 1<<30), named, "cannot be counted exactly", ratelimit.ErrInvalidLimit},
	} {
		_, err := NewFair(c.client, c.limit, c.opts)
		require.Error(t, err, name)
		assert.Contains(t, err.Error(), c.want, name)
		if c.is != nil {
			assert.ErrorIs(t, err, c.is, name)
		}
	}
	f, err := NewFair(client, ok.Named("from-limit"), nil)
	require.NoError(t, err)
	assert.Equal(t, []ratelimit.Limit{ok.Named("from-limit")}, f.Describe().Limits)
	assert.ErrorIs(t, f.SetLimit(ratelimit.SlidingLog(ratelimit.PerSecond(1))), ratelimit.ErrInvalidLimit)
	assert.Panics(t, func() { new(Fair).Allow("a", 1) })
}

func newTestFair(t *testing.T, server *server, limit ratelimit.Limit) *Fair {
	f, err := NewFair(server.client(), limit, &FairOptions{Name: "f", Timeout: 10 * time.Second})
	require.NoError(t, err)
	return f
}

func TestAFairRefusesWrongCallsAndChargesNothing(t *testing.T) {
	server := startServer(t)
	f := newTestFair(t, server, ratelimit.TokenBucket(ratelimit.PerDay(1), 8))
	ctx := t.Context()
	for _, cost := range []int{-1, math.MinInt} {
		_, err := f.Take(ctx, "a", cost)
		assert.ErrorIs(t, err, ratelimit.ErrNegativeCost)
		assert.ErrorIs(t, f.Wait(ctx, "a", cost), ratelimit.ErrNegativeCost)
		assert.False(t, f.Allow("a", cost))
	}
	for _, cost := range []int{9, math.MaxInt} {
		d, err := f.Take(ctx, "a", cost)
		assert.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
		assert.False(t, d.Allowed)
		assert.Equal(t, 8, d.Limit.Burst)
		assert.ErrorIs(t, f.Wait(ctx, "a", cost), ratelimit.ErrExceedsLimit)
	}
	over, cancel := context.WithCancel(ctx)
	cancel()
	_, err := f.Take(over, "a", 1)
	assert.ErrorIs(t, err, context.Canceled)
	assert.ErrorIs(t, f.Wait(over, "a", 1), context.Canceled)
	d, err := f.Take(ctx, "a", 0)
	require.NoError(t, err)
	assert.True(t, d.Allowed)
	d, err = f.Take(ctx, "", 7) // an eighth of the burst is reserved for new tenants
	require.NoError(t, err)
	assert.True(t, d.Allowed)
	d, err = f.Take(ctx, "a", 7)
	require.NoError(t, err)
	assert.False(t, d.Allowed)
	assert.Positive(t, d.RetryAfter)
	assert.Greater(t, d.ResetAfter, 24*time.Hour)
}

func TestMisusedReservationsOfAFairChargeAtMostOnce(t *testing.T) {
	server := startServer(t)
	f := newTestFair(t, server, ratelimit.TokenBucket(ratelimit.PerDay(1), 80))
	ctx := t.Context()
	r, err := f.Reserve(ctx, "a", 60, 0)
	require.NoError(t, err)
	require.True(t, r.Allowed)
	require.NoError(t, r.Settle(10))
	require.NoError(t, r.Settle(0)) // the second settlement has no effect
	require.NoError(t, r.Cancel())
	require.NoError(t, f.Flush(ctx))
	assert.Equal(t, int64(10), spentOf(t, server))
	r, err = f.Reserve(ctx, "b", 5, 0)
	require.NoError(t, err)
	require.NoError(t, r.Settle(math.MaxInt)) // takes the rest of the budget, and leaves a debt to this tenant alone
	require.NoError(t, f.Flush(ctx))
	assert.Equal(t, int64(80), spentOf(t, server))
}

// spentOf returns the shared budget's spending: the units granted and not regained.
func spentOf(t *testing.T, server *server) (spent int64) {
	text, err := server.Do("HGET", "ratelimit:{f}!fair", "spent")
	require.NoError(t, err)
	_, err = fmt.Sscan(text, &spent)
	require.NoError(t, err)
	return spent
}

func TestFlushGivesBackWhatAFairHolds(t *testing.T) {
	server := startServer(t)
	f, g := newTestFair(t, server, ratelimit.TokenBucket(ratelimit.PerDay(1), 800)), newTestFair(t, server, ratelimit.TokenBucket(ratelimit.PerDay(1), 800))
	for range 100 {
		require.True(t, f.Allow("a", 1))
	}
	require.NoError(t, f.Flush(t.Context()))
	f.mu.Lock()
	assert.Zero(t, f.heldLocked(false))
	f.mu.Unlock()
	assert.Eventually(t, func() bool { return g.Allow("b", 500) }, 10*time.Second, time.Millisecond, "once the other tenant has left the line")
	require.NoError(t, g.Flush(t.Context()))
	assert.Equal(t, int64(600), spentOf(t, server))
	require.NoError(t, g.Flush(t.Context()), "with nothing to give back")
}

func TestALimitOfAFairChangesForCallersInLine(t *testing.T) {
	server := startServer(t)
	f := newTestFair(t, server, ratelimit.TokenBucket(ratelimit.PerDay(1), 80))
	require.True(t, f.Allow("a", 70))
	waits := make(chan error, 2)
	go func() { waits <- f.Wait(t.Context(), "a", 60) }()
	require.Eventually(t, func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.waiting == 1 }, 10*time.Second, time.Millisecond)
	require.NoError(t, f.SetLimit(ratelimit.TokenBucket(ratelimit.PerDay(1), 40)))
	assert.ErrorIs(t, <-waits, ratelimit.ErrExceedsLimit)
	go func() { waits <- f.Wait(t.Context(), "a", 35) }()
	require.Eventually(t, func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.waiting == 1 }, 10*time.Second, time.Millisecond)
	require.NoError(t, f.SetLimit(ratelimit.TokenBucket(ratelimit.PerSecond(1_000_000), 1000)))
	assert.NoError(t, <-waits)
}

// holdUp is a hook. Once on is set, it holds the next call back: it
// sends to entered, and the call goes on after a receipt from next.
type holdUp struct {
	on            atomic.Bool
	entered, next chan struct{}
}

func (h *holdUp) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *holdUp) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h *holdUp) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if h.on.CompareAndSwap(true, false) {
			h.entered <- struct{}{}
			<-h.next
		}
		return next(ctx, cmd)
	}
}

func TestALimitOfAFairThatChangesDuringACallEndsWaitsAboveIt(t *testing.T) {
	hook := &holdUp{entered: make(chan struct{}), next: make(chan struct{})}
	f, err := NewFair(startServer(t).client(), ratelimit.TokenBucket(ratelimit.PerDay(1), 80), &FairOptions{Name: "f", Timeout: 10 * time.Second, Hooks: []redis.Hook{hook}})
	require.NoError(t, err)
	require.True(t, f.Allow("a", 70))
	waits := make(chan error, 1)
	go func() { waits <- f.Wait(t.Context(), "a", 60) }()
	require.Eventually(t, func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.waiting == 1 }, 10*time.Second, time.Millisecond)
	hook.on.Store(true)
	<-hook.entered
	require.NoError(t, f.SetLimit(ratelimit.TokenBucket(ratelimit.PerDay(1), 40)))
	hook.next <- struct{}{}
	assert.ErrorIs(t, <-waits, ratelimit.ErrExceedsLimit)
}

func TestFlushGivesBackWhatACallUnderWayBrings(t *testing.T) {
	server, hook := startServer(t), &holdUp{entered: make(chan struct{}), next: make(chan struct{})}
	f, err := NewFair(server.client(), ratelimit.TokenBucket(ratelimit.PerDay(1), 80), &FairOptions{Name: "f", Timeout: 10 * time.Second, Hooks: []redis.Hook{hook}})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	hook.on.Store(true)
	errs := make(chan error, 1)
	go func() { errs <- f.Wait(ctx, "a", 60) }()
	<-hook.entered
	cancel()
	require.ErrorIs(t, <-errs, context.Canceled)
	go func() { errs <- f.Flush(t.Context()) }()
	require.Eventually(t, func() bool { f.mu.Lock(); defer f.mu.Unlock(); return len(f.flushes) == 1 }, 10*time.Second, time.Millisecond)
	hook.next <- struct{}{}
	require.NoError(t, <-errs)
	assert.Zero(t, spentOf(t, server))
}

func TestALineOfAFairIsBounded(t *testing.T) {
	server := startServer(t)
	f, err := NewFair(server.client(), ratelimit.TokenBucket(ratelimit.PerDay(1), 80), &FairOptions{Name: "f", Timeout: 10 * time.Second, MaxWaiting: 3})
	require.NoError(t, err)
	require.True(t, f.Allow("a", 70))
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for i, tenant := range []string{"a", "a", "b"} {
		all.Go(func() { assert.ErrorIs(t, f.Wait(ctx, tenant, 50), context.Canceled) })
		require.Eventually(t, func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.waiting == i+1 }, 10*time.Second, time.Millisecond)
		if i == 1 {
			assert.ErrorIs(t, f.Wait(ctx, "a", 50), ratelimit.ErrLimited, "the last place is for another tenant")
		}
	}
	assert.ErrorIs(t, f.Wait(ctx, "c", 50), ratelimit.ErrLimited)
	r, err := f.Reserve(ctx, "c", 50, time.Minute)
	require.NoError(t, err)
	assert.False(t, r.Allowed, "a reservation that finds no room in line is denied")
	cancel()
	all.Wait()
}

// While Redis is down, this process shares a part of the limit among the tenants.
func TestAFairFailsOverToAPartOfTheLimit(t *testing.T) {
	server := startServer(t)
	limit := ratelimit.TokenBucket(ratelimit.PerSecond(100), 80)
	f, err := NewFair(server.client(), limit, &FairOptions{Name: "f", Timeout: 10 * time.Second})
	require.NoError(t, err)
	// a quarter of the burst, because this is one of four processes
	local, err := fair.New[string](ratelimit.TokenBucket(ratelimit.PerDay(1), 20), nil)
	require.NoError(t, err)
	both, err := failover.New(f, local, nil)
	require.NoError(t, err)
	assert.True(t, both.Allow("a", 5))
	server.kill()
	_, err = f.Take(t.Context(), "b", 60)
	require.ErrorIs(t, err, ratelimit.ErrUnavailable)
	require.ErrorIs(t, f.Wait(t.Context(), "b", 60), ratelimit.ErrUnavailable)
	passed := 0
	for range 30 {
		if both.Allow("b", 1) {
			passed++
		}
	}
	assert.LessOrEqual(t, passed, 20)
	assert.GreaterOrEqual(t, passed, 10)
}

// A state of another type is an error, and no decision.
func TestAFairReportsAStateThatIsNotItsOwn(t *testing.T) {
	server := startServer(t)
	f := newTestFair(t, server, ratelimit.TokenBucket(ratelimit.PerSecond(100), 80))
	_, err := server.Do("SET", "ratelimit:{f}!fair", "text")
	require.NoError(t, err)
	_, err = f.Take(t.Context(), "a", 1)
	require.Error(t, err)
	assert.True(t, strings.Contains(err.Error(), "WRONGTYPE") || errors.Is(err, ratelimit.ErrUnavailable), "%v", err)
	_, err = server.Do("DEL", "ratelimit:{f}!fair")
	require.NoError(t, err)
	assert.Eventually(t, func() bool { return f.Allow("a", 1) }, 10*time.Second, time.Millisecond, "it decides again")
}

// A thousand goroutines of three limiters use no more than the burst, and the reported events add up.
func TestAThousandGoroutinesOfAFleetUseNoMoreThanTheBurst(t *testing.T) {
	server := startServer(t)
	limit := ratelimit.TokenBucket(ratelimit.PerDay(1), 800)
	var mu sync.Mutex
	spent := 0
	var fleet [3]*Fair
	for i := range fleet {
		var err error
		fleet[i], err = NewFair(server.client(), limit, &FairOptions{Name: "f", Timeout: 30 * time.Second, OnDecision: func(e ratelimit.Event[string]) {
			mu.Lock()
			defer mu.Unlock()
			if e.Spent {
				spent += e.Cost
			}
		}})
		require.NoError(t, err)
	}
	var all sync.WaitGroup
	for n := range 1000 {
		all.Go(func() {
			for range 3 {
				fleet[n%3].Allow(fmt.Sprint(n%7), 1+n%3)
			}
		})
	}
	all.Wait()
	assert.LessOrEqual(t, spent, 800)
	assert.GreaterOrEqual(t, spent, 400)
}
