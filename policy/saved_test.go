package policy_test

import (
	"errors"
	"iter"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/ratelimittest"
)

const savedRules = `rules:
- {name: quota, key: user, limit: fixed-window 100/720h, plans: {pro: fixed-window 1000/720h}}
- {name: pairs, key: [user, "header:Authorization"], optional: true, limit: token-bucket 1/m burst 60}
- {name: all, limit: sliding-log 1000/h}
- {name: ops, allow: true, match: {attributes: {user: root}}}
`

// savedOf returns a program's saved budgets, in no order.
func savedOf(p *policy.Policies) iter.Seq2[policy.Subject, ratelimit.Saved] {
	all := map[*policy.Subject]ratelimit.Saved{}
	for s, saved := range p.Saved() {
		all[&s] = saved
	}
	return func(yield func(policy.Subject, ratelimit.Saved) bool) {
		for s, saved := range all {
			if !yield(*s, saved) {
				return
			}
		}
	}
}

func restoredInto(t *testing.T, text string) (*policy.Policies, *ratelimittest.Clock) {
	t.Helper()
	clock := new(ratelimittest.Clock)
	clock.Advance(77 * time.Hour) // another program has another clock
	p, err := policy.New(parsed(t, text), &policy.Options{Engine: policy.Memory(&policy.MemoryOptions{Clock: clock})})
	require.NoError(t, err)
	return p, clock
}

// A monthly quota survives a deploy without a store.
func TestBudgetsInMemorySurviveADeploy(t *testing.T) {
	first, _, _ := inForce(t, savedRules)
	ann, bob := policy.Attributes{"user": "ann", "header:Authorization": "secret"}, policy.Attributes{"user": "bob", "plan": "pro"}
	require.True(t, first.Allow(ann, 40))
	require.True(t, first.Allow(bob, 700))
	next, _ := restoredInto(t, savedRules)
	require.NoError(t, next.Restore(savedOf(first), 10*time.Minute))
	for _, want := range []struct {
		s    policy.Subject
		left int
	}{
		{policy.Subject{Rule: "quota", Key: []string{"ann"}}, 60},
		{policy.Subject{Rule: "quota", Key: []string{"bob"}, Plan: "pro"}, 300},
		{policy.Subject{Rule: "pairs", Key: []string{"ann", "secret"}}, 30},
		{policy.Subject{Rule: "all"}, 260},
		{policy.Subject{Rule: "quota", Key: []string{"cid"}}, 100},
	} {
		d, err := next.Peek(t.Context(), want.s, 1)
		require.NoError(t, err)
		assert.Equal(t, want.left, d.Remaining, want.s.Rule)
	}
	assert.False(t, next.Allow(ann, 61))
	assert.True(t, next.Allow(bob, 250))

	for range first.Saved() {
		break // a loop may end early
	}
	renamed, _ := restoredInto(t, "rules:\n- {name: monthly, budget: quota, key: user, limit: fixed-window 100/720h}\n")
	err := renamed.Restore(savedOf(first), 0)
	require.ErrorContains(t, err, "2 saved keys are of rules that are not in force")
	d, err := renamed.Peek(t.Context(), policy.Subject{Rule: "monthly", Key: []string{"ann"}}, 1)
	require.NoError(t, err)
	assert.Equal(t, 60, d.Remaining)
}

func TestRestoreNamesTheRuleOfWhatItSkips(t *testing.T) {
	first, _, _ := inForce(t, savedRules)
	require.True(t, first.Allow(policy.Attributes{"user": "secret-ann"}, 4))
	changed, _ := restoredInto(t, "rules:\n- {name: quota, key: [user, region], limit: fixed-window 100/h}\n- {name: all, limit: sliding-log 1000/h}")
	err := changed.Restore(savedOf(first), 0)
	require.ErrorContains(t, err, `rule "quota": 1 saved keys have another number of values, want 2: user, region`)
	d, err := changed.Peek(t.Context(), policy.Subject{Rule: "all"}, 1)
	require.NoError(t, err)
	assert.Equal(t, 996, d.Remaining, "the others are restored")

	damaged := maps.All(map[string]ratelimit.Saved{"secret-bob": {1, 2}})
	next, _ := restoredInto(t, savedRules)
	err = next.Restore(func(yield func(policy.Subject, ratelimit.Saved) bool) {
		for key, saved := range damaged {
			yield(policy.Subject{Rule: "QUOTA", Key: []string{key}}, saved)
		}
	}, 0)
	require.ErrorContains(t, err, `rule "quota": ratelimit: saved key 0: `)
	assert.NotContains(t, err.Error(), "secret")
	require.ErrorContains(t, next.Restore(nil, 0), "policy: Restore: seq is nil")
}

func TestAStoreAndASetWithoutRulesSaveNothing(t *testing.T) {
	first, _, _ := inForce(t, savedRules)
	require.True(t, first.Allow(policy.Attributes{"user": "ann"}, 4))
	store, err := policy.New(parsed(t, "rules: [{name: all, limit: sliding-log 1000/h}]"), &policy.Options{Engine: deaf})
	require.NoError(t, err)
	for range store.Saved() {
		t.Error("a store keeps its budgets")
	}
	require.ErrorIs(t, store.Restore(savedOf(first), 0), errors.ErrUnsupported)
	empty, err := policy.New(nil, nil)
	require.NoError(t, err)
	for range empty.Saved() {
		t.Error("there is no rule")
	}
	require.ErrorContains(t, empty.Restore(savedOf(first), 0), "2 saved keys")
}
