package redislimit

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/ratelimit"
)

// PerCall is a limiter to which each call brings its rate. Make one with [On]. It is safe for
// concurrent use.
type PerCall struct {
	stack *Layered[rated]
	err   error // of On
}

// rated is a key and what it is held to.
type rated struct {
	key  string
	rate ratelimit.Rate
}

// On returns a limiter without options, to which each call brings its rate:
//
//	limiter := redislimit.On(client)
//	…
//	d, err := limiter.Take(ctx, "user:42", 1, ratelimit.PerSecond(10))
//
// It is for a first try, and for users of redis_rate, whose Allow(ctx, key, PerSecond(10)) it
// replaces. All that needs more is made by [New]: another algorithm, burst, Timeout or Name, reservations,
// several limits at once. On a nil client each call fails.
func On(client redis.UniversalClient) *PerCall {
	l, err := New(client, ratelimit.TokenBucket(ratelimit.PerSecond(1), 1).Named("rate"), nil)
	if err != nil {
		return &PerCall{err: err}
	}
	stack, err := All(WithLimit(By(l, func(r rated) (string, error) { return r.key, nil }),
		func(r rated) ratelimit.Limit { return ratelimit.TokenBucket(r.rate, r.rate.Units) }))
	return &PerCall{stack, err}
}

// Take spends cost of the key's budget under a token bucket of that rate, whose burst is as many units as the
// rate has, or it spends nothing. The answer and the errors are those of [Limiter.Take]. A key has one budget: under
// another rate what was spent carries over.
func (p *PerCall) Take(ctx context.Context, key string, cost int, rate ratelimit.Rate) (ratelimit.Decision, error) {
	if p.err != nil {
		return ratelimit.Decision{}, p.err
	}
	return p.stack.Take(ctx, rated{key, rate}, cost)
}
