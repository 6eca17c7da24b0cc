package policy_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/policy"
)

// Billing calls a plan Pro, and the file calls it pro. So paying customers get the free plan's limit.
func TestPlansThatTheFileDoesNotKnowAreCountedByRule(t *testing.T) {
	const rules = `rules:
- {name: api, key: user, limit: fixed-window 100/h, plans: {pro: fixed-window 1000/h, none: unlimited}, overrides: [{key: vip, limit: fixed-window 500/h}]}
- {name: up, key: user, share: 1, shares: {pro: 4}, limit: token-bucket 100/s burst 100}
- {name: all, limit: fixed-window 100000/h}
`
	p, _, _ := inForce(t, rules)
	assert.Equal(t, map[string]uint64{"api": 0, "up": 0}, p.Stats().UnknownPlans)
	for _, plan := range []string{"Pro", "pro", "", "none", "Enterprise"} {
		for _, user := range []string{"ann", "vip"} {
			r := policy.Attributes{"user": user, "plan": plan}
			require.True(t, p.Allow(r, 1))
			_, err := p.Take(t.Context(), r, 1)
			require.NoError(t, err)
			_, err = p.Peek(t.Context(), r, 1)
			require.NoError(t, err)
			_, err = p.Explain(r, 1)
			require.NoError(t, err)
		}
	}
	require.True(t, p.Allow(policy.Attributes{"user": "ann"}, 1))
	_, err := p.Peek(t.Context(), policy.Subject{Rule: "api", Key: []string{"ann"}, Plan: "Gold"}, 1)
	require.NoError(t, err)
	assert.Equal(t, map[string]uint64{"api": 8, "up": 12}, p.Stats().UnknownPlans)
	require.NoError(t, p.Update(parsed(t, "rules: [{name: API, key: user, limit: fixed-window 100/h, plans: {Pro: fixed-window 1000/h}}]")))
	require.True(t, p.Allow(policy.Attributes{"user": "ann", "plan": "Pro"}, 1))
	assert.Equal(t, map[string]uint64{"API": 8}, p.Stats().UnknownPlans, "the count goes on")
	require.NoError(t, p.Update(new(policy.Set)))
	assert.Nil(t, p.Stats().UnknownPlans)
}
