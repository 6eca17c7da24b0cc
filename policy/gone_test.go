package policy_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/ratelimittest"
)

const comingBack = "rules:\n- {name: api, key: user, limit: fixed-window 5/h, plans: {pro: fixed-window 50/h}}\n- {name: line, key: user, share: 1, limit: token-bucket 5/h burst 5}\n"

// A rule may be missing for minutes, for example after a bad merge, or while a script fills the table of rules again.
func TestARuleThatComesBackWithinTenMinutesKeepsItsBudgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ann, bob := policy.Attributes{"user": "ann"}, policy.Attributes{"user": "bob", "plan": "pro"}
		p, err := policy.New(parsed(t, comingBack), nil)
		require.NoError(t, err)
		require.True(t, p.Allow(ann, 4))
		for _, away := range []string{"rules: []", "rules:\n- {name: other, limit: blocked}"} {
			require.NoError(t, p.Update(parsed(t, away)))
			time.Sleep(4 * time.Minute)
			require.NoError(t, p.Update(parsed(t, "version: again\n"+away)))
			time.Sleep(4 * time.Minute)
			require.NoError(t, p.Update(parsed(t, comingBack)))
			d, err := p.Peek(t.Context(), policy.Subject{Rule: "api", Key: []string{"ann"}}, 1)
			require.NoError(t, err)
			assert.Equal(t, 1, d.Remaining)
			assert.False(t, p.Allow(ann, 2), "of the limit that the keys share, too")
		}
		require.NoError(t, p.Update(parsed(t, "rules: []")))
		require.NoError(t, p.Update(parsed(t, "rules:\n- {name: API, key: user, limit: fixed-window 7/h, plans: {pro: fixed-window 70/h}}")))
		d, err := p.Take(t.Context(), ann, 0)
		require.NoError(t, err)
		assert.Equal(t, 3, d.Remaining, "under its limit now")
		require.True(t, p.Allow(bob, 10))
		require.NoError(t, p.Update(parsed(t, "rules: []")))
		time.Sleep(11 * time.Minute)
		require.NoError(t, p.Update(parsed(t, comingBack)))
		d, err = p.Peek(t.Context(), policy.Subject{Rule: "api", Key: []string{"ann"}}, 1)
		require.NoError(t, err)
		assert.Equal(t, 5, d.Remaining, "after ten minutes they are freed")
	})
}

func TestABudgetThatComesBackHasRegainedByItsClock(t *testing.T) {
	p, clock, _ := inForce(t, "rules:\n- {name: api, key: user, limit: token-bucket 1/m burst 20}")
	ann := policy.Attributes{"user": "ann"}
	require.True(t, p.Allow(ann, 20))
	for range 2 {
		require.NoError(t, p.Update(parsed(t, "rules: []")))
		clock.Advance(9 * time.Minute)
		require.NoError(t, p.Update(parsed(t, "rules:\n- {name: api, key: user, limit: token-bucket 1/m burst 20}")))
	}
	assert.Equal(t, 18, left(t, p, ann))
	require.NoError(t, p.Update(parsed(t, "rules: []")))
	clock.Advance(10*time.Minute + 1)
	require.NoError(t, p.Update(parsed(t, "rules:\n- {name: api, key: user, limit: token-bucket 1/m burst 40}")))
	assert.Equal(t, 40, left(t, p, ann))
}

// Policies also keep the limiters of an engine without sets of rules, as they keep Memory's.
func TestARuleOfAnotherEngineComesBackToItsLimiter(t *testing.T) {
	clock := new(ratelimittest.Clock)
	p, err := policy.New(parsed(t, "rules: [{name: api, limit: fixed-window 5/h}]"), &policy.Options{Engine: func(b policy.Budget, before ratelimit.Limiter[string]) (ratelimit.Limiter[string], error) {
		if before != nil {
			return before, nil
		}
		return ratelimit.New(b.Limit, &ratelimit.Options[string]{Clock: clock})
	}})
	require.NoError(t, err)
	require.True(t, p.Allow(policy.Attributes{}, 5))
	require.NoError(t, p.Update(new(policy.Set)))
	require.NoError(t, p.Update(parsed(t, "rules: [{name: api, limit: fixed-window 5/h}]")))
	assert.False(t, p.Allow(policy.Attributes{}, 1))
}
