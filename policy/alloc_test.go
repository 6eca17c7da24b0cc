//go:build !race

package policy_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/policy"
)

func TestADenialAllocatesNothing(t *testing.T) {
	p, err := policy.New(parsed(t, "rules: [{name: api, key: user, limit: fixed-window 1/h}]"), nil)
	require.NoError(t, err)
	ann := policy.Request(policy.Attributes{"user": "ann"})
	p.Allow(ann, 1)
	assert.Zero(t, testing.AllocsPerRun(200, func() { p.Allow(ann, 1) }))
	assert.Zero(t, testing.AllocsPerRun(200, func() { _, _ = p.Take(t.Context(), ann, 1) }))
}

// TestAHookAllocatesNoMore checks that memory for a hook is allocated for many decisions at once, or not at all.
func TestAHookAllocatesNoMore(t *testing.T) {
	const rules = `
rules:
- {name: probes, allow: true, match: {attributes: {path: /healthz}}}
- {name: api, key: user, limit: token-bucket 1000000000/s burst 1000000000, plans: {pro: token-bucket 2000000000/s burst 2000000000}, overrides: [{key: eve, limit: unlimited}]}
- {name: tenants, key: tenant, limit: fixed-window 1000000000/s, optional: true}
- {name: weights, key: user, limit: fixed-window 1000000000/s, cost: tokens, optional: true}
- {name: trial, key: nobody, limit: fixed-window 1/h, optional: true, shadow: true}
`
	for _, opts := range []*policy.Options{nil, {OnDecision: func(policy.Decision) {}}, {OnDecision: func(policy.Decision) {}, ReuseRules: true}} {
		p, err := policy.New(parsed(t, rules), opts)
		require.NoError(t, err)
		for name, a := range map[string]policy.Attributes{
			"a plan": {"user": "ann", "plan": "pro"}, "an override": {"user": "eve"}, "an optional attribute": {"user": "ann", "tenant": "acme", "tokens": "3"},
			"an exemption": {"path": "/healthz"},
		} {
			r := policy.Request(a)
			p.Allow(r, 1)
			assert.Zero(t, testing.AllocsPerRun(1000, func() { p.Allow(r, 1) }), name)
			assert.Zero(t, testing.AllocsPerRun(1000, func() { _, _ = p.Take(t.Context(), r, 1) }), name)
			if opts == nil || opts.ReuseRules { // otherwise Wait allocates the rules' decisions, because the hook may keep them
				assert.Zero(t, testing.AllocsPerRun(1000, func() { _ = p.Wait(t.Context(), r, 1) }), name)
			}
		}
	}
}

func TestReusedRulesTakeNoMemory(t *testing.T) {
	p, err := policy.New(parsed(t, many(3, "POST /v1/charges")), &policy.Options{OnDecision: func(policy.Decision) {}, ReuseRules: true})
	require.NoError(t, err)
	r := &benchRequest{"user", "192.0.2.1"}
	var before, after runtime.MemStats
	const decisions = 10_000
	p.Allow(r, 1)
	runtime.ReadMemStats(&before)
	for range decisions {
		_, _ = p.Take(t.Context(), r, 1)
	}
	runtime.ReadMemStats(&after)
	assert.Less(t, (after.TotalAlloc-before.TotalAlloc)/decisions, uint64(10), "bytes a decision")
}

func TestAReplacementCostsNoMemory(t *testing.T) {
	testsize.Extra(t) // scripts/test compiles without inlining, and then the hook allocates
	p := inForceOf(t, `
- {name: bulk, match: {route: "POST /api/bulk/"}, key: user, limit: fixed-window 1000000000/h, instead: [api]}
- {name: api, match: {route: /api/}, key: user, limit: fixed-window 100/h}`)
	r := policy.Request(policy.Attributes{"method": "POST", "path": "/api/bulk/1", "user": "ann"})
	require.True(t, p.Allow(r, 1))
	assert.Zero(t, testing.AllocsPerRun(100, func() { p.Allow(r, 1) }))
}

func TestALimitFromAnAttributeAllocatesNothingOnceItIsKnown(t *testing.T) {
	p := inForceOf(t, `- {name: api, key: user, limit: fixed-window 10/h, limit_from: quota}`)
	r := policy.Request(policy.Attributes{"user": "ann", "quota": "1000000000"})
	require.True(t, p.Allow(r, 1))
	assert.Zero(t, testing.AllocsPerRun(100, func() { p.Allow(r, 1) }))
}
