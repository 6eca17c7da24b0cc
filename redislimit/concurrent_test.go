package redislimit

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/model"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// holding returns a limiter on a test's clock.
func holding(t *testing.T, client redis.UniversalClient, name string, limit ratelimit.Limit, clock ratelimit.Clock) *Limiter {
	t.Helper()
	l, err := New(client, limit, &Options{Name: name, Timeout: 10 * time.Second})
	require.NoError(t, err)
	return onClock(l, clock)
}

func mustReserve[K any](t *testing.T, l ratelimit.Reserver[K], key K, n int) *ratelimit.Reservation {
	t.Helper()
	r, err := l.Reserve(t.Context(), key, n, 0)
	require.NoError(t, err)
	return r
}

func TestConcurrentMatchesACounterOverRandomHistories(t *testing.T) {
	testsize.Sequential(t)
	verdicts(t)
	client := startServer(t).client()
	for seed := range model.Rounds(100) {
		clock := new(ratelimittest.Clock)
		model.InUse(t, clock, seed, 300, time.Microsecond, func(limit ratelimit.Limit) (all []model.Holder) {
			for range 3 { // the processes
				all = append(all, holding(t, client, fmt.Sprint("counter", seed), limit, clock))
			}
			return all
		})
	}
}

func TestConcurrentUnitsLapseByTheServersTime(t *testing.T) {
	client, clock := startServer(t).client(), new(ratelimittest.Clock)
	l := holding(t, client, "lapse", ratelimit.Concurrent(2, time.Minute).Named("streams"), clock)
	one, two := mustReserve(t, l, "k", 1), mustReserve(t, l, "k", 1)
	assert.False(t, mustReserve(t, l, "k", 1).Allowed)
	clock.Advance(40 * time.Second)
	require.NoError(t, one.Extend(t.Context()))
	clock.Advance(20 * time.Second)
	require.ErrorIs(t, two.Extend(t.Context()), ratelimit.ErrLost)
	require.ErrorContains(t, two.Extend(t.Context()), "after 1m0s, under concurrent 2 hold 1m")
	three := mustReserve(t, l, "k", 1)
	require.True(t, three.Allowed)
	require.NoError(t, two.Settle(1))
	require.False(t, mustReserve(t, l, "k", 1).Allowed, "a settlement gives nothing of others back")
	clock.Advance(39 * time.Second)
	require.NoError(t, one.Extend(t.Context()))
	ended, end := contextWithCancel(t)
	end()
	require.ErrorIs(t, one.Extend(ended), context.Canceled)
	require.NoError(t, one.Settle(5000), "any figure")
	require.ErrorIs(t, one.Extend(t.Context()), ratelimit.ErrLost)
	require.True(t, mustReserve(t, l, "k", 1).Allowed)
	require.NoError(t, l.Reset(t.Context(), "k"))
	require.ErrorIs(t, three.Extend(t.Context()), ratelimit.ErrLost)
}

// heeding returns a client with ContextTimeoutEnabled. A limiter
// uses such a client as it is, so the client's hooks see the calls.
func heeding(t *testing.T) *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: startServer(t).addr, ContextTimeoutEnabled: true})
	t.Cleanup(func() { client.Close() })
	return client
}

// deaf is a hook that drops answers.
type deaf struct {
	redis.Hook
	on atomic.Bool
}

func (h *deaf) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *deaf) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h *deaf) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if h.on.Load() {
			return errors.New("the answer is lost")
		}
		return err
	}
}

// After an extension without an answer, the caller extends and settles as before.
func TestConcurrentUnitsEndAlsoAfterAnExtensionWithoutAnAnswer(t *testing.T) {
	client, clock := heeding(t), new(ratelimittest.Clock)
	unheard := new(deaf)
	client.AddHook(unheard)
	l := holding(t, client, "unheard", ratelimit.Concurrent(3, time.Minute), clock)
	one, two := mustReserve(t, l, "k", 1), mustReserve(t, l, "k", 2)
	clock.Advance(30 * time.Second)
	require.NoError(t, mustReserve(t, l, "other", 1).Extend(t.Context()), "the server knows the script")
	unheard.on.Store(true)
	require.ErrorIs(t, one.Extend(t.Context()), ratelimit.ErrUnavailable)
	unheard.on.Store(false)
	clock.Advance(31 * time.Second)
	require.ErrorIs(t, two.Extend(t.Context()), ratelimit.ErrLost)
	require.NoError(t, one.Extend(t.Context()), "it has arrived")
	require.NoError(t, one.Cancel())
	require.True(t, mustReserve(t, l, "k", 3).Allowed)
}

// If there are many reservations, the script reads a sample.
func TestTheEstimateOfManyReservationsIsTheirMeanAge(t *testing.T) {
	client, clock := startServer(t).client(), new(ratelimittest.Clock)
	l := holding(t, client, "many", ratelimit.Concurrent(300, time.Hour), clock)
	for range 300 {
		clock.Advance(time.Second)
		require.True(t, mustReserve(t, l, "k", 1).Allowed)
	}
	d := mustReserve(t, l, "k", 10)
	require.False(t, d.Allowed)
	assert.InEpsilon(t, 10*149.5/300, d.RetryAfter.Seconds(), 0.05)
}

func TestConcurrentLoweredOnRedisEndsNoCall(t *testing.T) {
	client, clock := startServer(t).client(), new(ratelimittest.Clock)
	l := holding(t, client, "lowered", ratelimit.Concurrent(8, time.Minute), clock)
	var all []*ratelimit.Reservation
	for range 6 {
		clock.Advance(time.Second)
		all = append(all, mustReserve(t, l, "k", 1))
	}
	require.NoError(t, l.SetLimit(ratelimit.Concurrent(4, time.Minute)))
	for i, r := range all[:3] {
		d := mustReserve(t, l, "k", 1)
		require.False(t, d.Allowed)
		assert.Equal(t, max(0, 2-i), d.Debt)
		require.NoError(t, r.Settle(1))
	}
	require.True(t, mustReserve(t, l, "k", 1).Allowed)
	require.False(t, mustReserve(t, l, "k", 1).Allowed)
	require.NoError(t, l.SetLimit(ratelimit.Blocked()))
	_, err := l.Reserve(t.Context(), "k", 1, 0)
	require.ErrorIs(t, err, ratelimit.ErrBlocked)
	require.NoError(t, l.SetLimit(ratelimit.Unlimited()))
	require.True(t, mustReserve(t, l, "k", 1000).Allowed)
	require.NoError(t, all[3].Extend(t.Context()))
	require.NoError(t, l.SetLimit(ratelimit.Concurrent(4, 5*time.Second)))
	clock.Advance(6 * time.Second)
	require.True(t, mustReserve(t, l, "k", 4).Allowed, "a shorter hold holds for units in use")
	require.ErrorIs(t, all[4].Extend(t.Context()), ratelimit.ErrLost)
	require.NoError(t, l.Adjust(t.Context(), "k", -3))
	require.True(t, mustReserve(t, l, "k", 3).Allowed)
	require.NoError(t, l.Adjust(t.Context(), "k", 2))
	d, err := l.Peek(t.Context(), "k", 1)
	require.NoError(t, err)
	assert.Equal(t, 2, d.Debt)
}

func TestConcurrentOnRedisRefusesCallsWithoutAnEnd(t *testing.T) {
	client, clock := startServer(t).client(), new(ratelimittest.Clock)
	limit := ratelimit.Concurrent(8, time.Minute).Named("streams")
	l := holding(t, client, "endless", limit, clock)
	stack, err := ratelimit.All(ratelimit.By(l, identity))
	require.NoError(t, err)
	assert.True(t, l.Describe().Holds)
	assert.True(t, stack.Describe().Holds)
	for _, of := range []interface {
		ratelimit.Reserver[string]
		Wait(context.Context, string, int) error
		Peek(context.Context, string, int) (ratelimit.Decision, error)
	}{l, stack} {
		assert.False(t, of.Allow("k", 1))
		d, err := of.Take(t.Context(), "k", 1)
		require.ErrorContains(t, err, `the limit "streams" is concurrent 8 hold 1m, and this call has no end`)
		assert.False(t, d.Allowed)
		assert.Equal(t, "streams", d.Limit.Name)
		require.ErrorContains(t, of.Wait(t.Context(), "k", 1), "no end")
		assert.True(t, of.Allow("k", 0))
		_, err = of.Take(t.Context(), "k", 9)
		require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
		r := mustReserve(t, of, "k", 0)
		require.True(t, r.Allowed)
		require.NoError(t, r.Extend(t.Context()))
		require.NoError(t, r.Settle(8), "which charges nothing")
		d, err = of.Peek(t.Context(), "k", 8)
		require.NoError(t, err)
		assert.True(t, d.Allowed)
	}
}

func TestNewRefusesConcurrentLimitsThatRedisCannotHold(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	limit, many := ratelimit.Concurrent(8, time.Minute).Named("streams"), ratelimit.Concurrent(2001, time.Minute).Named("many")
	for want, c := range map[string]struct {
		limit ratelimit.Limit
		opts  *Options
	}{
		"": {limit: many, opts: &Options{MaxLog: 3000}},
		"Rate.Units is 2001 for concurrent, want at most 2000 (Options.MaxLog)": {limit: many},
		"whole microseconds": {limit: ratelimit.Concurrent(2, time.Nanosecond).Named("short")},
		"cannot be leased":   {limit: limit, opts: &Options{MaxBatch: 10}},
	} {
		_, err := New(client, c.limit, c.opts)
		assert.Equal(t, want != "", errors.Is(err, ratelimit.ErrInvalidLimit), want)
		assert.Contains(t, fmt.Sprint(err), want)
	}
	later, err := New(client, ratelimit.FixedWindow(ratelimit.PerMinute(5)).Named("later"), &Options{MaxBatch: 10, LimitFor: func(string) ratelimit.Limit { return limit }})
	require.NoError(t, err)
	_, err = later.Reserve(t.Context(), "k", 1, 0)
	require.ErrorContains(t, err, "cannot be leased")
}

// Three processes play an LLM gateway's hour: see model.GatewayHour.
func TestAnHourOfStreamsUsesTheCapsAndNoMore(t *testing.T) {
	testsize.Sequential(t)
	client, clock := startServer(t).client(), new(ratelimittest.Clock)
	var processes [3]ratelimit.Reserver[model.Stream]
	for i := range processes {
		stack, err := ratelimit.All(model.GatewayLayers(func(limit ratelimit.Limit) ratelimit.Reserver[string] {
			return holding(t, client, "gateway "+limit.Name, limit, clock)
		})...)
		require.NoError(t, err)
		processes[i] = stack
	}
	share := model.GatewayHour(t, clock, testsize.Of(time.Minute, time.Hour), processes)
	t.Logf("%.1f %% of the cap", 100*share)
	assert.GreaterOrEqual(t, share, 0.95)
}

func TestConcurrentBesideRatesIsOneDecisionOnRedis(t *testing.T) {
	model.BesideRates(t, func(t *testing.T) model.Store {
		client, clock, calls := heeding(t), new(ratelimittest.Clock), new(counting)
		client.AddHook(calls)
		return model.Store{Clock: clock, Calls: calls.calls.Load, New: func(limit ratelimit.Limit) ratelimit.Reserver[string] {
			return holding(t, client, limit.Name, limit, clock)
		}}
	})
}
