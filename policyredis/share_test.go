package policyredis_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/redistest"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policyredis"
	"github.com/weir-go/ratelimit/redislimit"
)

// All rules that match are charged, or none: the share is asked after the rules that one script decides. Package policy tests how keys share a
// limit, and package redislimit how a fleet does.
func TestAShareBesideOtherRulesOnRedisIsAllOrNone(t *testing.T) {
	const text = `
rules:
- {name: own, key: tenant, limit: token-bucket 1/h burst 1000}
- {name: Up, key: tenant, limit: token-bucket 1/h burst 400, share: 1}
`
	server := redistest.Start(t)
	all := []*policy.Policies{shared(t, server.Addr, text), shared(t, server.Addr, text)}
	own := func(tenant string) int { return 1000 - peek(t, all[0], "own", tenant).Remaining }
	ann, bob, carl := policy.Attributes{"tenant": "ann"}, policy.Attributes{"tenant": "bob"}, policy.Attributes{"tenant": "carl"}
	require.True(t, take(t, all[0], ann, 290).Allowed)
	require.True(t, take(t, all[0], bob, 1).Allowed)
	assert.Equal(t, []int{290, 1}, []int{own("ann"), own("bob")})
	d := take(t, all[1], bob, 200)
	assert.False(t, d.Allowed)
	assert.Equal(t, "Up", d.Limit.Name)
	assert.Equal(t, 1, own("bob"), "given back")
	_, err := all[1].Take(t.Context(), ann, 401)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	res := reserve(t, all[1], carl, 8)
	require.True(t, res.Allowed)
	assert.Equal(t, 8, own("carl"))
	require.NoError(t, res.Settle(2))
	assert.Equal(t, 2, own("carl"))

	require.ErrorContains(t, all[0].Adjust(t.Context(), bob, 1), "no Adjust")
	assert.Equal(t, 1, own("bob"), "nothing is adjusted if one rule cannot be")
	_, err = all[0].Peek(t.Context(), bob, 1)
	require.ErrorContains(t, err, "cannot look")
	server.Kill()
	_, err = all[0].Take(t.Context(), carl, 1)
	require.ErrorIs(t, err, ratelimit.ErrUnavailable)
}

// Tenants share a limit by weight, also when the limit changes: the units that a process holds stay with it.
func TestARuleWithShareIsAFairOfRedis(t *testing.T) {
	weighed := ""
	b := policy.Budget{Name: "Up", Key: []string{"tenant"}, Limit: ratelimit.TokenBucket(ratelimit.PerHour(1), 400), Share: 1, Weight: func(key string) int {
		weighed = key
		return 3
	}}
	client := local(t)
	engine := policyredis.New(client, &policyredis.Options{Timeout: time.Minute})
	l, err := engine(b, nil)
	require.NoError(t, err)
	d, err := l.(*redislimit.Fair).Take(t.Context(), "pro", 10)
	require.NoError(t, err)
	assert.True(t, d.Allowed)
	assert.Equal(t, "pro", weighed)
	for _, key := range client.Keys(t.Context(), "*").Val() {
		assert.Regexp(t, "^policy:{up}", key)
	}
	b.Limit.Burst = 600
	again, err := engine(b, l)
	require.NoError(t, err)
	assert.Same(t, l, again)
	b.Limit.Algorithm = ratelimit.AlgorithmFixedWindow // of which no keys share
	_, err = engine(b, l)
	assert.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
}
