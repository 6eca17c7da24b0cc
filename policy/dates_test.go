package policy_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy"
)

// at parses a time of RFC 3339.
func at(text string) time.Time { return ratelimit.Must(time.Parse(time.RFC3339, text)) }

// pass makes n requests, and counts the allowed ones.
func pass(p *policy.Policies, r policy.Request, n int) (passed int) {
	for range n {
		if p.Allow(r, 1) {
			passed++
		}
	}
	return passed
}

// A contract begins in January. Until Friday its limit is doubled, and on Saturday all requests are exempt.
func TestRulesAndOverridesAreInForceForATime(t *testing.T) {
	p, clock := made(t, `rules:
- {name: contract, from: 2026-01-01T00:00:00+01:00, key: tenant, limit: fixed-window 100/h, overrides: [
    {key: acme, limit: fixed-window 300/h}, {key: acme, limit: fixed-window 600/h, from: 2026-01-05T00:00:00Z, until: 2026-01-09T18:00:00Z}, {key: acme, limit: blocked, from: 2026-01-09T18:00:00Z, until: 2026-01-09T19:00:00Z}]}
- {name: before, until: 2026-01-01T00:00:00+01:00, key: tenant, limit: fixed-window 10/h}
- {name: saturday, allow: true, from: 2026-01-10T00:00:00Z, until: 2026-01-11T00:00:00Z}
- {name: sunday, instead: [contract], from: 2026-01-11T00:00:00Z, until: 2026-01-12T00:00:00Z, limit: fixed-window 7/h}
`)
	for _, each := range []struct {
		at        string
		acme, bob int
	}{
		{"2025-12-31T22:00:00Z", 10, 10},
		{"2025-12-31T23:00:00Z", 300, 100}, // the beginning's instant
		{"2026-01-04T23:00:00Z", 300, 100},
		{"2026-01-05T00:00:00Z", 600, 100},
		{"2026-01-09T17:00:00Z", 600, 100},
		{"2026-01-09T18:00:00Z", 0, 100},
		{"2026-01-09T19:00:00Z", 300, 100},
		{"2026-01-10T00:00:00Z", 1000, 1000},
		{"2026-01-11T00:00:00Z", 7, 0},
		{"2026-01-12T00:00:00Z", 300, 100},
	} {
		clock.Advance(2 * time.Hour)
		clock.SetWall(at(each.at))
		assert.Equal(t, each.acme, pass(p, attrs{"tenant": "acme"}, 1000), each.at)
		assert.Equal(t, each.bob, pass(p, attrs{"tenant": "bob"}, 1000), each.at)
	}
}

func TestAnOverrideThatEndsKeepsTheSpending(t *testing.T) {
	p, clock := made(t, "rules:\n- {name: api, key: user, limit: fixed-window 100/h, overrides: [{key: ann, limit: fixed-window 200/h, until: 2026-01-01T00:00:00Z}]}\n")
	clock.SetWall(at("2025-12-31T23:50:00Z"))
	assert.Equal(t, 60, pass(p, attrs{"user": "ann"}, 60))
	clock.SetWall(at("2026-01-01T00:00:00Z"))
	assert.Equal(t, 40, pass(p, attrs{"user": "ann"}, 60))
}

func TestAnExplanationHasTheTimeOfARule(t *testing.T) {
	p, clock := made(t, "rules:\n- {name: api, limit: fixed-window 100/h, from: 2026-01-01T00:00:00Z, until: 2026-02-01T00:00:00Z}\n- {name: all, allow: true, until: 2025-01-01T00:00:00Z}\n")
	clock.SetWall(at("2025-12-31T23:50:00Z"))
	ex, err := p.Explain(attrs{}, 1)
	require.NoError(t, err)
	require.Empty(t, ex.Exempt)
	require.True(t, ex.Rules[0].Dated)
	assert.Equal(t, "api: does not apply: it is in force from 2026-01-01T00:00:00Z until 2026-02-01T00:00:00Z\n", ex.String())
	clock.SetWall(at("2026-01-31T23:50:00Z"))
	ex, err = p.Explain(attrs{}, 1)
	require.NoError(t, err)
	assert.Contains(t, ex.String(), "api: fixed-window 100/h (from the rule)")
}

// A renamed rule keeps the budgets of its old name.
func TestARenamedRuleKeepsItsSpending(t *testing.T) {
	p, _ := made(t, "rules:\n- {name: api, key: user, limit: fixed-window 100/h}\n")
	assert.Equal(t, 60, pass(p, attrs{"user": "ann"}, 60))
	require.NoError(t, p.Update(ratelimit.Must(policy.Parse([]byte("rules:\n- {name: public-api, budget: API, key: user, limit: fixed-window 100/h}\n")))))
	d, err := p.Take(t.Context(), attrs{"user": "ann"}, 1)
	require.NoError(t, err)
	assert.Equal(t, 39, d.Remaining)
	assert.Equal(t, "public-api", d.Limit.Name)
	peeked, err := p.Peek(t.Context(), policy.Subject{Rule: "public-api", Key: []string{"ann"}}, 1)
	require.NoError(t, err)
	assert.Equal(t, 39, peeked.Remaining)
	assert.Equal(t, 39, pass(p, attrs{"user": "ann"}, 60))
	require.Equal(t, "public-api", p.Denied(1)[0].Rule)
	require.NoError(t, p.Update(ratelimit.Must(policy.Parse([]byte("rules:\n- {name: api, key: user, limit: fixed-window 100/h}\n")))))
	assert.Zero(t, pass(p, attrs{"user": "ann"}, 60), "and back")
}

func TestTimesAndBudgetsAreCheckedWithTheirFields(t *testing.T) {
	for text, fault := range map[string]string{
		"from: 2026-01-01":            `rules[0].from: "2026-01-01", want an instant of RFC 3339`,
		"from: tomorrow":              "rules[0].from: \"tomorrow\"",
		"until: 7":                    "rules[0].until: 7 is a number",
		"until: 0001-01-01T00:00:00Z": "rules[0].until",
		"from: 2026-01-01T00:00:00Z\n  until: 2026-01-01T00:00:00Z":                                                                               "rules[0].until: 2026-01-01T00:00:00Z, want an instant after from",
		"key: user\n  overrides: [{key: a, limit: blocked, from: 2026-01-02T00:00:00Z, until: 2026-01-01T00:00:00Z}]":                             "rules[0].overrides[0]: until is 2026-01-01T00:00:00Z, want an instant after from",
		"key: user\n  overrides: [{key: a, limit: blocked, until: x}]":                                                                            "rules[0].overrides[0].until",
		"key: user\n  overrides: [{key: a, limit: blocked}, {key: a, limit: unlimited}]":                                                          "overrides[0] has the same key",
		"key: user\n  overrides: [{key: a, limit: blocked, from: 2026-01-01T00:00:00Z}, {key: a, limit: unlimited, until: 2026-01-01T00:00:01Z}]": "overrides[0] has the same key, from 2026-01-01T00:00:00Z",
		"budget: 1x":    "rules[0].budget",
		"budget: 'a b'": "rules[0].budget",
		"budget: OTHER": `rule "api": rules[0].budget: rules[1] has the budgets of this name`,
	} {
		_, err := policy.Parse([]byte("rules:\n- name: api\n  limit: fixed-window 1/s\n  " + text + "\n- {name: other, limit: blocked}\n"))
		require.ErrorContains(t, err, fault, text)
	}
	_, err := policy.Parse([]byte("rules:\n- {name: a, limit: blocked, budget: x}\n- {name: b, limit: blocked, budget: X}\n"))
	require.ErrorContains(t, err, `line 3: rule "b": rules[1].budget: rules[0] has the budgets of this name`)
	_, err = policy.Parse([]byte("rules:\n- {name: a, limit: blocked, budget: b}\n- {name: b, limit: blocked, budget: a}\n"))
	require.NoError(t, err, "names that are exchanged")
	_, err = policy.Parse([]byte("rules:\n- {name: a, key: k, limit: token-bucket 1/s burst 9, share: 1, overrides: [{key: x, share: 2, until: 2026-01-01T00:00:00Z}]}\n"))
	require.ErrorContains(t, err, "share is 2, with a time")
	_, err = policy.Parse([]byte("rules:\n- {name: a, allow: true, budget: x}\n"))
	require.ErrorContains(t, err, "rules[0].budget: the rule allows")
}

func TestTimesAndBudgetsSurviveJSONAndYAML(t *testing.T) {
	set, err := policy.Parse([]byte(`rules:
- {name: api, key: k, limit: blocked, budget: old, from: 2026-01-01T00:00:00.5+01:00, overrides: [{key: a, limit: unlimited, until: 2026-01-01T00:00:00Z}, {key: b, limit: unlimited}]}
`))
	require.NoError(t, err)
	for _, marshal := range []func(any) ([]byte, error){json.Marshal, func(v any) ([]byte, error) { return yaml.Marshal(v) }} {
		data, err := marshal(set)
		require.NoError(t, err)
		again, err := policy.Parse(data)
		require.NoError(t, err, "%s", data)
		assert.True(t, set.Rules[0].From.Equal(again.Rules[0].From))
		assert.True(t, set.Rules[0].Overrides[0].Until.Equal(again.Rules[0].Overrides[0].Until))
		assert.True(t, again.Rules[0].Until.IsZero())
		assert.NotContains(t, string(data), "0001")
		assert.Equal(t, "old", again.Rules[0].Budget)
	}
}
