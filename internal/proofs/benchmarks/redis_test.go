package benchmarks

import (
	"context"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/proofs/internal/callers"
	"github.com/weir-go/ratelimit/internal/proofs/internal/redisserver"
	"github.com/weir-go/ratelimit/redislimit"
)

func hostPort(addr string) (string, uint16) {
	host, text, _ := net.SplitHostPort(addr)
	return host, uint16(must(strconv.ParseUint(text, 10, 16)))
}

// The limits: one is never reached, one is reached at once, and one lies in between.
const (
	openPerHour = 1_000_000
	shutPerHour = 1
	slowPerHour = 10 // so slow that no stored state expires during the run
)

var usec = regexp.MustCompile(`cmdstat_(\w+):calls=\d+,usec=(\d+)`)

// serverTime returns the server's time for the commands so far, in µs.
func serverTime(b *testing.B, client *redis.Client, commands []string) (total float64) {
	found := false
	info, err := client.Info(context.Background(), "commandstats").Result()
	require.NoError(b, err)
	for _, m := range usec.FindAllStringSubmatch(info, -1) {
		if slices.Contains(commands, m[1]) {
			found = true
			total += must(strconv.ParseFloat(m[2], 64))
		}
	}
	require.True(b, found, info)
	return total
}

// mixes lists all decisions' outcomes.
var mixes = []struct {
	name    string
	perHour int
}{{"allowed", openPerHour}, {"denied", shutPerHour}}

// busyCallers is enough callers to keep the server busy.
const busyCallers = 16

// BenchmarkRedisServer has one caller, so the server is idle between two calls. BenchmarkRedisBusy has several
// callers, each with its own key. server-µs/op is the server's time per decision: the median of slices.
func BenchmarkRedisServer(b *testing.B) { serverTimes(b, 1) }
func BenchmarkRedisBusy(b *testing.B)   { serverTimes(b, busyCallers) }

func serverTimes(b *testing.B, callers int) {
	client, keys := redisserver.Start(b), makeKeys(callers)
	for _, mix := range mixes {
		for _, p := range redisPeers {
			b.Run("mix="+mix.name+"/peer="+p.name, func(b *testing.B) {
				require.NoError(b, client.FlushAll(context.Background()).Err())
				take := p.new(client, mix.perHour)
				inTurn(take, keys, 3) // loads the script, and exhausts the limits, if they can be exhausted
				b.ReportAllocs()
				b.ResetTimer()
				var times []float64
				for left := b.N; left > 0; left -= slice {
					times = append(times, serverSlice(b, client, p, mix.name == "allowed", take, keys, min(left, slice)))
				}
				slices.Sort(times)
				b.ReportMetric(times[len(times)/2], "server-µs/op")
			})
		}
	}
}

// slice is how many decisions are measured together. The result is the slices'
// median, so it does not move if other work on the machine disturbs some of them.
const slice = 500

// serverSlice makes about n decisions, with one caller per key, and returns the server's time per decision, in µs.
func serverSlice(b *testing.B, client *redis.Client, p redisPeer, want bool, take decide, keys []string, n int) float64 {
	b.StopTimer()
	require.NoError(b, client.ConfigResetStat(context.Background()).Err())
	each := max(1, n/len(keys))
	n = each * len(keys)
	b.StartTimer()
	allowed, errs := inTurn(take, keys, each)
	b.StopTimer()
	defer b.StartTimer()
	if errs > 0 || want && allowed != n || !want && allowed != 0 {
		b.Fatal(allowed, "allowed of", n, "with errors:", errs)
	}
	return serverTime(b, client, p.sends) / float64(n)
}

// inTurn makes n decisions, with one caller per key.
func inTurn(take decide, keys []string, n int) (allowed, errs int) {
	var yes, failed atomic.Int64
	var wg sync.WaitGroup
	for _, key := range keys {
		wg.Go(func() {
			for range n {
				switch ok, err := take(key); {
				case err != nil:
					failed.Add(1)
				case ok:
					yes.Add(1)
				}
			}
		})
	}
	wg.Wait()
	return int(yes.Load()), int(failed.Load())
}

// BenchmarkRedisLoad has many callers in one process. Each decides on a thousand keys, one after the other.
func BenchmarkRedisLoad(b *testing.B) {
	client := redisserver.Start(b)
	keys := makeKeys(1000)
	for _, goroutines := range []int{1, 16, 128} {
		for _, p := range redisPeers {
			b.Run(fmt.Sprintf("goroutines=%d/peer=%s", goroutines, p.name), func(b *testing.B) {
				require.NoError(b, client.FlushAll(context.Background()).Err())
				take := p.new(client, openPerHour)
				load(take, keys, goroutines, 10*goroutines) // connects, and loads the scripts
				b.ResetTimer()
				l := load(take, keys, goroutines, b.N)
				b.StopTimer()
				l.report(b)
			})
		}
	}
}

// taken has the callers' results.
type taken struct {
	times  []time.Duration // how long the decisions took
	rates  []float64       // the decisions a second in each slice
	failed atomic.Int64
}

// loadSlice is how many decisions the callers make before they wait for each other. The result is the
// median of the slices' rates, so it does not move if other work on the machine disturbs some of them.
const loadSlice = 4000

// load makes n decisions with all callers together.
func load(take decide, keys []string, goroutines, n int) *taken {
	t := &taken{times: make([]time.Duration, n)}
	for from := 0; from < n; from += loadSlice {
		to := min(from+loadSlice, n)
		began := time.Now()
		t.slice(take, keys, goroutines, from, to)
		t.rates = append(t.rates, float64(to-from)/time.Since(began).Seconds())
	}
	return t
}

func (t *taken) slice(take decide, keys []string, goroutines, from, to int) {
	var next atomic.Int64
	next.Store(int64(from))
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(to); i = next.Add(1) - 1 {
				began := time.Now()
				if allowed, err := take(keys[i*7919%int64(len(keys))]); err != nil || !allowed {
					t.failed.Add(1)
				}
				t.times[i] = time.Since(began)
			}
		})
	}
	wg.Wait()
}

func (t *taken) report(b *testing.B) {
	slices.Sort(t.times)
	slices.Sort(t.rates)
	n := len(t.times)
	b.ReportMetric(t.rates[len(t.rates)/2], "decisions/s")
	b.ReportMetric(float64(t.times[n/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(t.times[n*99/100].Microseconds()), "p99-µs")
	b.ReportMetric(100*float64(t.failed.Load())/float64(n), "failed-%")
}

// BenchmarkRedisMemory reports Redis's memory per key.
func BenchmarkRedisMemory(b *testing.B) {
	client, ctx := redisserver.Start(b), context.Background()
	for _, p := range redisPeers {
		b.Run("peer="+p.name, func(b *testing.B) {
			require.NoError(b, client.FlushAll(ctx).Err())
			allowed, err := p.new(client, slowPerHour)("user:1")
			require.NoError(b, err)
			require.True(b, allowed)
			keys, total := must(client.Keys(ctx, "*").Result()), int64(0)
			if p.name == "script-floor" {
				b.Skip("it keeps nothing")
			}
			for _, key := range keys {
				total += must(client.MemoryUsage(ctx, key).Result())
			}
			for range b.N { // the memory is measured once; the loop takes no time
			}
			require.NotEmpty(b, keys)
			b.ReportMetric(float64(total), "B/key")
			b.ReportMetric(float64(len(keys)), "redis-keys")
		})
	}
}

// BenchmarkLimits has 16 callers on a Redis server. Package sqltest measures the same on PostgreSQL.
func BenchmarkLimits(b *testing.B) {
	client := redisserver.Start(b)
	for _, c := range callers.Cases() {
		l := must(redislimit.New(client, c.Limit, &redislimit.Options{Timeout: time.Minute}))
		c.Measure(b, "redislimit", func(ctx context.Context, key string) (bool, error) {
			d, err := l.Take(ctx, key, 1)
			return d.Allowed, err
		})
	}
}
