package policy_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/policy"
)

// A rule may limit calls at the same time, beside a rate. Both decide
// together, all or nothing. Only budgets in memory support this.
func TestRulesWithConcurrent(t *testing.T) {
	t.Parallel()
	set, err := policy.Parse([]byte(`
rules:
- {name: streams, key: user, limit: concurrent 1 hold 1m, plans: {pro: concurrent 2 hold 1m}}
- {name: requests, key: user, limit: fixed-window 3/h}
`))
	require.NoError(t, err)
	p, err := policy.New(set, nil)
	require.NoError(t, err)
	ann := policy.Attributes{"user": "ann", "plan": "free"}
	assert.False(t, p.Allow(ann, 1))
	_, err = p.Take(t.Context(), ann, 1)
	require.ErrorContains(t, err, "streams", "the error names the rule")
	require.ErrorContains(t, err, "use Reserve")
	first, err := p.Reserve(t.Context(), ann, 1, 0)
	require.NoError(t, err)
	require.True(t, first.Allowed)
	denied, err := p.Reserve(t.Context(), ann, 1, 0)
	require.NoError(t, err)
	require.False(t, denied.Allowed)
	assert.Equal(t, "streams", denied.Limit.Name)
	require.NoError(t, first.Extend(t.Context()))
	require.NoError(t, first.Settle(1))
	for range 2 {
		r, err := p.Reserve(t.Context(), ann, 1, 0)
		require.NoError(t, err)
		require.True(t, r.Allowed, "a denial has charged no request")
		require.NoError(t, r.Settle(1))
	}
	denied, err = p.Reserve(t.Context(), ann, 1, 0)
	require.NoError(t, err)
	assert.Equal(t, "requests", denied.Limit.Name)
	bob := policy.Attributes{"user": "bob", "plan": "pro"}
	for _, want := range []bool{true, true, false} {
		r, err := p.Reserve(t.Context(), bob, 1, 0)
		require.NoError(t, err)
		assert.Equal(t, want, r.Allowed)
	}
}
