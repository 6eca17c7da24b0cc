package policyredis_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/policy"
)

func TestOnRedisEachRuleHasItsCostByRouteAndItsRealCost(t *testing.T) {
	p := shared(t, server(t), `rules:
- {name: requests, key: user, cost: 1, limit: token-bucket 1/h burst 100}
- {name: points, key: user, limit: token-bucket 1/h burst 100, costs: [{match: {route: [/export]}, cost: 20}]}
- {name: tokens, key: user, cost: estimate, actual: tokens, limit: token-bucket 1/h burst 1000}
- {name: dollars, key: user, actual: dollars, limit: token-bucket 1/h burst 1000, shadow: true}
`)
	left := func(r policy.Request) map[string]int {
		ex, err := p.Explain(r, 1)
		require.NoError(t, err)
		all := map[string]int{}
		for _, rule := range ex.Rules {
			all[rule.Rule] = rule.Decision.Remaining
		}
		return all
	}
	r := policy.Attributes{"user": "ann", "path": "/export", "estimate": "300"}
	res, err := p.Reserve(t.Context(), r, 5, 0)
	require.NoError(t, err)
	require.True(t, res.Allowed)
	assert.Equal(t, map[string]int{"requests": 99, "points": 80, "tokens": 700, "dollars": 995}, left(r))
	r["tokens"], r["dollars"] = "40", "9"
	require.NoError(t, res.Settle(7))
	assert.Equal(t, map[string]int{"requests": 99, "points": 80, "tokens": 960, "dollars": 991}, left(r))

	r["path"] = "/"
	res, err = p.Reserve(t.Context(), r, 5, 0)
	require.NoError(t, err)
	assert.Equal(t, map[string]int{"requests": 98, "points": 75, "tokens": 660, "dollars": 986}, left(r))
	delete(r, "dollars")
	require.NoError(t, res.Settle(7))
	assert.Equal(t, map[string]int{"requests": 98, "points": 73, "tokens": 920, "dollars": 984}, left(r), "without their attribute dollars are settled at the argument")

	res, err = p.Reserve(t.Context(), r, 5, 0)
	require.NoError(t, err)
	require.NoError(t, res.Cancel())
	assert.Equal(t, map[string]int{"requests": 98, "points": 73, "tokens": 920, "dollars": 984}, left(r))
}

func TestOnRedisARenamedRuleKeepsItsSpendingAndAnOverrideEnds(t *testing.T) {
	addr := server(t)
	p := shared(t, addr, "rules:\n- {name: api, key: user, limit: token-bucket 1/h burst 100}\n")
	r := policy.Attributes{"user": "ann"}
	_, err := p.Take(t.Context(), r, 60)
	require.NoError(t, err)
	renamed := shared(t, addr, "rules:\n- {name: public, budget: Api, key: user, limit: token-bucket 1/h burst 100, overrides: [{key: ann, limit: blocked, until: 2020-01-01T00:00:00Z}]}\n"+
		"- {name: later, from: 2500-01-01T00:00:00Z, limit: blocked}\n")
	d, err := renamed.Take(t.Context(), r, 1)
	require.NoError(t, err)
	assert.True(t, d.Allowed)
	assert.Equal(t, 39, d.Remaining)
	assert.Equal(t, "public", d.Limit.Name)
}

func TestOnRedisAGraceDeniesAboveIt(t *testing.T) {
	p := shared(t, server(t), "rules:\n- {name: quota, key: user, grace: 10%, limit: token-bucket 1/h burst 100}\n- {name: api, key: user, limit: token-bucket 1/h burst 105}\n")
	r := policy.Attributes{"user": "ann"}
	for _, each := range []struct {
		cost            int
		allowed         bool
		remaining, debt int
		limit           string
	}{{90, true, 10, 0, "quota"}, {12, true, 0, 2, "quota"}, {4, false, 3, 0, "api"}, {3, true, 0, 5, "quota"}} {
		d, err := p.Take(t.Context(), r, each.cost)
		require.NoError(t, err)
		assert.Equal(t, each.allowed, d.Allowed)
		assert.Equal(t, each.limit, d.Limit.Name)
		assert.Equal(t, each.debt, d.Debt, "after %d", each.cost)
		assert.Equal(t, each.remaining, d.Remaining, "after %d", each.cost)
	}
}
