package ratelimit_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

// known returns those of the keys 0 to n-1 that have spent something.
func known(t *testing.T, l *ratelimit.Keyed[int], n int) (keys []int) {
	t.Helper()
	for key := range n {
		d, err := l.Peek(key, 0)
		require.NoError(t, err)
		if d.ResetAfter > 0 {
			keys = append(keys, key)
		}
	}
	return keys
}

func TestEvictionForgetsTheKeyThatCostsLeast(t *testing.T) {
	limit := ratelimit.TokenBucket(ratelimit.PerSecond(1), 100)
	spend := func(t *testing.T, l *ratelimit.Keyed[int], key, cost int) {
		require.True(t, l.Allow(key, cost))
	}
	deny := func(t *testing.T, l *ratelimit.Keyed[int], key int) {
		require.False(t, l.Allow(key, 100))
	}
	for _, test := range []struct {
		name  string
		play  func(t *testing.T, l *ratelimit.Keyed[int], clock *testClock) // with the keys 0, 1 and 2
		kept  []int
		stats ratelimit.Stats
	}{
		{"a fresh key before one that has spent", func(t *testing.T, l *ratelimit.Keyed[int], clock *testClock) {
			spend(t, l, 0, 100)
			spend(t, l, 1, 100)
			spend(t, l, 2, 1)
			clock.advance(s)
		}, []int{0, 1}, ratelimit.Stats{Keys: 3, Expired: 1}},
		{"a fresh key even if it was used and denied", func(t *testing.T, l *ratelimit.Keyed[int], clock *testClock) {
			spend(t, l, 0, 100)
			spend(t, l, 1, 1)
			spend(t, l, 1, 1)
			deny(t, l, 1)
			spend(t, l, 2, 100)
			clock.advance(2 * s)
		}, []int{0, 2}, ratelimit.Stats{Keys: 3, Expired: 1}},
		{"an idle key before one in use", func(t *testing.T, l *ratelimit.Keyed[int], clock *testClock) {
			spend(t, l, 0, 50)
			spend(t, l, 0, 5)
			spend(t, l, 1, 50)
			spend(t, l, 2, 50)
			spend(t, l, 2, 5)
		}, []int{0, 2}, ratelimit.Stats{Keys: 3, Evicted: 1}},
		{"the idle key that came first", func(t *testing.T, l *ratelimit.Keyed[int], clock *testClock) {
			for key := range 3 {
				spend(t, l, key, 50)
			}
		}, []int{1, 2}, ratelimit.Stats{Keys: 3, Evicted: 1}},
		{"of keys in use the one that was used least recently", func(t *testing.T, l *ratelimit.Keyed[int], clock *testClock) {
			for key := range 3 {
				spend(t, l, key, 50)
			}
			for _, key := range []int{2, 0, 1} {
				clock.advance(s)
				spend(t, l, key, 5)
			}
		}, []int{0, 1}, ratelimit.Stats{Keys: 3, Evicted: 1}},
		{"a key in use before one that is throttled", func(t *testing.T, l *ratelimit.Keyed[int], clock *testClock) {
			for _, key := range []int{0, 1, 2, 1} {
				spend(t, l, key, 5)
			}
			deny(t, l, 0)
			deny(t, l, 2)
		}, []int{0, 2}, ratelimit.Stats{Keys: 3, Evicted: 1}},
		{"the throttled key that was used least recently if all are throttled", func(t *testing.T, l *ratelimit.Keyed[int], clock *testClock) {
			for key := range 3 {
				spend(t, l, key, 50)
			}
			for _, key := range []int{1, 2, 0} {
				clock.advance(s)
				deny(t, l, key)
			}
		}, []int{0, 2}, ratelimit.Stats{Keys: 3, Evicted: 1, EvictedThrottled: 1}},
		{"a key that was denied and then allowed is not throttled", func(t *testing.T, l *ratelimit.Keyed[int], clock *testClock) {
			for key := range 3 {
				spend(t, l, key, 50)
				deny(t, l, key)
			}
			spend(t, l, 1, 1)
		}, []int{0, 2}, ratelimit.Stats{Keys: 3, Evicted: 1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			clock := new(testClock)
			l := newWith(t, limit, ratelimit.Options[int]{Clock: clock, MaxKeys: 3})
			test.play(t, l, clock)
			require.Equal(t, 3, l.Len())
			require.True(t, l.Allow(-1, 1))
			assert.Equal(t, test.stats, l.Stats())
			assert.Equal(t, test.kept, known(t, l, 3))
		})
	}
}

// A second chance lasts until eviction looks again.
func TestAKeyThatWasUsedOnceIsEvictedInTheEnd(t *testing.T) {
	l := newWith(t, ratelimit.TokenBucket(ratelimit.PerDay(9), 9), ratelimit.Options[int]{Clock: new(testClock), MaxKeys: 5})
	for _, key := range []int{0, 1, 2, 3, 4, 0} {
		require.True(t, l.Allow(key, 1))
	}
	for key := range 4 {
		require.True(t, l.Allow(10+key, 1))
	}
	assert.Equal(t, []int{0}, known(t, l, 5))
	require.True(t, l.Allow(14, 1))
	assert.Empty(t, known(t, l, 5))
}

func TestOneKeyWithSpendingSurvivesAmongFreshOnes(t *testing.T) {
	for _, place := range []int{0, 1, 50, 98, 99} {
		clock := new(testClock)
		l := newWith(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 100), ratelimit.Options[int]{Clock: clock, MaxKeys: 100})
		for key := range 100 {
			cost := 1
			if key == place {
				cost = 100
			}
			require.True(t, l.Allow(key, cost))
		}
		clock.advance(s)
		for key := range 99 {
			require.True(t, l.Allow(100+key, 100))
		}
		assert.Equal(t, ratelimit.Stats{Keys: 100, Expired: 99}, l.Stats(), "place %d", place)
		assert.Equal(t, 1, remaining(t, l, place))
	}
}

// Keys that are only ever used once leave in the order in which they came, whatever is
// reset in between.
func TestIdleKeysLeaveInTheOrderInWhichTheyCame(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 7))
		most := 1 + r.IntN(70)
		l := newWith(t, onceADay, ratelimit.Options[int]{Clock: new(testClock), MaxKeys: most})
		var want []int
		const keys = 600
		for key := range keys {
			require.True(t, l.Allow(key, 1))
			if want = append(want, key); len(want) > most {
				want = want[1:]
			}
			for r.IntN(3) == 0 && len(want) > 0 {
				i := r.IntN(len(want))
				l.Reset(want[i])
				want = slices.Delete(want, i, i+1)
			}
			require.Equal(t, len(want), l.Len())
		}
		require.ElementsMatch(t, want, known(t, l, keys), "seed %d", seed)
	}
}

func TestSweepFindsFreshKeysBetweenOthers(t *testing.T) {
	for _, most := range []int{1000, 10_000} {
		clock := new(testClock)
		l := newWith(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 10), ratelimit.Options[int]{Clock: clock, MaxKeys: most})
		r := rand.New(rand.NewPCG(1, 2))
		var want []int
		for key := range 1000 {
			cost := 1 + 9*r.IntN(2)
			require.True(t, l.Allow(key, cost))
			if cost == 10 {
				want = append(want, key)
			}
		}
		clock.advance(s)
		require.Equal(t, 1000-len(want), l.Sweep())
		require.Equal(t, len(want), l.Len())
		require.Equal(t, want, known(t, l, 1000))
		require.Zero(t, l.Sweep())
		clock.advance(9 * s)
		require.Equal(t, len(want), l.Sweep())
		require.Zero(t, l.Len())
	}
}

func TestAKeyIsKeptForAMinuteWhileThereIsRoom(t *testing.T) {
	for _, ttl := range []time.Duration{0, time.Second, time.Hour} {
		t.Run(fmt.Sprint(ttl), func(t *testing.T) {
			clock := new(testClock)
			l := newWith(t, ratelimit.FixedWindow(ratelimit.PerSecond(1)), ratelimit.Options[int]{Clock: clock, IdleTTL: ttl})
			kept := max(ttl, time.Minute)
			for key := range 10_000 { // several in each shard
				require.True(t, l.Allow(key, 1))
			}
			clock.set(kept - 1)
			for key := range 10_000 {
				require.True(t, l.Allow(10_000+key, 1))
			}
			assert.Equal(t, ratelimit.Stats{Keys: 20_000}, l.Stats())
			clock.set(kept)
			for key := range 10_000 {
				require.True(t, l.Allow(20_000+key, 1))
			}
			assert.Equal(t, ratelimit.Stats{Keys: 20_000, Expired: 10_000}, l.Stats())
		})
	}
}

// A place in the order that was taken at a reading far in the future does not keep keys behind it.
func TestAKeyFromTheFutureIsInNobodysWay(t *testing.T) {
	clock := new(testClock)
	l := newWith(t, ratelimit.FixedWindow(ratelimit.PerSecond(1)), ratelimit.Options[int]{Clock: clock, MaxKeys: 4000})
	clock.set(time.Hour * 24 * 365)
	require.True(t, l.Allow(-1, 1))
	clock.set(0)
	for key := range 1000 {
		require.True(t, l.Allow(key, 1))
	}
	clock.set(time.Hour)
	for key := range 1000 {
		require.True(t, l.Allow(1000+key, 1))
	}
	assert.Equal(t, uint64(1000), l.Stats().Expired)
}

func TestAdjustFollowsAChangedLimitFirst(t *testing.T) {
	l, clock := newLimiter(t, ratelimit.FixedWindow(ratelimit.PerSecond(10)))
	require.True(t, l.Allow("k", 1))
	require.NoError(t, l.SetLimit(ratelimit.FixedWindow(ratelimit.PerSecond(100))))
	require.NoError(t, l.Adjust("k", 49))
	assert.Equal(t, 50, remaining(t, l, "k"))
	clock.advance(s)
	assert.Equal(t, 100, remaining(t, l, "k"), "no debt of five windows of 10")
}

func TestAllowTellsOnDecisionOfKnownKeysToo(t *testing.T) {
	var told []ratelimit.Event[string]
	l := newWith(t, onceADay, ratelimit.Options[string]{Clock: new(testClock), OnDecision: func(e ratelimit.Event[string]) {
		told = append(told, e)
	}})
	l.Allow("k", 1)
	l.Allow("k", 1)
	require.Len(t, told, 2)
	assert.True(t, told[0].Spent)
	assert.Equal(t, ratelimit.Event[string]{Key: "k", Cost: 1,
		Decision: ratelimit.Decision{Limit: onceADay, RetryAfter: 24 * time.Hour, ResetAfter: 24 * time.Hour}}, told[1])
}

// A key that was used, and then left alone for longer than fresh keys are kept, goes before
// one that is new.
func TestAKeyThatWasUsedLongAgoIsNotInUseAnyMore(t *testing.T) {
	clock := new(testClock)
	l := newWith(t, ratelimit.TokenBucket(ratelimit.PerHour(1), 3), ratelimit.Options[string]{Clock: clock, MaxKeys: 3})
	for range 2 {
		require.True(t, l.Allow("long ago", 1))
		require.True(t, l.Allow("in use", 1))
	}
	clock.advance(2 * time.Minute)
	require.True(t, l.Allow("new", 1))
	require.True(t, l.Allow("in use", 1))
	clock.advance(ms)
	require.True(t, l.Allow("another", 1))
	assert.Equal(t, 3, remaining(t, l, "long ago"), "this one had to go")
	assert.Equal(t, 2, remaining(t, l, "new"))
	assert.Equal(t, 0, remaining(t, l, "in use"))
}
