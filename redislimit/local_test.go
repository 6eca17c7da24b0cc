package redislimit

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/model"
)

type localCall struct {
	user, plan string
	tokens     int
}

// half returns the share of one process if there are two.
func half(l ratelimit.Limit) ratelimit.Limit {
	return ratelimit.FixedWindow(ratelimit.Per(l.Rate.Units/2, l.Rate.Per))
}

// TestLocalIsTheSameStackInMemory checks that Local's stack makes no call to Redis.
func TestLocalIsTheSameStackInMemory(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	limiter := func(name string, units int, o *Options) *Limiter {
		l, err := New(client, ratelimit.FixedWindow(ratelimit.PerHour(units)).Named(name), o)
		require.NoError(t, err)
		return l
	}
	var decided, observed []string
	users := limiter("user", 10, &Options{
		OnDecision: func(e ratelimit.Event[string]) {
			decided = append(decided, fmt.Sprint(e.Key, e.Decision.Allowed, e.Decision.Limit.Name))
		},
		LimitFor: func(key string) ratelimit.Limit {
			switch key {
			case "root":
				return ratelimit.Unlimited()
			case "eve":
				return ratelimit.Blocked()
			case "bob":
				return ratelimit.FixedWindow(ratelimit.PerHour(4))
			}
			return ratelimit.Limit{}
		},
	})
	userOf := func(c localCall) (string, error) {
		if c.user == "" {
			return "", ratelimit.SkipLayer
		}
		return c.user, nil
	}
	plans := limiter("plan", 1000, nil)
	stack, err := ratelimit.AllOf(func(c localCall, which []int) []int {
		if c.plan == "" {
			return append(which, 0, 1)
		}
		return append(which, 0, 1, 2, 3)
	},
		ratelimit.By(users, userOf),
		model.WithCost(ratelimit.Global[localCall](limiter("tokens", 200, nil)), func(c localCall) int { return c.tokens }),
		model.WithLimit(ratelimit.By(plans, func(c localCall) (string, error) { return c.plan, nil }), func(c localCall) ratelimit.Limit {
			if c.plan == "small" {
				return ratelimit.FixedWindow(ratelimit.PerHour(6))
			}
			return ratelimit.Limit{}
		}),
		model.AsShadow(model.ObservedBy(ratelimit.Global[localCall](limiter("trial", 2, nil)), func(e ratelimit.Event[localCall]) {
			observed = append(observed, fmt.Sprint(e.Key.user, e.Decision.Allowed))
		})),
	)
	require.NoError(t, err)
	local, err := stack.Local(half, 100)
	require.NoError(t, err)

	allowed := func(n int, c localCall) {
		t.Helper()
		for i := range n + 1 {
			assert.Equal(t, i < n, local.Allow(c, 1), "call %d", i)
		}
	}
	allowed(5, localCall{user: "ann"})
	allowed(2, localCall{user: "bob"})
	allowed(0, localCall{user: "eve"})
	assert.Equal(t, []string{"anntrueuser", "anntrueuser", "anntrueuser", "anntrueuser", "anntrueuser", "annfalseuser"}, decided[:6])
	for range 50 {
		require.True(t, local.Allow(localCall{user: "root"}, 1), "Unlimited is not shared")
	}
	d, err := local.Take(t.Context(), localCall{user: "cid", plan: "small", tokens: 30}, 1)
	require.NoError(t, err)
	assert.Equal(t, "plan", d.Limit.Name)
	assert.Equal(t, 2, d.Remaining)
	assert.False(t, local.Allow(localCall{user: "cid", tokens: 71}, 1), "70 of 100 tokens are left")
	assert.True(t, local.Allow(localCall{user: "cid", plan: "small", tokens: 70}, 1), "a shadow denies nothing")
	assert.Equal(t, []string{"cidtrue", "cidfalse"}, observed)

	one, err := ratelimit.All(ratelimit.Global[localCall](plans))
	require.NoError(t, err)
	half, err := one.Local(half, 0)
	require.NoError(t, err)
	assert.Equal(t, []ratelimit.Limit{ratelimit.FixedWindow(ratelimit.PerHour(500)).Named("plan")}, half.Describe().Limits)
}

func TestLocalNamesTheFault(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	l, err := New(client, ratelimit.TokenBucket(ratelimit.Per(1, time.Second), 1).Named("api"), nil)
	require.NoError(t, err)
	stack, err := ratelimit.All(ratelimit.Global[string](l))
	require.NoError(t, err)

	_, err = stack.Local(nil, 0)
	require.ErrorContains(t, err, "share is nil")
	_, err = stack.Local(half, -1)
	require.ErrorContains(t, err, "layer 0: ")
	require.ErrorContains(t, err, "MaxKeys")
	_, err = stack.Local(half, 0) // the share would be half a unit
	require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
	_, err = (*ratelimit.Layered[string])(nil).Local(half, 0)
	require.Error(t, err)
	_, err = new(ratelimit.Layered[string]).Local(half, 0)
	require.Error(t, err)
}

// A user of the limiter learns its keys' limits from decisions.
func TestLimitsOfEachKeyAreNotListed(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	limit := ratelimit.FixedWindow(ratelimit.PerHour(1)).Named("api")
	l, err := New(client, limit, &Options{LimitFor: func(string) ratelimit.Limit { return ratelimit.Limit{} }})
	require.NoError(t, err)
	assert.Equal(t, []ratelimit.Limit{{}}, l.Describe().Limits)
	l, err = New(client, limit, nil)
	require.NoError(t, err)
	assert.Equal(t, []ratelimit.Limit{limit}, l.Describe().Limits)
}
