// Instructions counts a Redis server's instructions for one call, for redislimit/README.md. Unlike
// times, these figures do not depend on other load on the machine. It needs valgrind. Run it in proofs:
//
//	go run ./cmd/instructions            the table, as Markdown: three to six minutes
//	go run ./cmd/instructions -calls 500 fewer calls for a row
//
// It starts redis-server, or the program in REDIS_SERVER, under valgrind --tool=cachegrind, twice
// for each row. The same calls warm up both servers. Then the first server executes 1,200 calls,
// and the second 2,000 more. The figure is the difference, divided by 2,000. So it includes neither
// a server's start and end, nor a script's first call. One connection sends one call at a time.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/proc"
	"github.com/weir-go/ratelimit/redislimit"
)

// row is one kind of call. Prepare returns a function that makes
// one. The function returns an error if the result is not the row's.
type row struct {
	name    string
	prepare func(*redis.Client) (call func(context.Context) error, err error)
}

var rows = []row{
	{"`EVALSHA` of an empty script", script("return ''")},
	{"a script with `TIME` and the `GET` of a missing key", script("local t = redis.call('TIME')\nredis.call('GET', KEYS[1])\nreturn t[1]")},
	{"`redislimit`, one token bucket, denied", decision(1, false)},
	{"`redislimit`, one token bucket, allowed", decision(1, true)},
	{"`redis_rate`, denied", redisRate(false)},
	{"`redis_rate`, allowed", redisRate(true)},
	{"`redislimit`, eight token buckets, denied", decision(8, false)},
	{"`redislimit`, eight token buckets, allowed", decision(8, true)},
}

// Both limiters have two buckets, but only one bucket is ever exhausted. Units are regained
// slowly, so the stored time to live outlasts all calls, as for most limits' keys.
const (
	perHour = 10
	large   = 100_000
)

func script(text string) func(*redis.Client) (func(context.Context) error, error) {
	return func(c *redis.Client) (func(context.Context) error, error) {
		s := redis.NewScript("#!lua\n" + text)
		return func(ctx context.Context) error { return s.Run(ctx, c, []string{"ratelimit:api:{key}"}, "word").Err() }, nil
	}
}

// burst returns the burst of a bucket that allows either all calls or only the first one.
func burst(allowed bool) int {
	if allowed {
		return large
	}
	return 1
}

// decision makes one decision on several token buckets. Each one has its own limiter.
func decision(buckets int, allowed bool) func(*redis.Client) (func(context.Context) error, error) {
	return func(c *redis.Client) (func(context.Context) error, error) {
		layers := make([]ratelimit.Layer[string], buckets)
		for i := range layers {
			l, err := redislimit.New(c, ratelimit.TokenBucket(ratelimit.PerHour(perHour), burst(allowed)),
				&redislimit.Options{Name: fmt.Sprint("api", i), Timeout: time.Minute})
			if err != nil {
				return nil, err
			}
			layers[i] = ratelimit.By(l, func(key string) (string, error) { return key, nil })
		}
		l, err := ratelimit.All(layers...)
		if err != nil {
			return nil, err
		}
		first := true
		return func(ctx context.Context) error {
			d, err := l.Take(ctx, "key", 1)
			return expect(d.Allowed, allowed, &first, err)
		}, nil
	}
}

func redisRate(allowed bool) func(*redis.Client) (func(context.Context) error, error) {
	return func(c *redis.Client) (func(context.Context) error, error) {
		l := redis_rate.NewLimiter(c)
		limit := redis_rate.Limit{Rate: perHour, Period: time.Hour, Burst: burst(allowed)}
		first := true
		return func(ctx context.Context) error {
			res, err := l.Allow(ctx, "key", limit)
			return expect(err == nil && res.Allowed > 0, allowed, &first, err)
		}, nil
	}
}

// expect returns an error if the decision differs from the row. The first call is always allowed.
func expect(is, want bool, first *bool, err error) error {
	was := *first
	*first = false
	if err == nil && is != (want || was) {
		err = fmt.Errorf("a call was decided otherwise: allowed is %v", is)
	}
	return err
}

// warm is how many calls precede the counted ones.
const warm = 200

func main() {
	calls := flag.Int("calls", 2000, "how many calls are counted for each row")
	flag.Parse()
	if err := run(context.Background(), os.Stdout, *calls); err != nil {
		fmt.Fprintln(os.Stderr, "instructions:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, calls int) error {
	if calls < 2 {
		return fmt.Errorf("calls %d must be above one", calls)
	}
	path, err := proc.RedisServer()
	if err != nil {
		return err
	}
	version, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s\n\n| one call | instructions |\n|---|---:|\n", strings.TrimSpace(string(version)))
	for _, r := range rows {
		few, err := count(ctx, path, r, warm+calls/2)
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		many, err := count(ctx, path, r, warm+calls/2+calls)
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		fmt.Fprintf(out, "| %s | %d |\n", r.name, (many-few)/int64(calls))
	}
	return nil
}

var total = regexp.MustCompile(`I\s+refs:\s+([\d,]+)`)

// count starts a server, makes calls, and returns how many instructions the server has executed in all.
func count(ctx context.Context, path string, r row, calls int) (int64, error) {
	dir, err := os.MkdirTemp("", "instructions")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	addr := l.Addr().String()
	_, port, _ := net.SplitHostPort(addr) // the address of a listener has both parts
	if err := l.Close(); err != nil {     // only the port is needed
		return 0, err
	}
	// The server's periodic work should not count, so it runs as seldom as possible: once a second.
	cmd := exec.CommandContext(ctx, "valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", path, "--port", port, "--bind", "127.0.0.1",
		"--save", "", "--appendonly", "no", "--dir", dir, "--hz", "1", "--dynamic-hz", "no", "--logfile", dir+"/log")
	var report strings.Builder
	cmd.Stderr = &report
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	client := redis.NewClient(&redis.Options{Addr: addr, PoolSize: 1, ReadTimeout: time.Minute, MaxRetries: -1})
	defer client.Close()
	err = send(ctx, client, r, calls)
	if err == nil {
		_ = client.Shutdown(ctx).Err() // the server closes the connection without an answer
	} else {
		_ = cmd.Process.Kill()
	}
	if ended := cmd.Wait(); err == nil {
		err = ended
	}
	if err != nil {
		return 0, fmt.Errorf("%w\n%s", err, report.String())
	}
	found := total.FindStringSubmatch(report.String())
	if found == nil {
		return 0, fmt.Errorf("valgrind has reported no sum:\n%s", report.String())
	}
	return strconv.ParseInt(strings.ReplaceAll(found[1], ",", ""), 10, 64)
}

// send makes the calls once the server answers.
func send(ctx context.Context, client *redis.Client, r row, calls int) error {
	up := errors.New("the server does not answer")
	for try := 0; up != nil; try++ {
		if up = client.Ping(ctx).Err(); up != nil && try == 300 {
			return up
		}
		if up != nil {
			time.Sleep(100 * time.Millisecond)
		}
	}
	call, err := r.prepare(client)
	if err != nil {
		return err
	}
	for range calls {
		if err := call(ctx); err != nil {
			return err
		}
	}
	return nil
}
