package policy_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/ratelimittest"
)

const twoTables = "rules:\n- {name: users, key: user, limit: fixed-window 1/h}\n- {name: all, limit: fixed-window 100000/h}\n- {name: ops, allow: true, match: {attributes: {user: root}}}"

// Without Remember, a client evades a denial by inventing keys. With Remember, it does not.
func TestEvictedKeysAreRemembered(t *testing.T) {
	for remember, again := range map[int]bool{0: true, 1000: false} {
		t.Run(fmt.Sprint(remember), func(t *testing.T) {
			p, err := policy.New(parsed(t, twoTables), &policy.Options{
				Engine: policy.Memory(&policy.MemoryOptions{MaxKeys: 16, Remember: remember, Clock: new(ratelimittest.Clock)}),
			})
			require.NoError(t, err)
			ann := policy.Attributes{"user": "ann"}
			require.True(t, p.Allow(ann, 1))
			require.False(t, p.Allow(ann, 1))
			mistaken := 0 // new keys mistaken for a remembered one: these are denied, and take no place
			for i := range 500 {
				user := policy.Attributes{"user": fmt.Sprint("invented", i)}
				if !p.Allow(user, 1) {
					mistaken++
				}
				p.Allow(user, 1)
			}
			assert.LessOrEqual(t, mistaken, remember/50)
			assert.Equal(t, again, p.Allow(ann, 1))

			tables := p.Stats().Tables
			assert.Len(t, tables, 2, "an exemption has no table")
			assert.Equal(t, ratelimit.Stats{Keys: 1}, tables["all"])
			users := tables["users"]
			assert.Equal(t, 16, users.Keys)
			assert.GreaterOrEqual(t, users.Evicted, uint64(501-16-mistaken))
			assert.Equal(t, remember == 0, users.EvictedThrottled > 0)
		})
	}
	_, err := policy.New(parsed(t, twoTables), &policy.Options{Engine: policy.Memory(&policy.MemoryOptions{Remember: -1})})
	assert.ErrorContains(t, err, "Options.Remember is -1")
}

func TestTablesBelongToTheRulesInForce(t *testing.T) {
	p, err := policy.New(parsed(t, twoTables), nil)
	require.NoError(t, err)
	p.Allow(policy.Attributes{"user": "ann"}, 1)
	require.NoError(t, p.Update(parsed(t, "rules:\n- {name: Users, key: user, limit: fixed-window 1/h}\n- {name: new, key: user, limit: blocked}")))
	assert.Equal(t, map[string]ratelimit.Stats{"Users": {Keys: 1}, "new": {}}, p.Stats().Tables)
	require.NoError(t, p.Update(new(policy.Set)))
	assert.Empty(t, p.Stats().Tables)

	p, err = policy.New(parsed(t, "rules: [{name: all, limit: fixed-window 9/h}]"), &policy.Options{Engine: deaf})
	require.NoError(t, err)
	assert.Nil(t, p.Stats().Tables, "another engine")
}

// deaf is an engine whose limiters only decide.
func deaf(b policy.Budget, _ ratelimit.Limiter[string]) (ratelimit.Limiter[string], error) {
	l, err := ratelimit.New[string](b.Limit, nil)
	return struct{ ratelimit.Reserver[string] }{l}, err
}
