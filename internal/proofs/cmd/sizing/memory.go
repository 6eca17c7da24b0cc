package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/keyfunc"
)

// memory prints how much the heap grows per key.
func memory(_ context.Context, out io.Writer, s settings) error {
	keys := table{head: []string{"algorithm", "key", "bytes a key", "keys in 1 GiB"}}
	row := func(algorithm, key string, bytes float64) {
		keys.add(algorithm, key, fmt.Sprintf("%.0f", bytes), count(1<<30/bytes))
	}
	hour := ratelimit.PerHour(1000)
	for _, limit := range []ratelimit.Limit{
		ratelimit.TokenBucket(hour, 1000), ratelimit.LeakyBucket(hour, 1000), ratelimit.FixedWindow(hour), ratelimit.SlidingCounter(hour),
	} {
		row(limit.Algorithm.String(), "string, 11 bytes", heap(s, limit, 1, text))
	}
	for _, spent := range []int{1, 10, 100} {
		row(fmt.Sprintf("sliding-log, %d spendings", spent), "string, 11 bytes", heap(settings{keys: max(1, s.keys/spent)}, ratelimit.SlidingLog(hour), spent, text))
	}
	bucket := ratelimit.TokenBucket(hour, 1000)
	row("token-bucket", "string, 40 bytes", heap(s, bucket, 1, func(i int) string { return fmt.Sprintf("%040d", i) }))
	row("token-bucket", "int", heap(s, bucket, 1, func(i int) int { return i }))
	row("token-bucket", "netip.Addr", heap(s, bucket, 1, address))
	row("token-bucket", "keyfunc.Hash", heap(s, bucket, 1, func(i int) keyfunc.Hash { return keyfunc.HashOf(text(i)) }))
	keys.print(out)
	return nil
}

func text(i int) string { return fmt.Sprintf("user:%06d", i) }

func address(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
}

// heap counts the bytes per key, for keys that have spent several
// times. It includes the key's text, because the limiter keeps a copy.
func heap[K comparable](s settings, limit ratelimit.Limit, spent int, key func(int) K) float64 {
	before := live()
	l := ratelimit.Must(ratelimit.New(limit, &ratelimit.Options[K]{MaxKeys: s.keys}))
	for i := range s.keys {
		k := key(i)
		for range spent {
			l.Allow(k, 1)
		}
	}
	grown := live() - before
	runtime.KeepAlive(l)
	return float64(grown) / float64(s.keys)
}

func live() int64 {
	runtime.GC()
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return int64(s.HeapAlloc)
}

// cores prints decisions per second by GOMAXPROCS.
func cores(_ context.Context, out io.Writer, s settings) error {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	t := table{head: []string{"GOMAXPROCS", "one key", "10 000 keys", count(float64(s.keys)) + " keys"}}
	limit := ratelimit.TokenBucket(ratelimit.PerSecond(1_000_000_000), 1_000_000_000)
	warm := func(n int) (*ratelimit.Keyed[string], []string) {
		l, keys := ratelimit.Must(ratelimit.New(limit, &ratelimit.Options[string]{MaxKeys: n})), make([]string, n)
		for i := range keys {
			keys[i] = text(i)
			l.Allow(keys[i], 1)
		}
		return l, keys
	}
	many, manyKeys := warm(s.keys)
	some, someKeys := warm(min(s.keys, 10_000))
	for n := 1; n <= 2*runtime.NumCPU(); n *= 2 {
		runtime.GOMAXPROCS(n)
		name := fmt.Sprint(n)
		if n > runtime.NumCPU() {
			name += fmt.Sprintf(", on %d cores", runtime.NumCPU())
		}
		var one, ten, all []float64
		for range s.rounds {
			one = append(one, rate(some, someKeys[:1], n, s.per))
			ten = append(ten, rate(some, someKeys, n, s.per))
			all = append(all, rate(many, manyKeys, n, s.per))
		}
		t.add(name, count(median(one)), count(median(ten)), count(median(all)))
	}
	t.print(out)
	return nil
}

// rate returns how many decisions n goroutines make per second.
func rate(l *ratelimit.Keyed[string], keys []string, n int, per time.Duration) float64 {
	var decisions atomic.Int64
	var group sync.WaitGroup
	start := time.Now()
	for g := range n {
		group.Go(func() {
			at, made := uint64(g)*0x9E3779B97F4A7C15, 0
			for time.Since(start) < per {
				for range 1000 {
					at = at*6364136223846793005 + 1442695040888963407 // a cheap random generator, which picks keys evenly
					l.Allow(keys[(at>>33)%uint64(len(keys))], 1)
				}
				made += 1000
			}
			decisions.Add(int64(made))
		})
	}
	group.Wait()
	return float64(decisions.Load()) / time.Since(start).Seconds()
}
