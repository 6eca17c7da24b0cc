package benchmarks

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/redistest"
	"github.com/weir-go/ratelimit/redislimit"
)

// BenchmarkRedisServers measures decisions by many goroutines on one server, on a Ring of two,
// and on a cluster of three. Like a request, each goroutine has its own cancellable context.
func BenchmarkRedisServers(b *testing.B) {
	cluster := redistest.StartCluster(b, 3, false)
	servers := map[string][]*redistest.Server{
		"plain":   {redistest.Start(b)},
		"ring":    {redistest.Start(b), redistest.Start(b)},
		"cluster": cluster.Nodes,
	}
	clients := map[string]redis.UniversalClient{
		"plain":   redis.NewClient(&redis.Options{Addr: servers["plain"][0].Addr}),
		"ring":    redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": servers["ring"][0].Addr, "b": servers["ring"][1].Addr}}),
		"cluster": redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs()}),
	}
	for _, c := range clients {
		b.Cleanup(func() { require.NoError(b, c.Close()) })
	}
	for kind, client := range clients {
		limit := ratelimit.TokenBucket(ratelimit.PerSecond(1000), 1_000_000)
		ours := must(redislimit.New(client, limit, &redislimit.Options{Name: "bench", Timeout: redisTimeout}))
		theirs, theirLimit := redis_rate.NewLimiter(client), redis_rate.Limit{Rate: 1000, Burst: 1_000_000, Period: 1e9}
		for name, take := range map[string]func(ctx context.Context, key string) error{
			"redislimit": func(ctx context.Context, key string) error { _, err := ours.Take(ctx, key, 1); return err },
			"redis_rate": func(ctx context.Context, key string) error { _, err := theirs.Allow(ctx, key, theirLimit); return err },
		} {
			for _, request := range []bool{false, true} {
				b.Run(fmt.Sprintf("client=%s/limiter=%s/goroutines=128/request=%v", kind, name, request), func(b *testing.B) {
					require.NoError(b, take(context.Background(), "k"))
					b.ReportAllocs()
					before := processorTime(b, servers[kind])
					b.ResetTimer()
					atOnce(b, 128, func(g, i int) error {
						ctx := context.Background()
						if request {
							var cancel context.CancelFunc
							ctx, cancel = context.WithCancel(ctx)
							defer cancel()
						}
						return take(ctx, strconv.Itoa((g*7+i)%100))
					})
					b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
					b.ReportMetric((processorTime(b, servers[kind])-before)/float64(b.N), "servers-µs/decision")
				})
			}
		}
	}
}

var used = regexp.MustCompile(`used_cpu_(?:user|sys)_main_thread:([\d.]+)`)

// processorTime returns the servers' processor time so far, in µs.
func processorTime(b *testing.B, servers []*redistest.Server) (total float64) {
	for _, s := range servers {
		for _, m := range used.FindAllStringSubmatch(must(s.Do("INFO", "cpu")), -1) {
			total += 1e6 * must(strconv.ParseFloat(m[1], 64))
		}
	}
	require.Positive(b, total)
	return total
}

// atOnce shares b.N calls among goroutines.
func atOnce(b *testing.B, goroutines int, call func(g, i int) error) {
	var left, failed atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := 0; left.Add(-1) >= 0; i++ {
				if call(g, i) != nil {
					failed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	require.Zero(b, failed.Load())
}
