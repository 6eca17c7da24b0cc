package ratelimit_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// known returns the keys from 0 to n-1 with spending.
func known(t *testing.T, l *ratelimit.Keyed[int], n int) (keys []int) {
	t.Helper()
	for key := range n {
		d, err := l.Peek(context.Background(), key, 0)
		require.NoError(t, err)
		if d.ResetAfter > 0 {
			keys = append(keys, key)
		}
	}
	return keys
}

func TestEvictionForgetsTheKeyThatCostsLeast(t *testing.T) {
	testsize.Arithmetic(t)
	limit := ratelimit.TokenBucket(ratelimit.PerSecond(1), 100)
	spend := func(t *testing.T, l *ratelimit.Keyed[int], key, cost int) {
		require.True(t, l.Allow(key, cost))
	}
	deny := func(t *testing.T, l *ratelimit.Keyed[int], key int) {
		require.False(t, l.Allow(key, 100))
	}
	for _, test := range []struct {
		name  string
		play  func(t *testing.T, l *ratelimit.Keyed[int], clock *testClock) // plays calls on a limiter with the keys 0, 1 and 2
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
			require.Equal(t, 3, l.Stats().Keys)
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

// Keys used only once leave in the order of their arrival, even if keys are reset in between.
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
				l.Reset(context.Background(), want[i])
				want = slices.Delete(want, i, i+1)
			}
			require.Equal(t, len(want), l.Stats().Keys)
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
		require.Equal(t, len(want), l.Stats().Keys)
		require.Equal(t, want, known(t, l, 1000))
		require.Zero(t, l.Sweep())
		clock.advance(9 * s)
		require.Equal(t, len(want), l.Sweep())
		require.Zero(t, l.Stats().Keys)
	}
}

func TestAKeyIsKeptForAMinuteWhileThereIsRoom(t *testing.T) {
	for _, ttl := range []time.Duration{0, time.Second, time.Hour} {
		t.Run(fmt.Sprint(ttl), func(t *testing.T) {
			clock := new(testClock)
			l := newWith(t, ratelimit.FixedWindow(ratelimit.PerSecond(1)), ratelimit.Options[int]{Clock: clock, IdleTTL: ttl})
			kept := max(ttl, time.Minute)
			for key := range 10_000 { // so that each shard has several keys
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

// A reading far in the future gives a key a place. This key does not keep the keys behind it in the table.
func TestAKeyFromTheFutureKeepsNoOthersInTheTable(t *testing.T) {
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
	require.NoError(t, l.Adjust(context.Background(), "k", 49))
	assert.Equal(t, 50, remaining(t, l, "k"))
	clock.advance(s)
	assert.Equal(t, 100, remaining(t, l, "k"), "no debt of five windows of 10")
}

func TestAllowReportsDecisionsOnKnownKeysToo(t *testing.T) {
	var events []ratelimit.Event[string]
	l := newWith(t, onceADay, ratelimit.Options[string]{Clock: new(testClock), OnDecision: func(e ratelimit.Event[string]) {
		events = append(events, e)
	}})
	l.Allow("k", 1)
	l.Allow("k", 1)
	require.Len(t, events, 2)
	assert.True(t, events[0].Spent)
	assert.Equal(t, ratelimit.Event[string]{Key: "k", Cost: 1,
		Decision: ratelimit.Decision{Limit: onceADay, RetryAfter: 24 * time.Hour, ResetAfter: 24 * time.Hour, NextAfter: 24 * time.Hour}}, events[1])
}

// A used key, left alone for longer than fresh keys are kept, leaves before a new one.
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

// fits inserts keys from first on until one is refused, and counts the inserted keys. Each spends its whole budget.
func fits(t *testing.T, l *ratelimit.Keyed[int], first, cost int) (n int) {
	t.Helper()
	for {
		d, err := l.Take(t.Context(), first+n, cost)
		if err != nil {
			require.ErrorIs(t, err, ratelimit.ErrTableFull)
			return n
		}
		require.True(t, d.Allowed)
		n++
	}
}

func TestRefuseNewMakesRoomOutOfEachFreshKeyAndNoOther(t *testing.T) {
	for _, test := range []struct{ keys, fresh int }{{100, 90}, {100, 1}, {1, 1}, {1, 0}, {4096, 27}, {10_000, 9_000}} {
		clock := new(testClock)
		l := newWith(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 10),
			ratelimit.Options[int]{Clock: clock, MaxKeys: test.keys, OnFull: ratelimit.RefuseNew})
		r := rand.New(rand.NewPCG(1, 2))
		for i, key := range r.Perm(test.keys) {
			cost := 10
			if i < test.fresh {
				cost = 1
			}
			require.True(t, l.Allow(key, cost))
		}
		require.Zero(t, fits(t, l, 1_000_000, 10))
		clock.set(s)
		assert.Equal(t, test.fresh, fits(t, l, 1_000_000, 10), "%+v", test)
		assert.Equal(t, ratelimit.Stats{Keys: test.keys, Expired: uint64(test.fresh), Refused: 2}, l.Stats())
	}
}

// Any change that makes a key fresh earlier makes room at once.
func TestRefuseNewSeesRefundedUnits(t *testing.T) {
	limit := ratelimit.TokenBucket(ratelimit.PerDay(10), 10)
	for _, test := range []struct {
		name string
		play func(t *testing.T, l *ratelimit.Keyed[int], r *ratelimit.Reservation, clock *testClock)
	}{
		{"a cancelled reservation", func(t *testing.T, l *ratelimit.Keyed[int], r *ratelimit.Reservation, _ *testClock) {
			require.NoError(t, r.Cancel())
		}},
		{"a grant", func(t *testing.T, l *ratelimit.Keyed[int], r *ratelimit.Reservation, _ *testClock) {
			require.NoError(t, l.Adjust(context.Background(), 0, -4))
		}},
		{"a reset", func(t *testing.T, l *ratelimit.Keyed[int], r *ratelimit.Reservation, _ *testClock) {
			l.Reset(context.Background(), 0)
		}},
		{"a faster limit, once the key follows it", func(t *testing.T, l *ratelimit.Keyed[int], r *ratelimit.Reservation, clock *testClock) {
			require.NoError(t, l.SetLimit(ratelimit.TokenBucket(ratelimit.PerSecond(10), 10)))
			require.False(t, l.Allow(0, 7))
			clock.advance(s)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			clock := new(testClock)
			l := newWith(t, limit, ratelimit.Options[int]{Clock: clock, MaxKeys: 3, OnFull: ratelimit.RefuseNew})
			r, err := l.Reserve(t.Context(), 0, 4, 0)
			require.NoError(t, err)
			require.True(t, l.Allow(1, 10))
			require.True(t, l.Allow(2, 10))
			require.Zero(t, fits(t, l, 10, 10))
			test.play(t, l, r, clock)
			assert.Equal(t, 1, fits(t, l, 10, 10))
		})
	}
}

func TestRefuseNewSeesUnitsThatAStackRefunds(t *testing.T) {
	clock := new(testClock)
	l := newWith(t, onceADay, ratelimit.Options[int]{Clock: clock, MaxKeys: 1, OnFull: ratelimit.RefuseNew})
	other := newWith(t, onceADay, ratelimit.Options[int]{Clock: clock})
	stack, err := ratelimit.All(byKey(l), byKey(other))
	require.NoError(t, err)
	for key := range 3 {
		r, err := stack.Reserve(t.Context(), key, 1, 0)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		require.False(t, stack.Allow(key+1, 1), "the table is full")
		require.NoError(t, r.Cancel())
	}
	require.True(t, other.Allow(7, 1))
	require.True(t, l.Allow(8, 1))
	clock.advance(24 * time.Hour)
	require.True(t, other.Allow(7, 1))
	require.False(t, stack.Allow(7, 1), "denied by the other")
	require.True(t, l.Allow(9, 1), "the stack has left nothing behind")
}

func byKey(l *ratelimit.Keyed[int]) ratelimit.Layer[int] {
	return ratelimit.By(l, func(key int) (int, error) { return key, nil })
}

// A new key is refused exactly if the table is full and no key in it is fresh, in any history of calls.
func TestRefuseNewIsExactInAnyHistory(t *testing.T) {
	for seed := range uint64(60) {
		refuseHistory(t, seed)
	}
}

func refuseHistory(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(testsize.Seed(seed), 3))
	limits := []ratelimit.Limit{
		ratelimit.TokenBucket(ratelimit.Per(1, 10), 5), ratelimit.TokenBucket(ratelimit.Per(1, 3), 4),
		ratelimit.TokenBucket(ratelimit.Per(2, 50), 9), ratelimit.LeakyBucket(ratelimit.Per(1, 7), 6),
	}
	clock := new(testClock)
	most := 1 + r.IntN(8)
	limit := limits[r.IntN(len(limits))]
	l := newWith(t, limit, ratelimit.Options[int]{Clock: clock, MaxKeys: most, OnFull: ratelimit.RefuseNew})
	const keys = 12
	var made []*ratelimit.Reservation
	var aside time.Duration // until then, a key that looks fresh may have units set aside under a lowered limit
	for range 500 {
		key := r.IntN(keys)
		switch r.IntN(12) {
		case 0, 1:
			clock.advance(time.Duration(r.IntN(40)))
		case 2:
			next := limits[r.IntN(len(limits))]
			if next.Capacity() < limit.Capacity() {
				aside = clock.Now() + 1000
			}
			require.NoError(t, l.SetLimit(next))
			limit = next
		case 3:
			l.Refresh(key)
		case 4:
			if len(made) > 0 {
				require.NoError(t, made[r.IntN(len(made))].Settle(r.IntN(3)))
			}
		case 5:
			l.Reset(context.Background(), key)
		default:
			made = append(made, refuseOrNot(t, l, r, key, keys, most, seed, clock.Now() < aside)...)
		}
	}
}

// refuseOrNot charges a key, and checks whether a refusal was right.
func refuseOrNot(t *testing.T, l *ratelimit.Keyed[int], r *rand.Rand, key, keys, most int, seed uint64, unsure bool) []*ratelimit.Reservation {
	spending := known(t, l, keys)
	before, refused := l.Stats(), false
	var res *ratelimit.Reservation
	var err error
	if r.IntN(4) == 0 {
		err = l.Adjust(context.Background(), key, 1+r.IntN(3))
	} else {
		res, err = l.Reserve(t.Context(), key, 1+r.IntN(2), time.Duration(r.IntN(30)))
	}
	if refused = err != nil; refused {
		require.ErrorIs(t, err, ratelimit.ErrTableFull)
		require.True(t, unsure || len(spending) == most, "seed %d: refused although a key is fresh", seed)
	} else if len(spending) == most {
		require.Contains(t, spending, key, "seed %d: inserted although no key is fresh", seed)
	}
	after := l.Stats()
	require.LessOrEqual(t, after.Keys, most)
	require.Zero(t, after.Evicted)
	if refused {
		require.Equal(t, before.Refused+1, after.Refused)
	}
	if res == nil {
		return nil
	}
	return []*ratelimit.Reservation{res}
}
