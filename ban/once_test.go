package ban_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/ban"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// algorithms are constructors of limits.
var algorithms = map[string]func(ratelimit.Rate) ratelimit.Limit{
	"fixed window": ratelimit.FixedWindow, "sliding log": ratelimit.SlidingLog, "sliding counter": ratelimit.SlidingCounter,
	"token bucket": func(r ratelimit.Rate) ratelimit.Limit { return ratelimit.TokenBucket(r, r.Units) },
	"leaky bucket": func(r ratelimit.Rate) ratelimit.Limit { return ratelimit.LeakyBucket(r, r.Units) },
}

// page sends a page's requests at once, each on its own goroutine, and counts the served ones.
func page(l ratelimit.Limiter[string], requests int) int {
	served := make(chan bool, requests)
	for range requests {
		go func() { served <- l.Allow("k", 1) }()
	}
	n := 0
	for range requests {
		if <-served {
			n++
		}
	}
	return n
}

func TestTheDenialsOfAPageThatLoadsInParallelAreOneStrike(t *testing.T) {
	for name, strikes := range algorithms {
		clock := new(ratelimittest.Clock)
		limiter := onClock(t, clock, ratelimit.TokenBucket(ratelimit.PerSecond(10), 20))
		counted := onClock(t, clock, strikes(ratelimit.PerHour(3)))
		b := banOf(t, limiter, counted, onClock(t, clock, banLimit))
		for load := range 2 {
			require.Equal(t, 20, page(b, 30), name)
			require.Equal(t, 2-load, remaining(t, counted, "k"), "%s: load %d", name, load)
			clock.Advance(2 * time.Second)
		}
		require.Equal(t, 20, page(b, 30), name)
		require.Equal(t, banLimit.Name, take(t, b, 1).Limit.Name, "%s: the third load is the third strike", name)
		require.Equal(t, ban.Stats{Begun: 1}, b.Stats())
		require.Zero(t, counted.Stats().Keys, "%s: nothing is counted for the other denials of the load that began the ban", name)
	}
}

func TestADenialIsAStrikeOfItsOwnFromTheFirstOnesRetryAfterOn(t *testing.T) {
	for name, strikes := range algorithms {
		clock := new(ratelimittest.Clock)
		limiter := onClock(t, clock, jailLimit)
		counted := onClock(t, clock, strikes(ratelimit.PerHour(10)))
		b := banOf(t, limiter, counted, onClock(t, clock, banLimit))
		left := func() int { return remaining(t, counted, "k") }
		require.True(t, b.Allow("k", 2))
		clock.Advance(20 * time.Second)
		for range 3 {
			require.Equal(t, 40*time.Second, take(t, b, 1).RetryAfter)
		}
		require.Equal(t, 9, left(), name)
		clock.Advance(40*time.Second - 1)
		require.False(t, b.Allow("k", 2))
		require.Equal(t, 9, left(), name)
		clock.Advance(1)
		require.True(t, b.Allow("k", 2))
		require.False(t, b.Allow("k", 1), name)
		require.Equal(t, 8, left(), name)
		require.NoError(t, b.Reset(t.Context(), "k"))
		require.False(t, b.Allow("k", 2) && b.Allow("k", 1))
		require.Equal(t, 9, left(), "%s: a strike that was forgotten holds no other back", name)
	}
}

// In these histories, the limit of strikes lasts for weeks. So the
// first denial alone decides which others belong to its strike.
func TestStrikesOfRandomDenialsAreThoseOfAModel(t *testing.T) {
	testsize.Sequential(t)
	names := []string{"fixed window", "sliding log", "sliding counter", "token bucket", "leaky bucket"}
	for seed := range uint64(testsize.Of(40, 400)) {
		r := rand.New(rand.NewPCG(seed, 1))
		clock := new(ratelimittest.Clock)
		of, by := names[r.IntN(len(names))], names[r.IntN(len(names))]
		counted := 0
		limiter := onClock(t, clock, algorithms[of](ratelimit.Per(1+r.IntN(20), time.Minute)))
		strikes := limiterWith(t, algorithms[by](ratelimit.Per(1000, 1000*24*time.Hour)), ratelimit.Options[string]{Clock: clock, OnDecision: func(e ratelimit.Event[string]) {
			if e.Spent {
				counted++
			}
		}})
		b := banOf(t, limiter, strikes, onClock(t, clock, banLimit))
		want, until := map[string]int{}, map[string]time.Duration{}
		now := time.Duration(0)
		for range 300 {
			key := []string{"a", "b"}[r.IntN(2)]
			d, err := b.Take(t.Context(), key, 1+r.IntN(limiter.Describe().Limits[0].Capacity()))
			require.NoError(t, err)
			if !d.Allowed && now >= until[key] {
				want[key]++
				until[key] = now + d.RetryAfter
			}
			require.Equal(t, want["a"]+want["b"], counted, "seed %d: strikes by %s of denials by %s at %v", seed, by, of, now)
			if r.IntN(2) == 0 {
				step := time.Duration(r.Int64N(int64(30 * time.Second)))
				if r.IntN(4) == 0 {
					step = max(0, until[key]-now-time.Duration(r.IntN(2)))
				}
				clock.Advance(step)
				now += step
			}
		}
	}
}

// A limit that blocks a key has no RetryAfter. Its denials are one strike until the limiter of strikes has forgotten it.
func TestDenialsWithoutARetryAfterAreOneStrike(t *testing.T) {
	clock := new(ratelimittest.Clock)
	strikes := onClock(t, clock, ratelimit.FixedWindow(ratelimit.PerHour(3)))
	never := &engine{Answer: func() (ratelimit.Decision, error) { return ratelimit.Decision{}, nil }}
	b := banOf[string](t, never, strikes, onClock(t, clock, banLimit))
	for range 50 {
		require.False(t, b.Allow("k", 1))
		clock.Advance(time.Minute)
	}
	require.Equal(t, 2, remaining(t, strikes, "k"))
	clock.Advance(time.Hour)
	require.False(t, b.Allow("k", 1))
	require.Equal(t, 2, remaining(t, strikes, "k"))
}

// Each process has its own Limiter over the same strikes. The requests
// overlap, so all processes peek at the strikes before any process counts one.
func TestAFleetCountsOneStrikeForAPageIfItsStrikesAreALog(t *testing.T) {
	for range 50 {
		clock := new(ratelimittest.Clock)
		limiter := onClock(t, clock, ratelimit.TokenBucket(ratelimit.PerSecond(10), 20))
		strikes := onClock(t, clock, ratelimit.SlidingLog(ratelimit.PerHour(3)))
		bans := onClock(t, clock, banLimit)
		fleet := make([]*ban.Limiter[string], 8)
		for i := range fleet {
			fleet[i] = banOf(t, limiter, strikes, bans)
		}
		load := func() {
			var wg sync.WaitGroup
			for i := range 40 {
				wg.Go(func() { fleet[i%len(fleet)].Allow("k", 1) })
			}
			wg.Wait()
		}
		for n := range 2 {
			load()
			require.Equal(t, 2-n, remaining(t, strikes, "k"))
			clock.Advance(50 * time.Millisecond)
			load() // the first load's RetryAfter, 100 ms, has not passed
			require.Equal(t, 2-n, remaining(t, strikes, "k"))
			require.True(t, bans.Allow("another", 0))
			clock.Advance(3 * time.Second)
		}
		load()
		require.Zero(t, remaining(t, bans, "k"), "the third is the third strike")
		begun := uint64(0)
		for _, b := range fleet {
			begun += b.Stats().Begun
			require.Zero(t, b.Stats().Failed)
		}
		require.EqualValues(t, 1, begun)
	}
}

// Keys that cannot be compared have no mark. So only the log shows which denials are one strike.
func TestKeysThatCannotBeComparedAreBanned(t *testing.T) {
	clock := new(ratelimittest.Clock)
	name := func(k []byte) (string, error) { return string(k), nil }
	limiter, bans := onClock(t, clock, jailLimit), onClock(t, clock, banLimit)
	for _, test := range []struct {
		strikes string
		left    int
		banned  bool
	}{{"sliding log", 2, false}, {"fixed window", 3, true}} {
		strikes := onClock(t, clock, algorithms[test.strikes](ratelimit.PerHour(3)))
		b := banOf(t, ratelimit.Map[[]byte, string](limiter, name), ratelimit.Map[[]byte, string](strikes, name), ratelimit.Map[[]byte, string](bans, name))
		require.NoError(t, b.Reset(t.Context(), []byte("k")))
		require.True(t, b.Allow([]byte("k"), 2))
		for range 3 {
			require.False(t, b.Allow([]byte("k"), 1))
		}
		require.Equal(t, test.left, remaining(t, strikes, "k"), test.strikes)
		require.Equal(t, test.banned, remaining(t, bans, "k") == 0, test.strikes)
	}
	for _, key := range []any{nil, 1, []int{1}, struct{ x any }{[]int{1}}, [1]any{func() {}}} {
		same := func(any) (string, error) { return "any", nil }
		b := banOf(t, ratelimit.Map[any, string](onClock(t, clock, jailLimit), same), ratelimit.Map[any, string](onClock(t, clock, ratelimit.SlidingLog(ratelimit.PerHour(3))), same),
			ratelimit.Map[any, string](onClock(t, clock, banLimit), same))
		require.True(t, b.Allow(key, 2))
		require.False(t, b.Allow(key, 1), "%T", key)
		require.Equal(t, ban.Stats{}, b.Stats())
	}
}

// growing returns a limiter whose bans last 1 minute, 5 minutes and an hour.
func growing(t testing.TB, clock *ratelimittest.Clock, strikes, repeats ratelimit.Reserver[string]) (*ban.Limiter[string], []*ratelimit.Keyed[string]) {
	t.Helper()
	var bans []*ratelimit.Keyed[string]
	for i, length := range []time.Duration{time.Minute, 5 * time.Minute, time.Hour} {
		bans = append(bans, onClock(t, clock, ratelimit.FixedWindow(ratelimit.Per(1, length)).Named(fmt.Sprintf("ban-%d", i+1))))
	}
	b, err := ban.NewGrowing[string](nil, strikes, repeats, bans[0], bans[1], bans[2])
	require.NoError(t, err)
	return b, bans
}

func TestAKeyThatComesBackIsBannedForLonger(t *testing.T) {
	clock := new(ratelimittest.Clock)
	strikes := onClock(t, clock, ratelimit.FixedWindow(ratelimit.PerMinute(3)))
	repeats := onClock(t, clock, ratelimit.SlidingLog(ratelimit.Per(9, 24*time.Hour)))
	b, bans := growing(t, clock, strikes, repeats)
	ctx := t.Context()
	banned := func(i int, length time.Duration) {
		t.Helper()
		require.NoError(t, b.Strike(ctx, "k", 3))
		want := ratelimit.Decision{Limit: bans[i].Describe().Limits[0], RetryAfter: length, ResetAfter: length, NextAfter: length}
		require.Equal(t, want, take(t, b, 1))
		require.Equal(t, want, take(t, b, 0), "a cost of 0, too")
		d, err := b.Peek(ctx, "k", 1)
		require.NoError(t, err)
		require.Equal(t, want, d)
		require.NoError(t, b.Strike(ctx, "k", 3))
		clock.Advance(length - 1)
		require.False(t, b.Allow("k", 1))
		clock.Advance(1)
		require.True(t, b.Allow("k", 1))
	}
	banned(0, time.Minute)
	banned(1, 5*time.Minute)
	for range 12 { // more than the capacity of repeats
		banned(2, time.Hour)
	}
	require.True(t, b.Allow("other", 1))
	require.NoError(t, b.Strike(ctx, "other", 3))
	require.Equal(t, bans[0].Describe().Limits[0], func() ratelimit.Limit { d, _ := b.Take(ctx, "other", 1); return d.Limit }())
	clock.Advance(24 * time.Hour)
	banned(0, time.Minute)

	// Reset forgets the earlier bans, too.
	for range 2 {
		require.NoError(t, b.Strike(ctx, "k", 3))
		require.Equal(t, bans[1].Describe().Limits[0], take(t, b, 1).Limit)
		require.NoError(t, b.Reset(ctx, "k"))
		require.True(t, b.Allow("k", 1))
		banned(0, time.Minute)
	}
	require.Equal(t, []ratelimit.Limit{bans[0].Describe().Limits[0], bans[1].Describe().Limits[0], bans[2].Describe().Limits[0]}, b.Describe().Limits)
}

// A strike may read the number of earlier bans late. Then it finds the ban begun by another strike.
func TestOfManyStrikesAtOnceOneBeginsAGrowingBan(t *testing.T) {
	for range 50 {
		clock := new(ratelimittest.Clock)
		strikes := onClock(t, clock, ratelimit.FixedWindow(ratelimit.PerMinute(3)))
		repeats := onClock(t, clock, ratelimit.SlidingLog(ratelimit.Per(9, 24*time.Hour)))
		b, bans := growing(t, clock, strikes, repeats)
		for i, l := range bans {
			var wg sync.WaitGroup
			for range 16 {
				wg.Go(func() {
					for range 4 {
						assert.NoError(t, b.Strike(context.Background(), "k", 1))
					}
				})
			}
			wg.Wait()
			require.EqualValues(t, i+1, b.Stats().Begun)
			require.Equal(t, 9-i-1, remaining(t, repeats, "k"))
			d := take(t, b, 1)
			require.Equal(t, l.Describe().Limits[0], d.Limit)
			clock.Advance(d.RetryAfter)
		}
	}
}

// If repeats fails, a key gets the first ban, its strikes are forgotten, and Strike returns the error.
func TestABanBeginsWithoutItsHistory(t *testing.T) {
	clock := new(ratelimittest.Clock)
	strikes := onClock(t, clock, ratelimit.FixedWindow(ratelimit.PerMinute(3)))
	down := &resettable{engine: fails(ratelimit.ErrUnavailable)}
	b, bans := growing(t, clock, strikes, down)
	err := b.Strike(t.Context(), "k", 3)
	require.ErrorIs(t, err, ratelimit.ErrUnavailable)
	require.ErrorContains(t, err, "ban: repeats: ")
	require.Equal(t, bans[0].Describe().Limits[0], take(t, b, 1).Limit)
	require.Equal(t, 3, remaining(t, strikes, "k"))
}

func TestNewGrowingRefusesLimitersThatCannotBan(t *testing.T) {
	l := onClock(t, new(ratelimittest.Clock), jailLimit)
	var none *ratelimit.Keyed[string]
	_, err := ban.NewGrowing[string](nil, l, none, l)
	require.EqualError(t, err, "ban: NewGrowing: repeats is nil")
	_, err = ban.NewGrowing[string](nil, l, l)
	require.EqualError(t, err, "ban: NewGrowing needs at least one ban")
	_, err = ban.NewGrowing[string](nil, l, l, l, none)
	require.EqualError(t, err, "ban: NewGrowing: bans[1] is nil")
	_, err = ban.NewGrowing[string](nil, l, &struck{&engine{}}, l)
	require.EqualError(t, err, "ban: repeats: *ban_test.struck has no Peek: unsupported operation")
	_, err = ban.NewGrowing[string](nil, l, &engine{}, l)
	require.EqualError(t, err, "ban: repeats: *model.Engine has no Reset: unsupported operation")
}
