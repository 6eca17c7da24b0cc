package ratelimit_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/testsize"
)

// fits inserts keys from first until one is refused, and returns how many fit. Each of
// them spends all that it may.
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

// What makes a key fresh earlier than it was going to be makes room at once.
func TestRefuseNewSeesWhatIsGivenBack(t *testing.T) {
	limit := ratelimit.TokenBucket(ratelimit.PerDay(10), 10)
	for _, test := range []struct {
		name string
		play func(t *testing.T, l *ratelimit.Keyed[int], r *ratelimit.Reservation, clock *testClock)
	}{
		{"a cancelled reservation", func(t *testing.T, l *ratelimit.Keyed[int], r *ratelimit.Reservation, _ *testClock) {
			require.NoError(t, r.Cancel())
		}},
		{"a grant", func(t *testing.T, l *ratelimit.Keyed[int], r *ratelimit.Reservation, _ *testClock) {
			require.NoError(t, l.Adjust(0, -4))
		}},
		{"a reset", func(t *testing.T, l *ratelimit.Keyed[int], r *ratelimit.Reservation, _ *testClock) {
			l.Reset(0)
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

func TestRefuseNewSeesWhatAStackGivesBack(t *testing.T) {
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

// A new key is refused exactly if the table is full and no key in it is fresh, whatever
// was called before.
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
	l := newWith(t, limits[r.IntN(len(limits))], ratelimit.Options[int]{Clock: clock, MaxKeys: most, OnFull: ratelimit.RefuseNew})
	const keys = 12
	var made []*ratelimit.Reservation
	for range 500 {
		key := r.IntN(keys)
		switch r.IntN(12) {
		case 0, 1:
			clock.advance(time.Duration(r.IntN(40)))
		case 2:
			require.NoError(t, l.SetLimit(limits[r.IntN(len(limits))]))
		case 3:
			l.Refresh(key)
		case 4:
			if len(made) > 0 {
				require.NoError(t, made[r.IntN(len(made))].Settle(r.IntN(3)))
			}
		case 5:
			l.Reset(key)
		default:
			made = append(made, refuseOrNot(t, l, r, key, keys, most, seed)...)
		}
	}
}

// refuseOrNot charges a key, and checks whether it should have been refused.
func refuseOrNot(t *testing.T, l *ratelimit.Keyed[int], r *rand.Rand, key, keys, most int, seed uint64) []*ratelimit.Reservation {
	spending := known(t, l, keys)
	before, refused := l.Stats(), false
	var res *ratelimit.Reservation
	var err error
	if r.IntN(4) == 0 {
		err = l.Adjust(key, 1+r.IntN(3))
	} else {
		res, err = l.Reserve(t.Context(), key, 1+r.IntN(2), time.Duration(r.IntN(30)))
	}
	if refused = err != nil; refused {
		require.ErrorIs(t, err, ratelimit.ErrTableFull)
		require.Len(t, spending, most, "seed %d: refused although a key is fresh", seed)
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
