package policyredis_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/redistest"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policyredis"
	"github.com/weir-go/ratelimit/redislimit"
)

// All matching rules are charged, or none. One script decides by the other rules, and then the Fair
// decides. Package policy tests how keys share a limit, and package redislimit how a fleet shares it.
func TestAShareBesideOtherRulesOnRedisIsAllOrNone(t *testing.T) {
	const text = `
rules:
- {name: own, key: tenant, limit: token-bucket 1/h burst 1000}
- {name: Up, key: tenant, limit: token-bucket 1/h burst 400, share: 1}
`
	server := redistest.Start(t)
	first, second := shared(t, server.Addr, text), shared(t, server.Addr, text)
	of := func(name string) policy.Attributes { return policy.Attributes{"tenant": name} }
	own := func(tenant string) int { return 1000 - peek(t, first, "own", "", tenant).Remaining }
	require.True(t, take(t, first, of("ann"), 290).Allowed)
	require.True(t, take(t, first, of("bob"), 1).Allowed)
	assert.Equal(t, []int{290, 1}, []int{own("ann"), own("bob")})
	d := take(t, second, of("bob"), 200)
	assert.Equal(t, []any{false, "Up", 1}, []any{d.Allowed, d.Limit.Name, own("bob")}, "given back")
	_, err := second.Take(t.Context(), of("ann"), 401)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	settle(t, second, of("carl"), 8, 2)
	assert.Equal(t, 2, own("carl"))

	require.ErrorContains(t, first.Adjust(t.Context(), of("bob"), 1), "no Adjust")
	assert.Equal(t, 1, own("bob"), "nothing is adjusted if one rule cannot be")
	_, err = first.Peek(t.Context(), of("bob"), 1)
	require.ErrorContains(t, err, "cannot look")
	server.Kill()
	_, err = first.Take(t.Context(), of("carl"), 1)
	require.ErrorIs(t, err, ratelimit.ErrUnavailable)
}

// Tenants share a limit by weight, also after the limit changes: a process keeps the units it holds.
func TestARuleWithShareIsAFairOfRedis(t *testing.T) {
	weighed, count := "", new(sent)
	b := policy.Budget{Name: "Up", Key: []string{"tenant"}, Limit: ratelimit.TokenBucket(ratelimit.PerHour(1), 400), Share: 1}
	b.Weight = func(key string) int {
		weighed = key
		return 3
	}
	client := local(t)
	engine := policyredis.New(client, &policyredis.Options{Timeout: time.Minute, Hooks: []redis.Hook{count}})
	l := ratelimit.Must(engine(b, nil))
	d, err := l.(*redislimit.Fair).Take(t.Context(), "pro", 10)
	require.NoError(t, err)
	assert.True(t, d.Allowed)
	assert.Equal(t, "pro", weighed)
	assert.Positive(t, count.all.Load())
	for _, key := range client.Keys(t.Context(), "*").Val() {
		assert.Regexp(t, "^policy:{up}", key)
	}
	b.Limit.Burst = 600
	assert.Same(t, l, ratelimit.Must(engine(b, l)))
	b.Limit.Algorithm = ratelimit.AlgorithmFixedWindow // no keys can share a fixed window
	_, err = engine(b, l)
	assert.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
}
