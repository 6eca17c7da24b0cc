package inflight_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

func tracked(l *inflight.Limiter[string]) (keys []string) {
	for key := range l.Snapshot() {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

func TestFullTableForgetsTheLongestIdle(t *testing.T) {
	l := newLimiter(t, 2, &options{MaxKeys: 3})
	for _, key := range []string{"a", "b", "c", "a", "c"} {
		take(t, l, key, 1).Release()
	}
	take(t, l, "d", 1).Release()
	assert.Equal(t, []string{"a", "c", "d"}, tracked(l))
	assert.Equal(t, 3, l.Totals().Keys)
	take(t, l, "e", 1).Release()
	assert.Equal(t, []string{"c", "d", "e"}, tracked(l))
	l.Stats("c")
	refusedTwice(l, "c")
	take(t, l, "f", 1).Release()
	assert.Equal(t, []string{"d", "e", "f"}, tracked(l), "to be looked at, or refused, is not to be in flight")
}

// refusedTwice requests more units than can ever fit.
func refusedTwice(l *inflight.Limiter[string], key string) {
	for range 2 {
		_, _ = l.TryAcquire(key, 1000)
	}
}

func TestBusyKeysAreNotForgotten(t *testing.T) {
	l := newLimiter(t, 2, &options{MaxKeys: 2})
	a, b := take(t, l, "a", 1), take(t, l, "b", 1)
	for range 3 {
		_, err := l.TryAcquire("c", 1)
		assert.ErrorIs(t, err, ratelimit.ErrTableFull)
		assert.ErrorContains(t, err, "all 2 keys")
	}
	take(t, l, "a", 1).Release() // keys in the table go on
	b.Release()
	c := take(t, l, "c", 1)
	assert.Equal(t, []string{"a", "c"}, tracked(l))
	a.Release()
	c.Release()
	a = take(t, l, "a", 1)
	take(t, l, "d", 1).Release()
	assert.Equal(t, []string{"a", "d"}, tracked(l))
	a.Release()
}

func TestKeyWithAWaiterIsNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, 1, &options{MaxKeys: 2, Total: 1, MaxQueue: 1})
		q := &line{l: l}
		a := take(t, l, "a", 1)
		b := q.send("b", "b", 1) // b has nothing in flight, and waits for Total
		_, err := l.TryAcquire("c", 1)
		assert.ErrorIs(t, err, ratelimit.ErrTableFull)
		b.giveUp()
		_, err = l.TryAcquire("c", 1)
		assert.ErrorIs(t, err, ratelimit.ErrLimited)
		assert.Equal(t, []string{"a", "c"}, tracked(l))
		a.Release()
	})
}

func TestReleaseAfterTheKeyWasForgotten(t *testing.T) {
	l := newLimiter(t, 1, &options{MaxKeys: 1, Total: 1})
	a := take(t, l, "a", 1)
	a.Release()
	b := take(t, l, "b", 1)
	a.Release()
	a.Done(inflight.Dropped)
	refused(t, l, "b", 1)
	b.Release()
	take(t, l, "a", 1)
	a.Release()
	refused(t, l, "a", 1)
}

// The model keeps the keys in the order in which they became idle.
func TestTableForgetsAsItsModelDoes(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(testsize.Seed(seed), 7))
		most := 1 + rng.IntN(5)
		l := newLimiter(t, 3, &options{MaxKeys: most})
		held := map[string][]inflight.Permit{}
		var idle []string
		for range 200 {
			key := fmt.Sprint(rng.IntN(8))
			if ps := held[key]; len(ps) > 0 && rng.IntN(2) == 0 {
				ps[0].Release()
				if held[key] = ps[1:]; len(ps) == 1 {
					delete(held, key)
					idle = append(idle, key)
				}
				continue
			}
			known := len(held[key]) > 0 || slices.Contains(idle, key)
			p, err := l.TryAcquire(key, 1)
			switch {
			case !known && len(held) == most:
				require.ErrorIs(t, err, ratelimit.ErrTableFull, "seed %d", seed)
				continue
			case !known && len(held)+len(idle) == most:
				idle = idle[1:]
			}
			if len(held[key]) == 3 {
				require.ErrorIs(t, err, ratelimit.ErrLimited, "seed %d", seed)
				continue
			}
			require.NoError(t, err, "seed %d", seed)
			held[key] = append(held[key], p)
			idle = slices.DeleteFunc(idle, func(k string) bool { return k == key })
			want := slices.Clone(idle)
			for k := range held {
				want = append(want, k)
			}
			slices.Sort(want)
			require.Equal(t, want, tracked(l), "seed %d", seed)
		}
	}
}

func TestLimitForGivesEachKeyItsOwn(t *testing.T) {
	limits := map[string]int{"a": 3}
	requested := 0
	l := newLimiter(t, 1, &options{LimitFor: func(key string) int { requested++; return limits[key] }})
	take(t, l, "a", 3).Release()
	take(t, l, "a", 3).Release()
	assert.Equal(t, 1, requested, "once for each key")
	take(t, l, "b", 1).Release()
	require.NoError(t, l.SetLimit(2))
	take(t, l, "b", 2).Release()
	assert.Equal(t, 3, stats(t, l, "a").Limit, "SetLimit is for keys without a limit of their own")
	limits["b"] = 7
	assert.Equal(t, 2, stats(t, l, "b").Limit)
	l.Refresh("a")
	assert.Equal(t, 2, stats(t, l, "b").Limit)
	l.Refresh("b")
	assert.Equal(t, 7, stats(t, l, "b").Limit)
	clear(limits)
	l.Refresh()
	assert.Equal(t, 2, stats(t, l, "a").Limit)
	assert.Equal(t, 2, stats(t, l, "b").Limit)
}

func TestUserCodeMayCallTheLimiter(t *testing.T) {
	var l *inflight.Limiter[string]
	l = newLimiter(t, 2, &options{
		Total:    5,
		LimitFor: func(key string) int { l.Stats("x"); l.Refresh("x"); return len(key) },
		Weight:   func(string) int { l.Totals(); l.Snapshot(); return -5 },
	})
	take(t, l, "abc", 3).Release()
	l.Refresh()
	assert.Equal(t, 1, stats(t, l, "abc").Weight, "a weight below 1 counts as 1")
}

func TestRefreshReachesAKeyThatIsBeingInserted(t *testing.T) {
	var l *inflight.Limiter[string]
	var limit, requested atomic.Int64
	limit.Store(1)
	l = newLimiter(t, 9, &options{LimitFor: func(string) int {
		n := int(limit.Load())
		if requested.Add(1) == 1 {
			limit.Store(5)
			l.Refresh() // the key is not in the table yet
		}
		return n
	}})
	take(t, l, "a", 5)
	assert.EqualValues(t, 2, requested.Load())
}

// All methods are called concurrently. The units in flight never exceed a limit, and none is left at the end.
func TestInvariantsUnderLoad(t *testing.T) {
	for _, total := range []int{0, 5} {
		t.Run(fmt.Sprint("total ", total), func(t *testing.T) {
			const limit, most = 3, 4
			var now [8]atomic.Int64
			var all atomic.Int64
			l := newLimiter(t, limit, &options{Total: total, MaxQueue: 3, MaxKeys: most})
			work := func(rng *rand.Rand) {
				i, n := rng.IntN(len(now)), 1+rng.IntN(limit)
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				get := func(key string, n int) (inflight.Permit, error) { return l.Acquire(ctx, key, n) }
				switch rng.IntN(4) {
				case 0:
					get = l.TryAcquire
				case 1:
					go cancel()
				}
				p, err := get(fmt.Sprint(i), n)
				if err != nil {
					return
				}
				sum, whole := now[i].Add(int64(n)), all.Add(int64(n))
				assert.LessOrEqual(t, sum, int64(limit))
				assert.True(t, total == 0 || whole <= int64(total))
				assert.LessOrEqual(t, l.Totals().Keys, most)
				now[i].Add(int64(-n))
				all.Add(int64(-n))
				outcome := inflight.Outcome(rng.IntN(3))
				inParallel(1+rng.IntN(2), func(int) { p.Done(outcome) })
			}
			inParallel(16, func(i int) {
				rng := rand.New(rand.NewPCG(uint64(i), 5))
				for range 500 {
					work(rng)
				}
			})
			for key, s := range l.Snapshot() {
				assert.Zero(t, s.InFlight+s.Queued, key)
			}
		})
	}
}

// Limits rise and fall at the same time. No wake-up is lost: every call is served.
func TestNoWakeUpIsLostWhileLimitsChange(t *testing.T) {
	for _, total := range []int{0, 4} {
		l := newLimiter(t, 4, &options{Total: total, MaxQueue: 1000})
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					_ = l.SetLimit(2 + i%3)
				}
			}
		}()
		inParallel(32, func(i int) {
			for j := range 200 {
				p, err := l.Acquire(context.Background(), fmt.Sprint(i%3), 1+(i+j)%2)
				require.NoError(t, err)
				p.Release()
			}
		})
		close(stop)
		<-stopped
	}
}

// Looking up an absent key finds nothing, and adds nothing to the table.
func TestLookUpsOfMissingKeysInsertNothing(t *testing.T) {
	l := newLimiter(t, 2, &options{MaxKeys: 1})
	absent := func(key string) {
		t.Helper()
		before := l.Totals().Keys
		s, ok := l.Stats(key)
		assert.False(t, ok, "never seen, or forgotten")
		assert.Zero(t, s)
		l.Refresh(key)
		require.NoError(t, l.SetLimit(2))
		_, ok = l.Stats(key)
		assert.False(t, ok, "neither Stats nor Refresh nor SetLimit makes a key")
		assert.NotContains(t, l.Snapshot(), key)
		assert.Equal(t, before, l.Totals().Keys)
	}
	absent("a")
	assert.Empty(t, l.Snapshot())
	take(t, l, "a", 1).Release()
	absent("b")
	take(t, l, "b", 1)
	absent("a")
	_, err := l.TryAcquire("c", 1)
	require.ErrorIs(t, err, ratelimit.ErrTableFull)
	absent("c")
	_, err = l.TryAcquire("d", -1)
	require.Error(t, err)
	absent("d")
}
