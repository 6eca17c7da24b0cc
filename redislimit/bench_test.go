package redislimit

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

var perCall = regexp.MustCompile(`cmdstat_evalsha:calls=(\d+),usec=(\d+)`)

// serverTime runs calls and reports the server's time for each script call.
func serverTime(b *testing.B, client *redis.Client, call func(i int)) {
	call(0) // after this call the server knows the script
	require.NoError(b, client.ConfigResetStat(context.Background()).Err())
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		call(i)
	}
	b.StopTimer()
	info, err := client.Info(context.Background(), "commandstats").Result()
	require.NoError(b, err)
	m := perCall.FindStringSubmatch(info)
	require.NotNil(b, m, info)
	calls, _ := strconv.ParseFloat(m[1], 64)
	usec, _ := strconv.ParseFloat(m[2], 64)
	b.ReportMetric(usec/calls, "server-µs/op")
}

func benchLimits() map[string]ratelimit.Limit {
	r := ratelimit.PerHour(2000)
	return map[string]ratelimit.Limit{
		"token":   ratelimit.TokenBucket(r, 1_000_000),
		"leaky":   ratelimit.LeakyBucket(r, 1_000_000),
		"fixed":   ratelimit.FixedWindow(ratelimit.PerHour(1_000_000)),
		"log":     ratelimit.SlidingLog(ratelimit.Per(2000, 24*time.Hour)),
		"counter": ratelimit.SlidingCounter(ratelimit.PerHour(1_000_000)),
	}
}

// BenchmarkServer measures the server's time for one decision on one to eight limits.
func BenchmarkServer(b *testing.B) {
	client := startServer(b).client()
	for name, limit := range benchLimits() {
		for _, n := range []int{1, 2, 4, 8} {
			for _, mix := range []string{"allow", "deny", "debt"} {
				b.Run(fmt.Sprintf("algorithm=%s/limits=%d/mix=%s", name, n, mix), func(b *testing.B) {
					layers := make([]ratelimit.Layer[string], n)
					for i := range n {
						l, err := New(client, limit, &Options{Name: fmt.Sprintf("%s%d", name, i), Timeout: 10 * time.Second})
						require.NoError(b, err)
						layers[i] = ratelimit.By(l, identity)
						require.NoError(b, l.Reset(context.Background(), mix))
						switch mix {
						case "deny":
							require.NoError(b, l.Adjust(context.Background(), mix, limit.Capacity()))
						case "debt":
							require.NoError(b, l.Adjust(context.Background(), mix, 2*limit.Capacity()))
						}
					}
					stack, err := ratelimit.All(layers...)
					require.NoError(b, err)
					serverTime(b, client, func(int) { stack.Allow(mix, 1) })
				})
			}
		}
	}
}

// BenchmarkTake measures a decision on one limit as a caller sees it.
func BenchmarkTake(b *testing.B) {
	client := startServer(b).client()
	l, err := New(client, ratelimit.TokenBucket(ratelimit.PerHour(2000), 1_000_000), &Options{Name: "take", Timeout: 10 * time.Second})
	require.NoError(b, err)
	b.Run("context=background", func(b *testing.B) {
		serverTime(b, client, func(int) { l.Allow("k", 1) })
	})
	b.Run("context=request", func(b *testing.B) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		serverTime(b, client, func(int) { l.Take(ctx, "k", 1) })
	})
}

// BenchmarkFleet measures many callers of one process, with and without sharing round trips.
func BenchmarkFleet(b *testing.B) {
	client := startServer(b).client()
	contexts := map[string]func() (context.Context, context.CancelFunc){
		"background": func() (context.Context, context.CancelFunc) { return context.Background(), func() {} },
		"request":    func() (context.Context, context.CancelFunc) { return context.WithCancel(context.Background()) },
	}
	for _, batchSize := range []int{1, 64} {
		for _, goroutines := range []int{1, 16, 128} {
			for name, contextOf := range contexts {
				b.Run(fmt.Sprintf("batch=%d/goroutines=%d/context=%s", batchSize, goroutines, name), func(b *testing.B) {
					l, err := New(client, ratelimit.TokenBucket(ratelimit.PerSecond(1000), 1_000_000), &Options{Name: "fleet", Timeout: 10 * time.Second, Batch: batchSize})
					require.NoError(b, err)
					l.Allow("k", 1)
					b.ReportAllocs()
					b.ResetTimer()
					var wg sync.WaitGroup
					var left atomic.Int64
					left.Store(int64(b.N))
					for range goroutines {
						wg.Go(func() {
							for left.Add(-1) >= 0 {
								ctx, cancel := contextOf()
								_, _ = l.Take(ctx, "k", 1)
								cancel()
							}
						})
					}
					wg.Wait()
					b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
				})
			}
		}
	}
}

// BenchmarkLog measures the server's time for a denial by a full sliding log.
func BenchmarkLog(b *testing.B) {
	client := startServer(b).client()
	l, err := New(client, ratelimit.SlidingLog(ratelimit.PerDay(2000)), &Options{Name: "log", Timeout: 10 * time.Second})
	require.NoError(b, err)
	for range 2000 {
		require.True(b, l.Allow("k", 1))
	}
	ctx := context.Background()
	b.Run("call=take", func(b *testing.B) { serverTime(b, client, func(int) { l.Take(ctx, "k", 1) }) })
	b.Run("call=reserve", func(b *testing.B) { serverTime(b, client, func(int) { l.Reserve(ctx, "k", 1, time.Minute) }) })
}

// BenchmarkSemaphore measures an Acquire and a Release without contention, and the server's time for each of the two calls.
func BenchmarkSemaphore(b *testing.B) {
	client := startServer(b).client()
	for _, n := range []int{1, 10_000} {
		b.Run(fmt.Sprintf("slots=%d", n), func(b *testing.B) {
			s, err := NewSemaphore(client, n, &SemaphoreOptions{Name: "bench", Timeout: 10 * time.Second})
			require.NoError(b, err)
			serverTime(b, client, func(int) {
				p, err := s.Acquire(context.Background(), "k", n)
				if err == nil {
					err = p.Release(context.Background())
				}
				if err != nil {
					b.Fatal(err)
				}
			})
		})
	}
}

// BenchmarkServerPair measures the server's time for a reservation and its settlement, beside other open reservations.
func BenchmarkServerPair(b *testing.B) {
	client := startServer(b).client()
	for name, limit := range map[string]ratelimit.Limit{"log": ratelimit.SlidingLog(ratelimit.PerHour(2000)), "concurrent": ratelimit.Concurrent(2000, time.Hour)} {
		for _, open := range []int{0, 8, 200, 1900} {
			b.Run(fmt.Sprintf("algorithm=%s/open=%d", name, open), func(b *testing.B) {
				l, err := New(client, limit, &Options{Name: fmt.Sprint(name, open), Timeout: 10 * time.Second})
				require.NoError(b, err)
				ctx := context.Background()
				require.NoError(b, l.Reset(ctx, "k"))
				for range open {
					_, err := l.Reserve(ctx, "k", 1, 0)
					require.NoError(b, err)
				}
				serverTime(b, client, func(int) {
					r, err := l.Reserve(ctx, "k", 1, 0)
					require.NoError(b, err)
					require.True(b, r.Allowed)
					require.NoError(b, r.Cancel())
				})
			})
		}
	}
}
