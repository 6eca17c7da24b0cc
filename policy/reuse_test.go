package policy_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// TestReusedRulesAgreeWithKeptOnes runs random histories twice: with memory for hooks to keep, and with reused memory.
func TestReusedRulesAgreeWithKeptOnes(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(testsize.Seed(seed), 1))
		set := (&model{spent: map[budgetOf]budget{}, denied: map[policy.Denials]int64{}}).draw(rnd, map[string]bool{})
		calls := make([]func(p *policy.Policies), 100)
		for i := range calls {
			r, cost, method := drawRequest(rnd), rnd.IntN(5), rnd.IntN(4)
			calls[i] = func(p *policy.Policies) {
				if method < 3 {
					_, _ = decideBy(method, p, r, cost)
					return
				}
				gone, cancel := context.WithCancel(t.Context())
				cancel()
				_ = p.Wait(gone, r, cost)
			}
		}
		history := func(reuse bool) (decisions []policy.Decision) {
			p, err := policy.New(set, &policy.Options{
				Engine:     policy.Memory(&policy.MemoryOptions{Clock: new(ratelimittest.Clock)}),
				ReuseRules: reuse,
				OnDecision: func(d policy.Decision) {
					if reuse {
						d.Rules = slices.Clone(d.Rules)
					}
					decisions = append(decisions, d)
				},
			})
			require.NoError(t, err)
			for _, call := range calls {
				call(p)
			}
			return decisions
		}
		require.Equal(t, history(false), history(true), "seed %d", seed)
	}
}

// TestReusedRulesAreOfOneRequest checks that no other request writes to the
// rules while a hook reads them, not even a request from the hook itself.
func TestReusedRulesAreOfOneRequest(t *testing.T) {
	type ofCaller = policy.Attributes
	var p *policy.Policies
	hook := func(d policy.Decision) {
		user, _ := d.Request.Attribute("user")
		if _, nested := d.Request.Attribute("nested"); !nested {
			p.Allow(ofCaller{"user": "nested in " + user, "nested": "yes"}, 1)
		}
		if assert.Len(t, d.Rules, 2) {
			assert.Equal(t, user, d.Rules[0].Key)
			assert.Empty(t, d.Rules[1].Key)
		}
	}
	p, err := policy.New(parsed(t, "rules: [{name: user, key: user, limit: fixed-window 100/h}, {name: all, limit: fixed-window 1000000/h}]"),
		&policy.Options{OnDecision: hook, ReuseRules: true})
	require.NoError(t, err)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 200 {
				p.Allow(ofCaller{"user": fmt.Sprint(g, " ", i%20)}, 1)
			}
		})
	}
	wg.Wait()
}
