package ratelimittest_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// bounded returns the config of the module's limiter, with another NewBounded.
func bounded(make func(l keyed, limit ratelimit.Limit, maxKeys int, clock *ratelimittest.Clock) limiter) ratelimittest.Config {
	config := ours()
	config.Seed, config.Histories = 1, 10
	config.NewBounded = func(limit ratelimit.Limit, maxKeys int) (limiter, error) {
		return make(good(limit, config.Clock), limit, maxKeys, config.Clock), nil
	}
	return config
}

func TestAFloodThatWipesAThrottledKeyIsFoundOut(t *testing.T) {
	err := ratelimittest.Check(bounded(func(l keyed, _ ratelimit.Limit, maxKeys int, _ *ratelimittest.Clock) limiter {
		return forgetsUnderFlood{l, new(sync.Mutex), new([]string), maxKeys}
	}))
	assert.ErrorContains(t, err, "the promise of MaxKeys is broken by sliding-log")
	assert.ErrorContains(t, err, "a throttled key was wiped by a flood of 32 invented ones")
}

func TestATableThatIsNeverPrunedIsFoundOut(t *testing.T) {
	err := ratelimittest.Check(bounded(func(l keyed, _ ratelimit.Limit, _ int, _ *ratelimittest.Clock) limiter { return l }))
	assert.ErrorContains(t, err, "the promise of MaxKeys is broken by token-bucket")
	assert.ErrorContains(t, err, "9 keys are tracked, of 8 at most")
}

// anyKey puts all keys in one budget. NaN, which does not equal itself, is among them.
type anyKey struct{ keyed }

func (l anyKey) Allow(_ float64, cost int) bool { return l.keyed.Allow("nan", cost) }

func (l anyKey) Take(ctx context.Context, _ float64, cost int) (ratelimit.Decision, error) {
	return l.keyed.Take(ctx, "nan", cost)
}

func TestAKeyUnequalToItselfIsFoundOut(t *testing.T) {
	config := ours()
	config.Histories = 1
	config.NewFloat = func(limit ratelimit.Limit) (ratelimit.Limiter[float64], error) {
		return anyKey{good(limit, config.Clock)}, nil
	}
	assert.ErrorContains(t, ratelimittest.Check(config), "the key NaN answers allowed")
}
