package redislimit

import (
	"context"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/ban"
	"github.com/weir-go/ratelimit/chain"
	"github.com/weir-go/ratelimit/lease"
)

func limiterOn(t testing.TB, client redis.UniversalClient, limit ratelimit.Limit) *Limiter {
	t.Helper()
	l, err := New(client, limit, &Options{Name: limit.Name, Timeout: 10 * time.Second})
	require.NoError(t, err)
	return l
}

// dial starts a server and returns its client. Both end with the test.
func dial(t testing.TB) *redis.Client {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: startServer(t).addr})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// changes counts the changes to the server's data.
func changes(t testing.TB, client *redis.Client) string {
	t.Helper()
	info, err := client.Info(t.Context(), "persistence").Result()
	require.NoError(t, err)
	_, rest, ok := strings.Cut(info, "rdb_changes_since_last_save:")
	require.True(t, ok)
	n, _, _ := strings.Cut(rest, "\r\n")
	return n
}

// Two processes share one ban. Each has limiters of its own on the same server.
func TestABanOnRedisBeginsOnceForTheWholeFleet(t *testing.T) {
	client := dial(t)
	limit := ratelimit.FixedWindow(ratelimit.PerHour(2)).Named("requests")
	strikes := ratelimit.FixedWindow(ratelimit.PerHour(5)).Named("strikes")
	bans := ratelimit.FixedWindow(ratelimit.Per(1, time.Hour)).Named("bans")
	var fleet []*ban.Limiter[string]
	for range 4 {
		b, err := ban.New[string](limiterOn(t, client, limit), limiterOn(t, client, strikes), limiterOn(t, client, bans))
		require.NoError(t, err)
		fleet = append(fleet, b)
	}
	for _, key := range []string{"a", "b", "c"} {
		require.True(t, fleet[0].Allow(key, 2))
		before := uint64(0)
		for _, b := range fleet {
			before += b.Stats().Begun
		}
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Go(func() {
				b := fleet[i%len(fleet)]
				if i%3 == 0 {
					assert.NoError(t, b.Strike(context.Background(), key, 2))
				} else {
					assert.False(t, b.Allow(key, 1))
				}
			})
		}
		wg.Wait()
		begun := uint64(0)
		for _, b := range fleet {
			assert.Zero(t, b.Stats().Failed)
			begun += b.Stats().Begun
		}
		require.Equal(t, before+1, begun)
		// While the key is banned, no process writes anything.
		written := changes(t, client)
		for _, b := range fleet {
			d, err := b.Take(t.Context(), key, 1)
			require.NoError(t, err)
			require.Equal(t, bans, d.Limit)
			require.Greater(t, d.RetryAfter, 59*time.Minute)
			require.NoError(t, b.Strike(t.Context(), key, 3))
			granted, _, err := ratelimit.TakeUpTo[string](t.Context(), b, key, 3)
			require.NoError(t, err)
			require.Zero(t, granted)
		}
		require.Equal(t, written, changes(t, client))
		require.NoError(t, fleet[1].Reset(t.Context(), key))
		require.NoError(t, ratelimit.Reset[string](t.Context(), fleet[2], key))
		require.True(t, fleet[3].Allow(key, 2))
	}
}

// The parts of a page go to several processes. Their denials are one
// strike of the fleet, because the processes share a log of strikes.
func TestThePartsOfAPageAreOneStrikeForTheWholeFleet(t *testing.T) {
	client := dial(t)
	limit := ratelimit.FixedWindow(ratelimit.PerHour(20)).Named("requests")
	strikes := limiterOn(t, client, ratelimit.SlidingLog(ratelimit.PerDay(3)).Named("strikes"))
	bans := limiterOn(t, client, ratelimit.FixedWindow(ratelimit.PerHour(1)).Named("bans"))
	var fleet []*ban.Limiter[string]
	for range 8 {
		b, err := ban.New[string](limiterOn(t, client, limit), strikes, bans)
		require.NoError(t, err)
		fleet = append(fleet, b)
	}
	for range 2 {
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() { fleet[i%len(fleet)].Allow("k", 1) })
		}
		wg.Wait()
		for _, b := range fleet {
			require.Equal(t, ban.Stats{}, b.Stats())
		}
		d, err := strikes.Peek(t.Context(), "k", 1)
		require.NoError(t, err)
		require.Equal(t, 2, d.Remaining)
	}
}

// The processes share the history by which bans grow.
func TestABanOnRedisGrowsForTheWholeFleet(t *testing.T) {
	client := dial(t)
	on := func(limit ratelimit.Limit) *Limiter { return limiterOn(t, client, limit) }
	var fleet []*ban.Limiter[string]
	ends := []*Limiter{}
	for range 3 {
		short := on(ratelimit.FixedWindow(ratelimit.Per(1, time.Hour)).Named("ban-1"))
		long := on(ratelimit.FixedWindow(ratelimit.Per(1, 5*time.Hour)).Named("ban-2"))
		b, err := ban.NewGrowing[string](nil, on(ratelimit.SlidingLog(ratelimit.PerHour(2)).Named("strikes")),
			on(ratelimit.SlidingLog(ratelimit.PerDay(9)).Named("repeats")), short, long)
		require.NoError(t, err)
		fleet, ends = append(fleet, b), []*Limiter{short, long}
	}
	for i, want := range []string{"ban-1", "ban-2", "ban-2"} {
		var wg sync.WaitGroup
		for n := range 12 {
			wg.Go(func() { assert.NoError(t, fleet[n%3].Strike(context.Background(), "k", 1)) })
		}
		wg.Wait()
		d, err := fleet[i].Take(t.Context(), "k", 1)
		require.NoError(t, err)
		require.Equal(t, want, d.Limit.Name)
		require.EqualValues(t, i+1, fleet[0].Stats().Begun+fleet[1].Stats().Begun+fleet[2].Stats().Begun)
		for _, l := range ends {
			require.NoError(t, l.Reset(t.Context(), "k")) // ends the ban
		}
	}
	require.NoError(t, fleet[1].Reset(t.Context(), "k"))
	require.NoError(t, fleet[2].Strike(t.Context(), "k", 2))
	d, err := fleet[0].Take(t.Context(), "k", 1)
	require.NoError(t, err)
	require.Equal(t, "ban-1", d.Limit.Name)
}

// Bans in memory come before a limit on Redis, so a banned key causes no call to the server.
func TestBansInMemorySaveTheRoundTrip(t *testing.T) {
	client := dial(t)
	limit := ratelimit.FixedWindow(ratelimit.PerHour(1)).Named("requests")
	strikes := ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerHour(1)), nil))
	bans := ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerHour(1)).Named("bans"), nil))
	b, err := ban.New[string](limiterOn(t, client, limit), strikes, bans)
	require.NoError(t, err)
	require.True(t, b.Allow("k", 1))
	d, err := b.Take(t.Context(), "k", 1)
	require.NoError(t, err)
	require.Equal(t, bans.Describe().Limits[0], d.Limit)
	require.NoError(t, client.Close())
	for range 9 {
		d, err = b.Take(t.Context(), "k", 1)
		require.NoError(t, err)
		require.Equal(t, bans.Describe().Limits[0], d.Limit)
	}
	_, err = b.Take(t.Context(), "another", 1)
	require.ErrorIs(t, err, ratelimit.ErrUnavailable, "and that is no strike")
	require.Equal(t, uint64(1), b.Stats().Begun)
}

func TestTakeUpToOnRedisGrantsNoMoreThanThereIs(t *testing.T) {
	const capacity = 1000
	client := dial(t)
	limits := map[string]ratelimit.Limit{
		"bucket":  ratelimit.TokenBucket(ratelimit.PerDay(1), capacity),
		"leaky":   ratelimit.LeakyBucket(ratelimit.PerDay(1), capacity),
		"window":  ratelimit.FixedWindow(ratelimit.PerDay(capacity)),
		"log":     ratelimit.SlidingLog(ratelimit.PerDay(capacity)),
		"counter": ratelimit.SlidingCounter(ratelimit.PerDay(capacity)),
	}
	for name, limit := range limits {
		limit = limit.Named(name)
		l := limiterOn(t, client, limit)
		layered, err := ratelimit.All(ratelimit.By(l, func(k string) (string, error) { return k, nil }))
		require.NoError(t, err)
		leased, err := lease.New[string](limiterOn(t, client, limit.Named(name+"-leased")), &lease.Options[string]{MaxBatch: 50})
		require.NoError(t, err)
		chain, err := chain.New[string](ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerDay(1), 2*capacity), nil)), l)
		require.NoError(t, err)
		for kind, up := range map[string]ratelimit.Limiter[string]{"limiter": l, "stack": layered, "lease": leased, "chain": chain} {
			var sum atomic.Int64
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() {
					for {
						n, d, err := ratelimit.TakeUpTo(context.Background(), up, kind, 7+i*i)
						if !assert.NoError(t, err) || n == 0 && d.Remaining == 0 {
							return
						}
						sum.Add(int64(n))
					}
				})
			}
			wg.Wait()
			assert.Equal(t, int64(capacity), sum.Load(), "%s: %s", name, kind)
			granted, d, err := ratelimit.TakeUpTo(t.Context(), up, kind, math.MaxInt)
			require.NoError(t, err)
			assert.Zero(t, granted)
			assert.Positive(t, d.RetryAfter)
		}
		require.NoError(t, flushAll(leased, t.Context()))
	}
}
