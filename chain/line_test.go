package chain_test

import (
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/ban"
	"github.com/weir-go/ratelimit/chain"
)

// counted counts a limiter's calls.
type counted struct {
	*ratelimit.Keyed[string]
	reserved, peeked atomic.Int64
}

func (c *counted) Reserve(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	c.reserved.Add(1)
	return c.Keyed.Reserve(ctx, key, cost, maxDelay)
}

func (c *counted) Peek(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	c.peeked.Add(1)
	return c.Keyed.Peek(ctx, key, cost)
}

func keyed(limit ratelimit.Limit) *ratelimit.Keyed[string] {
	return ratelimit.Must(ratelimit.New[string](limit, nil))
}

// waits lets calls with these costs wait one after the other. end waits for all, and returns the order of service.
func waits(ctx context.Context, c *chain.Limiter[string], costs ...int) (end func() (order []int)) {
	var mu sync.Mutex
	var all sync.WaitGroup
	var order []int
	for i, cost := range costs {
		all.Go(func() {
			if c.Wait(ctx, "k", cost) == nil {
				mu.Lock()
				defer mu.Unlock()
				order = append(order, i)
			}
		})
		synctest.Wait()
	}
	return func() []int {
		all.Wait()
		return order
	}
}

// Two hundred calls in line use a slow store's whole rate, in their order. There is one call to the
// store for each of them, not one for each waiter and turn. A large cost is served in its turn.
func TestWaitsOfAChainAreServedInTheirOrderWithFewCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		local, remote := keyed(ratelimit.TokenBucket(ratelimit.PerSecond(100), 100)), &counted{Keyed: keyed(ratelimit.TokenBucket(ratelimit.PerSecond(5), 5))}
		c := chainOf(t, local, remote)
		require.True(t, c.Allow("k", 5))
		costs := slices.Repeat([]int{1}, 200)
		costs[100] = 5
		remote.reserved.Store(0)
		begin := time.Now()
		order := waits(t.Context(), c, costs...)()
		assert.True(t, slices.IsSorted(order), "%v", order)
		assert.Len(t, order, 200)
		assert.InDelta(t, 204./5, time.Since(begin).Seconds(), .01)
		assert.LessOrEqual(t, remote.reserved.Load(), int64(210))
		assert.LessOrEqual(t, remote.peeked.Load(), int64(210))
	})
}

// Without a change, the line waits for an hour. When this chain gives units back, the line goes on at once.
func TestWaitsOfAChainFollowItsOwnChangesAtOnce(t *testing.T) {
	for name, change := range map[string]func(ctx context.Context, c *chain.Limiter[string], open *ratelimit.Reservation) error{
		"settlement": func(_ context.Context, _ *chain.Limiter[string], open *ratelimit.Reservation) error {
			return open.Settle(4)
		},
		"grant": func(ctx context.Context, c *chain.Limiter[string], _ *ratelimit.Reservation) error {
			return c.Adjust(ctx, "k", -6)
		},
		"reset": func(ctx context.Context, c *chain.Limiter[string], _ *ratelimit.Reservation) error {
			return c.Reset(ctx, "k")
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := chainOf(t, keyed(ratelimit.TokenBucket(ratelimit.PerHour(1), 10)), keyed(ratelimit.TokenBucket(ratelimit.PerHour(1), 10)))
				open, err := c.Reserve(t.Context(), "k", 10, 0)
				require.NoError(t, err)
				end := waits(t.Context(), c, 1, 1, 4)
				time.Sleep(10*time.Minute + time.Second/2)
				begin := time.Now()
				require.NoError(t, change(t.Context(), c, open))
				assert.Len(t, end(), 3)
				assert.Zero(t, time.Since(begin))
			})
		})
	}
}

// A ban of the first limiter ends the waits whose deadlines come
// before its end, wherever they stand in line. Peeks are not strikes.
func TestABanEndsAllWaitsOfAChainThatAreTooShortForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		strikes, bans := keyed(ratelimit.FixedWindow(ratelimit.PerHour(3))), keyed(ratelimit.FixedWindow(ratelimit.Per(1, 2*time.Hour)))
		banned := ratelimit.Must(ban.New[string](keyed(ratelimit.TokenBucket(ratelimit.PerHour(10), 10)), strikes, bans))
		behind := keyed(ratelimit.TokenBucket(ratelimit.PerHour(10), 1))
		c := chainOf(t, banned, behind)
		require.True(t, behind.Allow("k", 1))
		long, cancel := context.WithCancel(t.Context())
		short, end := context.WithTimeout(t.Context(), time.Hour)
		defer end()
		done := make(chan error, 4)
		for i := range cap(done) {
			ctx := short
			if i == 0 {
				ctx = long
			}
			go func() { done <- c.Wait(ctx, "k", 1) }()
			synctest.Wait()
		}
		time.Sleep(2*time.Minute + time.Second/2)
		require.Empty(t, done)
		d, err := strikes.Peek(t.Context(), "k", 1)
		require.NoError(t, err)
		assert.Equal(t, 3, d.Remaining)
		require.True(t, bans.Allow("k", 1))
		begin := time.Now()
		for range cap(done) - 1 {
			require.ErrorIs(t, <-done, context.DeadlineExceeded)
		}
		assert.LessOrEqual(t, time.Since(begin), time.Second)
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
	})
}

// Requests that differ, or cannot be found again, have their own lines.
func TestRequestsThatDifferWaitInLinesOfTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		same := func(any) (string, error) { return "k", nil }
		limited := ratelimit.Map[any, string](keyed(ratelimit.TokenBucket(ratelimit.PerSecond(1), 1)), same)
		c := ratelimit.Must(chain.New[any](limited, ratelimit.Map[any, string](keyed(ratelimit.TokenBucket(ratelimit.PerSecond(100), 100)), same)))
		requests := []any{"ann", math.NaN(), []int{1}, new(int), nil, struct{ any }{[]int{1}}}
		begin := time.Now()
		var all sync.WaitGroup
		for _, r := range requests {
			all.Go(func() { assert.NoError(t, c.Wait(t.Context(), r, 1)) })
		}
		all.Wait()
		assert.Equal(t, 5*time.Second, time.Since(begin))
		require.NoError(t, c.Adjust(t.Context(), []int{1}, -1))
	})
}

// A call with a cost of 0 does not wait for the calls before it.
func TestACostOfZeroDoesNotWaitInAChain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := chainOf(t, keyed(ratelimit.TokenBucket(ratelimit.PerHour(1), 1)), keyed(ratelimit.TokenBucket(ratelimit.PerHour(1), 1)))
		require.True(t, c.Allow("k", 1))
		ctx, cancel := context.WithCancel(t.Context())
		end := waits(ctx, c, 1)
		begin := time.Now()
		require.NoError(t, c.Wait(t.Context(), "k", 0))
		assert.Zero(t, time.Since(begin))
		cancel()
		assert.Empty(t, end())
	})
}
