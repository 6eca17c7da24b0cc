package benchmarks

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/go-chi/httprate"
	httprateredis "github.com/go-chi/httprate-redis"
	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/goredisstore.v9"
	ulule "github.com/ulule/limiter/v3"
	uluredis "github.com/ulule/limiter/v3/drivers/store/redis"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/redislimit"
)

// decide makes one decision of cost 1 on a key.
type decide func(key string) (allowed bool, err error)

// redisPeer is a limiter with budgets in Redis, in its usual form.
type redisPeer struct {
	name string
	new  func(client *redis.Client, perHour int) decide
	// sends lists one decision's commands. A command in a script or a transaction counts as a part of it.
	sends []string
}

var redisPeers = []redisPeer{
	{"redislimit", func(c *redis.Client, n int) decide { return newRedisLimit(c, n, 1) }, []string{"eval", "evalsha"}},
	{"redislimit-8-limits", func(c *redis.Client, n int) decide { return newRedisLimit(c, n, 8) }, []string{"eval", "evalsha"}},
	{"redis_rate", newRedisRate, []string{"eval", "evalsha"}},
	{"throttled", newThrottledRedis, []string{"time", "get", "setnx", "expire", "eval"}},
	{"ulule", newUluleRedis, []string{"eval", "evalsha"}},
	{"httprate", newHTTPRateRedis, []string{"mget", "multi", "exec"}},
	{"script-floor", newEmptyScript, []string{"eval", "evalsha"}},
}

// redisTimeout is much longer than the default, so a busy machine cuts off no measurement.
const redisTimeout = 10 * time.Second

func newRedisLimit(client *redis.Client, perHour, limits int) decide {
	ctx := context.Background()
	limit := ratelimit.TokenBucket(ratelimit.PerHour(perHour), perHour)
	var layers []ratelimit.Layer[string]
	var last *redislimit.Limiter
	for i := range limits {
		last = must(redislimit.New(client, limit, &redislimit.Options{Name: fmt.Sprint("b", i), Timeout: redisTimeout}))
		layers = append(layers, ratelimit.By(last, func(key string) (string, error) { return key, nil }))
	}
	if limits == 1 {
		return func(key string) (bool, error) {
			d, err := last.Take(ctx, key, 1)
			return d.Allowed, err
		}
	}
	all := must(ratelimit.All(layers...))
	return func(key string) (bool, error) {
		d, err := all.Take(ctx, key, 1)
		return d.Allowed, err
	}
}

func newRedisRate(client *redis.Client, perHour int) decide {
	ctx := context.Background()
	l := redis_rate.NewLimiter(client)
	limit := redis_rate.PerHour(perHour)
	return func(key string) (bool, error) {
		r, err := l.Allow(ctx, key, limit)
		return err == nil && r.Allowed > 0, err
	}
}

// newEmptyScript returns a limiter that calls an empty script. Limiters with a script cannot be faster.
func newEmptyScript(client *redis.Client, perHour int) decide {
	ctx := context.Background()
	answer := int64(0)
	if perHour > shutPerHour {
		answer = 1
	}
	script := redis.NewScript(fmt.Sprint("return ", answer))
	return func(key string) (bool, error) {
		n, err := script.Run(ctx, client, []string{key}).Int64()
		return n == 1, err
	}
}

func newThrottledRedis(client *redis.Client, perHour int) decide {
	ctx := context.Background()
	quota := throttled.RateQuota{MaxRate: throttled.PerHour(perHour), MaxBurst: perHour - 1}
	l := must(throttled.NewGCRARateLimiterCtx(must(goredisstore.NewCtx(client, "throttled:")), quota))
	return func(key string) (bool, error) {
		limited, _, err := l.RateLimitCtx(ctx, key, 1)
		return !limited, err
	}
}

func newUluleRedis(client *redis.Client, perHour int) decide {
	ctx := context.Background()
	l := ulule.New(must(uluredis.NewStore(client)), ulule.Rate{Period: time.Hour, Limit: int64(perHour)})
	return func(key string) (bool, error) {
		c, err := l.Get(ctx, key)
		return !c.Reached, err
	}
}

// newHTTPRateRedis uses the counter as httprate's middleware does, without header fields. It has
// no lock: the middleware's own lock lets a process send only one request at a time to Redis.
func newHTTPRateRedis(client *redis.Client, perHour int) decide {
	host, port := hostPort(client.Options().Addr)
	counter := must(httprateredis.NewRedisLimitCounter(&httprateredis.Config{
		Host: host, Port: port, WindowLength: time.Hour, FallbackDisabled: true, FallbackTimeout: redisTimeout,
	}))
	counter.Config(perHour, time.Hour)
	return func(key string) (bool, error) { return httprateDecide(counter, perHour, key) }
}

func httprateDecide(counter httprate.LimitCounter, perHour int, key string) (bool, error) {
	now := time.Now().UTC()
	window := now.Truncate(time.Hour)
	curr, prev, err := counter.Get(key, window, window.Add(-time.Hour))
	used := float64(prev)*float64(time.Hour-now.Sub(window))/float64(time.Hour) + float64(curr)
	if err != nil || int(math.Round(used))+1 > perHour {
		return false, err
	}
	return true, counter.IncrementBy(key, window, 1)
}
