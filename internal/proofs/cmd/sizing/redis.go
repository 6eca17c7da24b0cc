package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/proofs/internal/redisserver"
	"github.com/weir-go/ratelimit/redislimit"
)

// timeout is longer than any decision, so no measurement is cut off.
const timeout = 10 * time.Second

// callers is enough callers to keep a server busy.
const callers = 64

// onRedis prints redis-server's memory and processor time.
func onRedis(ctx context.Context, out io.Writer, s settings) error {
	client, stop, err := server()
	if err != nil {
		return err
	}
	defer stop()
	t := table{head: []string{"algorithm", "keys", "bytes a key", "memory in all", "server time for a decision", "decisions a second of one core"}}
	// the rate is so slow that no key expires during the run
	slow, hour := ratelimit.TokenBucket(ratelimit.PerHour(1), 100_000), ratelimit.PerHour(100_000)
	for _, row := range []struct {
		limit ratelimit.Limit
		keys  int
	}{
		{slow, min(s.keys, 1000)},
		{ratelimit.FixedWindow(hour), min(s.keys, 1000)},
		{ratelimit.SlidingCounter(hour), min(s.keys, 1000)},
		{ratelimit.SlidingLog(ratelimit.PerHour(2000)), min(s.keys, 1000)},
		{slow, s.keys},
	} {
		u, err := spend(ctx, client, row.limit, row.keys, s)
		if err != nil {
			return err
		}
		t.add(row.limit.Algorithm.String(), count(float64(row.keys)), fmt.Sprint(u.key),
			fmt.Sprintf("%.1f MiB", u.all/(1<<20)), short(u.cpu), count(float64(time.Second)/float64(u.cpu)))
	}
	t.print(out)
	return nil
}

// server starts a redis-server, and returns a function that ends it.
func server() (*redis.Client, func(), error) {
	dir, err := os.MkdirTemp("", "sizing")
	if err != nil {
		return nil, nil, err
	}
	client, stop, err := redisserver.Run(dir)
	if err != nil {
		return nil, nil, err
	}
	return client, func() { stop(); _ = os.RemoveAll(dir) }, nil
}

// usage is a server's memory and processor time under a limit.
type usage struct {
	key int64         // one key's bytes
	all float64       // all keys' bytes, with the server's own tables
	cpu time.Duration // one decision's processor time
}

// spend spends once from each key, and measures the server's memory for the keys.
// Then it decides on the keys in turn, and measures the processor time per decision.
func spend(ctx context.Context, client *redis.Client, limit ratelimit.Limit, keys int, s settings) (u usage, err error) {
	l, err := redislimit.New(client, limit.Named("api"), &redislimit.Options{Timeout: timeout})
	if err != nil {
		return u, err
	}
	// this opens the connections first, because their buffers should not count
	if err := each(1000, func(i int) error { return take(ctx, l, i) }); err != nil {
		return u, err
	}
	if err := client.FlushAll(ctx).Err(); err != nil {
		return u, err
	}
	empty, err := figure(ctx, client, "memory", "used_memory")
	if err != nil {
		return u, err
	}
	if err := each(keys, func(i int) error { return take(ctx, l, i) }); err != nil {
		return u, err
	}
	full, err := figure(ctx, client, "memory", "used_memory")
	if err != nil {
		return u, err
	}
	u.all = full - empty
	var sizes []int64
	for range 101 {
		key, err := client.RandomKey(ctx).Result()
		if err != nil {
			return u, err
		}
		size, err := client.MemoryUsage(ctx, key).Result()
		if err != nil {
			return u, err
		}
		sizes = append(sizes, size)
	}
	u.key = median(sizes)
	var times []time.Duration
	for range s.rounds {
		before, err := used(ctx, client)
		if err != nil {
			return u, err
		}
		n := 0
		for start := time.Now(); time.Since(start) < s.per; n += 5000 {
			if err := each(5000, func(i int) error { return take(ctx, l, (n+i)%keys) }); err != nil {
				return u, err
			}
		}
		after, err := used(ctx, client)
		if err != nil {
			return u, err
		}
		times = append(times, (after-before)/time.Duration(n))
	}
	u.cpu = median(times)
	return u, nil
}

func take(ctx context.Context, l *redislimit.Limiter, i int) error {
	_, err := l.Take(ctx, text(i), 1)
	return err
}

// each calls do for 0 to n-1 from many goroutines, and returns one of the errors.
func each(n int, do func(i int) error) (err error) {
	var group sync.WaitGroup
	var once sync.Once
	for c := range callers {
		group.Go(func() {
			for i := c; i < n; i += callers {
				if e := do(i); e != nil {
					once.Do(func() { err = e })
					return
				}
			}
		})
	}
	group.Wait()
	return err
}

// used returns the server's processor time so far.
func used(ctx context.Context, client *redis.Client) (time.Duration, error) {
	user, err := figure(ctx, client, "cpu", "used_cpu_user_main_thread")
	if err != nil {
		return 0, err
	}
	sys, err := figure(ctx, client, "cpu", "used_cpu_sys_main_thread")
	return time.Duration((user + sys) * float64(time.Second)), err
}

// figure reads one figure of INFO.
func figure(ctx context.Context, client *redis.Client, section, name string) (float64, error) {
	info, err := client.Info(ctx, section).Result()
	if err != nil {
		return 0, err
	}
	m := regexp.MustCompile(`(?m)^` + name + `:([0-9.]+)`).FindStringSubmatch(info)
	if m == nil {
		return 0, fmt.Errorf("INFO %s has no %s", section, name)
	}
	return strconv.ParseFloat(m[1], 64)
}
