package policy_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy"
)

// While the store is down, each of eight processes decides in memory by the same rules. Together
// they admit each limit once. The limit may come from the rule, a plan, an override or an attribute.
func TestStandInsOfSeveralProcessesAdmitEachLimitOnce(t *testing.T) {
	set, err := policy.Parse([]byte(`
rules:
- name: daily
  key: user
  limit: fixed-window 1000/d
  plans: {pro: token-bucket 4000/d burst 2000}
  limit_from: contract
  overrides: [{key: vip, limit: sliding-log 800/d}]
`))
	require.NoError(t, err)
	for _, c := range []struct {
		name  string
		r     policy.Attributes
		limit int
	}{
		{"the rule's limit", policy.Attributes{"user": "ann"}, 1000},
		{"a plan", policy.Attributes{"user": "bob", "plan": "pro"}, 2000},
		{"an override", policy.Attributes{"user": "vip"}, 800},
		{"an attribute's units", policy.Attributes{"user": "carl", "contract": "400"}, 400},
		{"an attribute's limit", policy.Attributes{"user": "dora", "contract": "fixed-window 1600/d"}, 1600},
	} {
		const processes = 8
		passed := 0
		for range processes {
			p, err := policy.New(set, &policy.Options{Engine: policy.Memory(&policy.MemoryOptions{Processes: processes})})
			require.NoError(t, err)
			for p.Allow(c.r, 1) {
				passed++
			}
			require.Equal(t, set, p.Current(), "the set in force is the file's")
			ex, err := p.Explain(c.r, 1)
			require.NoError(t, err)
			assert.Equal(t, c.limit/processes, ex.Rules[0].Limit.Capacity(), "%s: an explanation has the limit that this process enforces", c.name)
		}
		assert.Equal(t, c.limit, passed, c.name)
	}
	for _, processes := range []int{0, 1} {
		p, err := policy.New(set, &policy.Options{Engine: policy.Memory(&policy.MemoryOptions{Processes: processes})})
		require.NoError(t, err)
		d, err := p.Take(t.Context(), policy.Attributes{"user": "ann"}, 1)
		require.NoError(t, err)
		assert.Equal(t, 999, d.Remaining)
	}
	_, err = policy.New(set, &policy.Options{Engine: policy.Memory(&policy.MemoryOptions{Processes: -1})})
	assert.ErrorContains(t, err, "MemoryOptions.Processes is -1")
}

// A change of the rules keeps a stand-in's spending. Keys are listed under the stand-in's limits.
func TestAStandInsLimitsFollowTheRules(t *testing.T) {
	rules := func(units int) *policy.Set {
		set, err := policy.Parse([]byte(fmt.Sprintf("rules: [{name: daily, key: user, limit: fixed-window %d/d}]", units)))
		require.NoError(t, err)
		return set
	}
	p, err := policy.New(rules(80), &policy.Options{Engine: policy.Memory(&policy.MemoryOptions{Processes: 8})})
	require.NoError(t, err)
	r := policy.Attributes{"user": "ann"}
	for range 4 {
		require.True(t, p.Allow(r, 1))
	}
	require.NoError(t, p.Update(rules(160)))
	d, err := p.Take(t.Context(), r, 1)
	require.NoError(t, err)
	assert.Equal(t, 15, d.Remaining)
	assert.Equal(t, ratelimit.FixedWindow(ratelimit.PerDay(20)).Named("daily"), d.Limit)
}
