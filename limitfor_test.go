package ratelimit_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// countedLimits is a LimitFor counting its calls.
type countedLimits struct {
	mu    sync.Mutex
	limit ratelimit.Limit
	calls map[string]int
}

func (c *countedLimits) of(key string) ratelimit.Limit {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls == nil {
		c.calls = map[string]int{}
	}
	c.calls[key]++
	return c.limit
}

func (c *countedLimits) set(l ratelimit.Limit) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit = l
}

func (c *countedLimits) count(key string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[key]
}

// Untracked keys have no account to keep their limit in.
func TestLimitForIsCalledOnceForAKeyThatNothingIsCountedOf(t *testing.T) {
	testsize.Sequential(t)
	perHour := ratelimit.FixedWindow(ratelimit.PerHour(5))
	for _, limit := range []ratelimit.Limit{ratelimit.Blocked(), ratelimit.Unlimited(), perHour, perHour.Named("own")} {
		c := &countedLimits{limit: limit}
		l := newWith(t, perHour, ratelimit.Options[string]{Clock: new(testClock), LimitFor: c.of})
		one := ratelimit.Must(ratelimit.All(ratelimit.By(l, func(key string) (string, error) { return key, nil }), ratelimit.By(l, func(key string) (string, error) { return key, nil })))
		calls := []func(key string){
			func(key string) { l.Allow(key, 1) },
			func(key string) { _, _ = l.Take(t.Context(), key, 0) },
			func(key string) { _, _ = l.Take(t.Context(), key, 6) },
			func(key string) { _, _ = l.Peek(t.Context(), key, 1) },
			func(key string) { r, _ := l.Reserve(t.Context(), key, 1, 0); _ = r.Settle(0) },
			func(key string) { _ = l.Adjust(t.Context(), key, 1) },
			func(key string) { _ = one.Allow(key, 1) },
			func(key string) { _, _ = one.Peek(t.Context(), key, 1) },
			func(key string) {
				for range l.All() {
				}
			},
		}
		for i, first := range calls {
			key := fmt.Sprint("k", i)
			for round, change := range []func(){func() {}, func() { l.Refresh(key) }, func() { l.Refresh() }, func() { require.NoError(t, l.SetLimit(perHour.Named(key))) }} {
				change()
				before := c.count(key)
				for range 3 {
					first(key)
					for _, call := range calls {
						call(key)
					}
				}
				assert.Equal(t, 1, c.count(key)-before, "%v, call %d, round %d", limit, i, round)
			}
		}
	}
}

// A request with a limit puts the key under that limit. The next request without one needs the key's own limit again.
func TestLimitForIsCalledOnceBetweenRequestsThatBringALimit(t *testing.T) {
	testsize.Sequential(t)
	c := &countedLimits{limit: ratelimit.FixedWindow(ratelimit.PerHour(10))}
	l := newWith(t, ratelimit.FixedWindow(ratelimit.PerHour(5)), ratelimit.Options[string]{Clock: new(testClock), LimitFor: c.of})
	byKey := func(string) (string, error) { return "k", nil }
	layer := ratelimit.By(l, byKey)
	layer.Limit = func(r string) (limit ratelimit.Limit) {
		if r == "own" {
			limit = ratelimit.FixedWindow(ratelimit.PerHour(11))
		}
		return limit
	}
	one := ratelimit.Must(ratelimit.All(layer))
	for i := range 9 {
		assert.True(t, one.Allow([]string{"own", "none"}[i%2], 1))
	}
	assert.Equal(t, 1, c.count("k"))
	l.Refresh("k")
	assert.True(t, one.Allow("own", 1))
	assert.False(t, one.Allow("none", 1))
	assert.True(t, one.Allow("own", 1))
	assert.False(t, one.Allow("none", 1))
	assert.Equal(t, 2, c.count("k"))
}

func TestConcurrentCallersOfAKeyShareOneCallOfLimitFor(t *testing.T) {
	for _, limit := range []ratelimit.Limit{ratelimit.Blocked(), ratelimit.Unlimited(), ratelimit.TokenBucket(ratelimit.PerHour(1), 100)} {
		synctest.Test(t, func(t *testing.T) {
			var calls atomic.Int64
			l := newWith(t, ratelimit.FixedWindow(ratelimit.PerHour(5)), ratelimit.Options[string]{LimitFor: func(string) ratelimit.Limit {
				calls.Add(1)
				time.Sleep(time.Second)
				return limit
			}})
			one := ratelimit.Must(ratelimit.All(ratelimit.By(l, func(key string) (string, error) { return key, nil })))
			burst := func() (allowed int64) {
				var n atomic.Int64
				var wg sync.WaitGroup
				for i := range 200 {
					wg.Go(func() {
						if i%2 == 0 && l.Allow("k", 1) || i%2 == 1 && one.Allow("k", 1) {
							n.Add(1)
						}
					})
				}
				wg.Wait()
				return n.Load()
			}
			began := time.Now()
			assert.Equal(t, int64(min(200, limit.Capacity())), burst())
			assert.Equal(t, int64(1), calls.Load())
			l.Refresh("k")
			burst()
			assert.Equal(t, int64(2), calls.Load())
			l.Refresh()
			burst()
			assert.Equal(t, int64(3), calls.Load())
			assert.Equal(t, 3*time.Second, time.Since(began))
		})
	}
}

// If Refresh runs during a call to LimitFor, the call may have read the old limit.
func TestACallOfLimitForThatBeganBeforeARefreshIsNotShared(t *testing.T) {
	for _, all := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c := &countedLimits{limit: ratelimit.Unlimited()}
			l := newWith(t, ratelimit.FixedWindow(ratelimit.PerHour(5)), ratelimit.Options[string]{LimitFor: func(key string) ratelimit.Limit {
				limit := c.of(key)
				time.Sleep(time.Second)
				return limit
			}})
			go l.Allow("k", 1)
			synctest.Wait()
			c.set(ratelimit.Blocked())
			if all {
				l.Refresh()
			} else {
				l.Refresh("k")
			}
			assert.False(t, l.Allow("k", 1), "all: %v", all)
			time.Sleep(time.Hour)
			assert.False(t, l.Allow("k", 1), "all: %v", all)
			assert.Equal(t, 2, c.count("k"))
		})
	}
}

func TestAPanicInLimitForLeavesNoCallerWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		l := newWith(t, ratelimit.FixedWindow(ratelimit.PerHour(50)), ratelimit.Options[string]{LimitFor: func(string) ratelimit.Limit {
			time.Sleep(time.Second)
			if calls.Add(1) <= 2 {
				panic("the database is gone")
			}
			return ratelimit.Limit{}
		}})
		var panics, allowed atomic.Int64
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				defer func() {
					if recover() != nil {
						panics.Add(1)
					}
				}()
				if l.Allow("k", 1) {
					allowed.Add(1)
				}
			})
		}
		wg.Wait()
		assert.Equal(t, int64(2), panics.Load())
		assert.Equal(t, int64(18), allowed.Load())
		assert.Equal(t, int64(3), calls.Load())
	})
}

// Calls waiting for the same invalid limit share the error, but no later call does.
func TestAnInvalidLimitOfLimitForIsSharedAndNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		l := newWith(t, ratelimit.FixedWindow(ratelimit.PerHour(50)), ratelimit.Options[string]{LimitFor: func(string) (limit ratelimit.Limit) {
			time.Sleep(time.Second)
			if calls.Add(1) == 1 {
				limit = ratelimit.TokenBucket(ratelimit.PerHour(1), -1)
			}
			return limit
		}})
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				_, err := l.Take(context.Background(), "k", 1)
				assert.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
			})
		}
		wg.Wait()
		assert.True(t, l.Allow("k", 1))
		assert.Equal(t, int64(2), calls.Load())
	})
}

// MaxKeys also bounds how many limits are kept outside the table.
func TestAFloodOfBlockedKeysKeepsNoMoreLimitsThanMaxKeys(t *testing.T) {
	testsize.Sequential(t)
	c := &countedLimits{limit: ratelimit.Blocked()}
	l := newWith(t, ratelimit.FixedWindow(ratelimit.PerHour(5)), ratelimit.Options[string]{MaxKeys: 100, LimitFor: c.of})
	for i := range 10_000 {
		l.Allow(fmt.Sprint(i), 1)
	}
	assert.LessOrEqual(t, ratelimit.LimitsKept(l), 100)
	for range 100 {
		l.Allow("k", 1)
	}
	assert.Equal(t, 1, c.count("k"))
}
