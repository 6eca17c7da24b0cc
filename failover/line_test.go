package failover_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/ban"
	"github.com/weir-go/ratelimit/chain"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/lease"
)

// wrappers are the limiters that decide by another one. Their waiting calls follow each change of it.
var wrappers = map[string]func(l *ratelimit.Keyed[string]) ratelimit.Reserver[string]{
	"itself": func(l *ratelimit.Keyed[string]) ratelimit.Reserver[string] { return l },
	"map": func(l *ratelimit.Keyed[string]) ratelimit.Reserver[string] {
		return ratelimit.Map[string, string](l, func(k string) (string, error) { return k, nil })
	},
	"stack": func(l *ratelimit.Keyed[string]) ratelimit.Reserver[string] {
		return ratelimit.Must(ratelimit.All(ratelimit.By(l, func(k string) (string, error) { return k, nil })))
	},
	"chain": func(l *ratelimit.Keyed[string]) ratelimit.Reserver[string] {
		return ratelimit.Must(chain.New[string](l))
	},
	"chain of two": func(l *ratelimit.Keyed[string]) ratelimit.Reserver[string] {
		wide := ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerSecond(10_000), 10_000), nil))
		return ratelimit.Must(chain.New[string](wide, l))
	},
	"ban": func(l *ratelimit.Keyed[string]) ratelimit.Reserver[string] {
		many := ratelimit.FixedWindow(ratelimit.PerHour(1_000_000))
		return ratelimit.Must(ban.New[string](l, ratelimit.Must(ratelimit.New[string](many, nil)), ratelimit.Must(ratelimit.New[string](many, nil))))
	},
	"failover": func(l *ratelimit.Keyed[string]) ratelimit.Reserver[string] {
		return ratelimit.Must(failover.New[string](l, ratelimit.Must(ratelimit.New[string](ratelimit.Blocked(), nil)), nil))
	},
	"lease": func(l *ratelimit.Keyed[string]) ratelimit.Reserver[string] {
		return ratelimit.Must(lease.New(l, &lease.Options[string]{MaxBatch: 10}))
	},
}

// queue is the calls that wait behind a wrapper.
type queue struct {
	l      *ratelimit.Keyed[string]
	behind ratelimit.Reserver[string]
	wg     sync.WaitGroup
	mu     sync.Mutex // guards the fields below
	served int
	errs   []error
}

// comes adds calls of cost 1.
func (c *queue) comes(ctx context.Context, n int) {
	for range n {
		c.wg.Go(func() {
			err := ratelimit.Wait(ctx, c.behind, "k", 1)
			c.mu.Lock()
			defer c.mu.Unlock()
			if err != nil {
				c.errs = append(c.errs, err)
			} else {
				c.served++
			}
		})
		synctest.Wait()
	}
}

// requireServed checks how many have been served by now.
func (c *queue) requireServed(t *testing.T, least, most int) {
	t.Helper()
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	require.GreaterOrEqual(t, c.served, least)
	require.LessOrEqual(t, c.served, most)
}

// behindWrappers runs a test with calls that wait behind each wrapper, but for some. All that the key may spend is spent.
func behindWrappers(t *testing.T, limit ratelimit.Limit, but string, test func(t *testing.T, c *queue)) {
	for name, wrap := range wrappers {
		if name == but {
			continue
		}
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &queue{l: ratelimit.Must(ratelimit.New[string](limit, nil))}
				c.behind = wrap(c.l)
				require.True(t, c.l.Allow("k", limit.Capacity()))
				test(t, c)
				c.wg.Wait()
			})
		})
	}
}

func TestWaitsBehindWrappersFollowARaise(t *testing.T) {
	behindWrappers(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 1), "", func(t *testing.T, c *queue) {
		c.comes(t.Context(), 100)
		require.NoError(t, c.l.SetLimit(ratelimit.TokenBucket(ratelimit.PerSecond(100), 1)))
		time.Sleep(5 * time.Second)
		c.requireServed(t, 100, 100)
	})
}

func TestWaitsBehindWrappersFollowABrake(t *testing.T) {
	behindWrappers(t, ratelimit.TokenBucket(ratelimit.PerSecond(100), 1), "", func(t *testing.T, c *queue) {
		c.comes(t.Context(), 120)
		require.NoError(t, c.l.SetLimit(ratelimit.TokenBucket(ratelimit.PerSecond(10), 1)))
		time.Sleep(5 * time.Second)
		c.requireServed(t, 48, 52)
	})
}

// A chain of several limiters sleeps until it tries again.
func TestWaitsBehindWrappersEndWithABlockedKey(t *testing.T) {
	behindWrappers(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 1), "chain of two", func(t *testing.T, c *queue) {
		c.comes(t.Context(), 20)
		begin := time.Now()
		require.NoError(t, c.l.SetLimit(ratelimit.Blocked()))
		c.wg.Wait()
		require.Zero(t, time.Since(begin))
		require.Len(t, c.errs, 20)
		for _, err := range c.errs {
			require.ErrorIs(t, err, ratelimit.ErrBlocked)
		}
	})
}

func TestWaitsBehindWrappersFollowAGrantASettlementAndALeaver(t *testing.T) {
	behindWrappers(t, ratelimit.TokenBucket(ratelimit.PerMinute(10), 10), "chain of two", func(t *testing.T, c *queue) {
		require.NoError(t, c.l.Reset(t.Context(), "k"))
		r, err := c.l.Reserve(t.Context(), "k", 10, 0)
		require.NoError(t, err)
		gone, leave := context.WithCancel(t.Context())
		c.comes(gone, 1)
		c.comes(t.Context(), 12)
		leave()
		require.NoError(t, r.Settle(6))
		c.requireServed(t, 4, 4)
		require.NoError(t, c.l.Adjust(t.Context(), "k", -3))
		c.requireServed(t, 7, 7)
		time.Sleep(6 * time.Second)
		c.requireServed(t, 8, 8)
	})
}
