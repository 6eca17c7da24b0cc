package sqltest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/sqllimit"
)

// TestPoliciesInSQL keeps the budgets of rules in PostgreSQL, for two processes.
func TestPoliciesInSQL(t *testing.T) {
	db := openPostgres(t)
	_, err := db.Exec(sqllimit.Schema(sqllimit.PostgreSQL, ""))
	require.NoError(t, err)
	set, err := policy.Parse([]byte("version: v1\nplans: [gold]\nrules:\n- {name: users, key: user, limit: fixed-window 5/d, plans: {gold: fixed-window 8/d}}\n- {name: all, limit: fixed-window 20/d}\n- {name: try, key: user, limit: fixed-window 2/d, shadow: true}\n"))
	if err != nil {
		set, err = policy.Parse([]byte("version: v1\nrules:\n- {name: users, key: user, limit: fixed-window 5/d, plans: {gold: fixed-window 8/d}}\n- {name: all, limit: fixed-window 20/d}\n- {name: try, key: user, limit: fixed-window 2/d, shadow: true}\n"))
	}
	require.NoError(t, err)
	engine := func() policy.Engine {
		return policy.Store(func(b policy.Budget, _ ratelimit.Limiter[string]) (ratelimit.Limiter[string], error) {
			return sqllimit.New(db, b.Limit, &sqllimit.Options{Name: strings.ToLower(b.Name)})
		})
	}
	a, err := policy.New(set, &policy.Options{Engine: engine()})
	require.NoError(t, err)
	var seen []policy.Decision
	b, err := policy.New(set, &policy.Options{Engine: engine(), OnDecision: func(d policy.Decision) { seen = append(seen, d) }})
	require.NoError(t, err)
	n := 0
	for i := range 20 {
		p := []*policy.Policies{a, b}[i%2]
		d, err := p.Take(t.Context(), policy.Attributes{"user": "ann"}, 1)
		require.NoError(t, err)
		if d.Allowed {
			n++
		}
	}
	require.Equal(t, 5, n)
	n = 0
	for range 20 {
		d, err := b.Take(t.Context(), policy.Attributes{"user": "eve", "plan": "gold"}, 1)
		require.NoError(t, err)
		if d.Allowed {
			n++
		}
	}
	require.Equal(t, 8, n)
	require.NoError(t, a.Adjust(t.Context(), policy.Subject{Rule: "users", Key: []string{"ann"}}, -3))
	d, err := b.Peek(t.Context(), policy.Subject{Rule: "users", Key: []string{"ann"}}, 1)
	require.NoError(t, err)
	require.Equal(t, 3, d.Remaining)
	require.NoError(t, a.Reset(t.Context(), policy.Subject{Rule: "users", Key: []string{"ann"}}))
	keys := 0
	require.NoError(t, a.Each(t.Context(), "users", func(key []string, d ratelimit.Decision) bool { keys++; t.Log(key, d); return true }))
	require.Equal(t, 2, keys)
	require.Len(t, seen, 30)
	t.Logf("%+v", seen[0].Rules)
}
