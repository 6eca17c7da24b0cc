package ratelimit_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/testsize"
)

var onceADay = ratelimit.TokenBucket(ratelimit.PerDay(1), 1)

func TestExactlyMaxKeysFit(t *testing.T) {
	for _, most := range []int{1, 2, 3, 100, 4095, 4096, 5000} {
		for _, full := range []ratelimit.Overflow{ratelimit.Overflow(0), ratelimit.RefuseNew} {
			t.Run(fmt.Sprintf("MaxKeys=%d/OnFull=%d", most, full), func(t *testing.T) {
				l := newWith(t, onceADay, ratelimit.Options[int]{Clock: new(testClock), MaxKeys: most, OnFull: full})
				for i := range most {
					require.True(t, l.Allow(i, 1))
				}
				assert.Equal(t, ratelimit.Stats{Keys: most}, l.Stats())
				for i := range most {
					require.False(t, l.Allow(i, 1), "every one of them is still known")
				}
			})
		}
	}
}

func TestAFullTableForgetsTheOldestKey(t *testing.T) {
	clock := new(testClock)
	l := newWith(t, onceADay, ratelimit.Options[string]{Clock: clock, MaxKeys: 2})
	require.True(t, l.Allow("a", 1))
	require.True(t, l.Allow("b", 1))
	require.True(t, l.Allow("c", 1))
	assert.Equal(t, ratelimit.Stats{Keys: 2, Evicted: 1}, l.Stats())
	assert.Equal(t, 1, remaining(t, l, "a"), "forgotten, and so forgiven")
	assert.Equal(t, 0, remaining(t, l, "b"))
	assert.Equal(t, 0, remaining(t, l, "c"))
}

func TestUseKeepsAKeyYoung(t *testing.T) {
	clock := new(testClock)
	l := newWith(t, ratelimit.TokenBucket(ratelimit.PerDay(9), 9), ratelimit.Options[string]{Clock: clock, MaxKeys: 2})
	require.True(t, l.Allow("a", 1))
	require.True(t, l.Allow("b", 1))
	clock.advance(3 * s)
	require.True(t, l.Allow("a", 1))
	require.True(t, l.Allow("c", 1))
	assert.Equal(t, 7, remaining(t, l, "a"))
	assert.Equal(t, 9, remaining(t, l, "b"))
}

func TestAFullTableForgetsForNothingFirst(t *testing.T) {
	for _, full := range []ratelimit.Overflow{ratelimit.Overflow(0), ratelimit.RefuseNew} {
		clock := new(testClock)
		l := newWith(t, onceADay, ratelimit.Options[string]{Clock: clock, MaxKeys: 1, OnFull: full})
		require.True(t, l.Allow("a", 1))
		clock.advance(24 * time.Hour)
		require.True(t, l.Allow("b", 1))
		assert.Equal(t, ratelimit.Stats{Keys: 1, Expired: 1}, l.Stats())
	}
}

func TestRefuseNewDeniesNewKeysAndForgetsNone(t *testing.T) {
	l := newWith(t, onceADay, ratelimit.Options[string]{Clock: new(testClock), MaxKeys: 2, OnFull: ratelimit.RefuseNew})
	require.True(t, l.Allow("a", 1))
	require.True(t, l.Allow("b", 1))
	d, err := l.Take(t.Context(), "c", 1)
	require.ErrorIs(t, err, ratelimit.ErrTableFull)
	require.EqualError(t, err, "ratelimit: key table full: 2 keys")
	assert.Equal(t, ratelimit.Decision{Limit: onceADay}, d)
	require.ErrorIs(t, l.Adjust("c", 1), ratelimit.ErrTableFull)
	require.ErrorIs(t, l.Wait(t.Context(), "c", 1), ratelimit.ErrTableFull)
	_, err = l.Peek("c", 1)
	require.NoError(t, err, "a Peek tracks nothing")
	assert.Equal(t, ratelimit.Stats{Keys: 2, Refused: 3}, l.Stats())
	l.Reset("a")
	assert.True(t, l.Allow("c", 1))
	assert.False(t, l.Allow("b", 1))
}

// An attacker who is being denied must not get rid of that by inventing keys.
func TestAFloodOfInventedKeysDoesNotWipeAThrottledOne(t *testing.T) {
	for _, most := range []int{2, 100, 5000} {
		l := newWith(t, onceADay, ratelimit.Options[int]{Clock: new(testClock), MaxKeys: most})
		require.True(t, l.Allow(0, 1))
		require.False(t, l.Allow(0, 1))
		for i := range 20 * most {
			require.True(t, l.Allow(i+1, 1))
		}
		assert.False(t, l.Allow(0, 1))
		assert.Zero(t, l.Stats().EvictedThrottled)
	}
}

func TestAThrottledKeyGoesWhenAllAreThrottled(t *testing.T) {
	l := newWith(t, onceADay, ratelimit.Options[int]{Clock: new(testClock), MaxKeys: 5})
	for i := range 5 {
		require.True(t, l.Allow(i, 1))
		require.False(t, l.Allow(i, 1))
	}
	require.True(t, l.Allow(5, 1))
	assert.Equal(t, ratelimit.Stats{Keys: 5, Evicted: 1, EvictedThrottled: 1}, l.Stats())
	assert.Equal(t, 1, remaining(t, l, 0), "the oldest")
}

// TestAThrottledKeyThatIsRememberedIsNotForgotten: who watches EvictedThrottled and Overflowed sees what is forgotten,
// and nothing else.
func TestAThrottledKeyThatIsRememberedIsNotForgotten(t *testing.T) {
	// With few places, two of these keys would be taken for one in a run of a thousand.
	l := newWith(t, onceADay, ratelimit.Options[int]{Clock: new(testClock), MaxKeys: 5, Remember: 1 << 18})
	for i := range 50 {
		require.True(t, l.Allow(i, 1))
		require.False(t, l.Allow(i, 1))
	}
	assert.Equal(t, ratelimit.Stats{Keys: 5, Evicted: 45}, l.Stats())
	for i := range 50 {
		require.False(t, l.Allow(i, 1), "%d", i)
	}
	s := l.Stats()
	assert.Zero(t, s.EvictedThrottled)
	assert.Zero(t, s.Overflowed)
}

func TestAKeyThatHasRecoveredIsThrottledNoMore(t *testing.T) {
	clock := new(testClock)
	l := newWith(t, ratelimit.TokenBucket(ratelimit.PerDay(1), 2), ratelimit.Options[string]{Clock: clock, MaxKeys: 1})
	require.True(t, l.Allow("a", 2))
	require.False(t, l.Allow("a", 1))
	clock.advance(24 * time.Hour)
	require.True(t, l.Allow("a", 1))
	require.True(t, l.Allow("b", 1))
	assert.Equal(t, ratelimit.Stats{Keys: 1, Evicted: 1}, l.Stats())
}

func TestSweepDropsOnlyWhatIsAsGoodAsNew(t *testing.T) {
	for _, limit := range everyAlgorithm {
		t.Run(limit.Algorithm.String(), func(t *testing.T) {
			l, clock := newLimiter(t, limit)
			require.True(t, l.Allow("k", 3))
			d, err := l.Peek("k", 0)
			require.NoError(t, err)
			clock.set(d.ResetAfter - 1)
			assert.Zero(t, l.Sweep())
			clock.set(d.ResetAfter)
			assert.Equal(t, 1, l.Sweep())
			assert.Equal(t, ratelimit.Stats{Expired: 1}, l.Stats())
		})
	}
}

func TestSweepKeepsIdleKeysForTheirTTL(t *testing.T) {
	clock := new(testClock)
	l := newWith(t, ratelimit.FixedWindow(ratelimit.PerSecond(1)), ratelimit.Options[string]{Clock: clock, IdleTTL: time.Hour})
	require.True(t, l.Allow("k", 1))
	clock.set(time.Hour - 1)
	assert.Zero(t, l.Sweep())
	_, _ = l.Peek("k", 1) // which is no use
	clock.set(time.Hour)
	assert.Equal(t, 1, l.Sweep())
}

func TestSweepReachesEveryShard(t *testing.T) {
	clock := new(testClock)
	l := newWith(t, ratelimit.FixedWindow(ratelimit.PerSecond(1)), ratelimit.Options[int]{Clock: clock})
	for i := range 20_000 {
		require.True(t, l.Allow(i, 1))
	}
	assert.Zero(t, l.Sweep())
	clock.set(s)
	assert.Equal(t, 20_000, l.Sweep())
	assert.Zero(t, l.Len())
}

func TestOldKeysLeaveAsNewOnesCome(t *testing.T) {
	clock := new(testClock)
	l := newWith(t, ratelimit.FixedWindow(ratelimit.PerSecond(1)), ratelimit.Options[int]{Clock: clock, MaxKeys: 1000})
	for i := range 100_000 {
		clock.advance(s)
		require.True(t, l.Allow(i, 1))
		require.LessOrEqual(t, l.Len(), 61, "keys idle for a minute go")
	}
	assert.Zero(t, l.Stats().Evicted)
}

func TestResetForgetsTheKey(t *testing.T) {
	for _, limit := range everyAlgorithm {
		l, _ := newLimiter(t, limit)
		require.True(t, l.Allow("k", 5))
		r, err := l.Reserve(t.Context(), "j", 5, 0)
		require.NoError(t, err)
		l.Reset("k")
		l.Reset("j")
		l.Reset("never seen")
		assert.Zero(t, l.Len())
		require.True(t, l.Allow("j", 4))
		r.Cancel()
		assert.Equal(t, 1, remaining(t, l, "j"), "what was reserved from the key before is no concern of the new one")
		assert.Equal(t, 5, remaining(t, l, "k"))
	}
}

// Whatever sweeps, resets and evictions run, a key has one budget at a time and
// the table is never above its bound.
func TestNoChargeIsLostToSweepsAndEvictions(t *testing.T) {
	const keys, rounds = 8, 3000
	clock := new(testClock)
	l := newWith(t, ratelimit.TokenBucket(ratelimit.PerDay(1), rounds), ratelimit.Options[int]{Clock: clock, MaxKeys: keys + 1})
	allowed := make([]int, keys)
	var work, noise sync.WaitGroup
	stop := make(chan struct{})
	noise.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			l.Sweep()
			if i%64 == 0 {
				l.Allow(-1, 1) // takes the room that is left, and leaves it again
				l.Reset(-1)
			}
		}
	})
	for k := range keys {
		work.Go(func() {
			for range 2 * rounds {
				if l.Allow(k, 1) {
					allowed[k]++
				}
			}
		})
	}
	work.Wait()
	close(stop)
	noise.Wait()
	for k, n := range allowed {
		assert.Equal(t, rounds, n, "key %d", k)
	}
	assert.Equal(t, keys, l.Len())
}

func TestTheTableStaysWithinItsBoundUnderAFlood(t *testing.T) {
	for _, most := range []int{1, 7, 4096} {
		l := newWith(t, onceADay, ratelimit.Options[int]{Clock: new(testClock), MaxKeys: most})
		var wg sync.WaitGroup
		for seed := range uint64(8) {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(testsize.Seed(seed), 1))
				for i := range 5000 {
					l.Allow(r.IntN(3*most), 1)
					if n := l.Len(); n > most {
						t.Errorf("%d keys of %d after %d", n, most, i)
						return
					}
				}
			})
		}
		wg.Wait()
		assert.LessOrEqual(t, l.Len(), most)
	}
}

// One key in debt must not keep the idle ones behind it in memory.
func TestAKeyInDebtIsInNobodysWay(t *testing.T) {
	clock := new(testClock)
	l := newWith(t, ratelimit.TokenBucket(ratelimit.PerSecond(10), 10), ratelimit.Options[int]{Clock: clock, MaxKeys: 4000})
	require.NoError(t, l.Adjust(-1, 10*24*3600)) // a day's worth
	for i := range 1000 {
		require.True(t, l.Allow(i, 1))
	}
	clock.set(time.Hour)
	for i := range 1000 {
		require.True(t, l.Allow(1000+i, 1))
	}
	assert.Less(t, l.Len(), 1500)
	assert.Equal(t, uint64(1000), l.Stats().Expired)
	assert.False(t, l.Allow(-1, 1))
}

func TestRefuseNewFindsWhatItMayForget(t *testing.T) {
	clock := new(testClock)
	l := newWith(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 1),
		ratelimit.Options[int]{Clock: clock, MaxKeys: 8, OnFull: ratelimit.RefuseNew})
	for i := range 4 {
		require.NoError(t, l.Adjust(i, 1000))
	}
	for i := range 4 {
		require.True(t, l.Allow(10+i, 1))
	}
	clock.set(2 * s)
	assert.True(t, l.Allow(20, 1), "four keys are fresh, behind four that are not")
}
