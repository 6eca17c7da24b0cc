package policy_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policy/internal/sketch"
)

const deniedRules = `rules:
- {name: users, key: user, limit: fixed-window 2/h, overrides: [{key: mallory, limit: blocked}]}
- {name: service, limit: fixed-window 4/h}
- {name: trial, key: user, shadow: true, limit: fixed-window 1/h}
`

func TestDeniedListsTheMostDeniedKeys(t *testing.T) {
	for _, hook := range []func(policy.Decision){nil, func(policy.Decision) {}} {
		for name, call := range map[string]func(*policy.Policies, policy.Request, int){
			"Allow":   func(p *policy.Policies, r policy.Request, cost int) { p.Allow(r, cost) },
			"Take":    func(p *policy.Policies, r policy.Request, cost int) { _, _ = p.Take(t.Context(), r, cost) },
			"Reserve": func(p *policy.Policies, r policy.Request, cost int) { _, _ = p.Reserve(t.Context(), r, cost, 0) },
			"Wait": func(p *policy.Policies, r policy.Request, cost int) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				_ = p.Wait(ctx, r, cost)
			},
		} {
			t.Run(fmt.Sprint(name, hook != nil), func(t *testing.T) {
				p, err := policy.New(parsed(t, deniedRules), &policy.Options{OnDecision: hook})
				require.NoError(t, err)
				assert.Empty(t, p.Denied(10))
				for range 5 {
					call(p, policy.Attributes{"user": "ann"}, 1) // allowed twice
				}
				call(p, policy.Attributes{"user": "mallory"}, 1)
				call(p, policy.Attributes{"user": "bob"}, 2) // allowed, and service is used up
				call(p, policy.Attributes{"user": "bob"}, 1) // both deny
				call(p, policy.Attributes{"user": "bob"}, 9) // no rule can ever allow the cost
				got := p.Denied(10)
				assert.Equal(t, policy.Denials{Rule: "trial", Key: "ann", Count: 4, Shadow: true}, got[0])
				assert.Subset(t, got, []policy.Denials{
					{Rule: "users", Key: "ann", Count: 3},
					{Rule: "users", Key: "mallory", Count: 1},
					{Rule: "users", Key: "bob", Count: 2},
				})
				assert.Len(t, p.Denied(2), 2)
				assert.Empty(t, p.Denied(0))
				assert.Empty(t, p.Denied(-1))
				require.NoError(t, p.Update(parsed(t, "rules: [{name: service, limit: unlimited}]")))
				for _, d := range p.Denied(10) {
					assert.Equal(t, "service", d.Rule, "the others are not in force")
				}
			})
		}
	}
}

func TestDenialsAreOfLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := policy.New(parsed(t, "rules: [{name: api, key: user, limit: blocked}]"), nil)
		require.NoError(t, err)
		p.Allow(policy.Attributes{"user": "ann"}, 1)
		time.Sleep(sketch.Window)
		assert.Len(t, p.Denied(10), 1)
		time.Sleep(sketch.Window)
		assert.Empty(t, p.Denied(10))
	})
}

func TestDeniedListsKeysWhileRulesChange(t *testing.T) {
	set := parsed(t, "rules: [{name: api, key: user, limit: blocked}]")
	p, err := policy.New(set, nil)
	require.NoError(t, err)
	var group sync.WaitGroup
	for g := range 4 {
		group.Go(func() {
			for i := range 500 {
				p.Allow(policy.Attributes{"user": fmt.Sprint(g, i)}, 1)
				_, _ = p.Take(t.Context(), policy.Attributes{"user": "heavy"}, 1)
				if i%50 == 0 {
					_ = p.Update(set)
					p.Denied(10)
				}
			}
		})
	}
	group.Wait()
	top := p.Denied(1)
	require.Len(t, top, 1)
	assert.Equal(t, "heavy", top[0].Key)
	assert.GreaterOrEqual(t, top[0].Count, int64(2000))
	assert.LessOrEqual(t, top[0].Count-top[0].Error, int64(2000))
}

func TestDenialsOfARuleOutliveAnotherCaseOfItsName(t *testing.T) {
	p, err := policy.New(parsed(t, "rules: [{name: users, key: user, limit: blocked}]"), nil)
	require.NoError(t, err)
	p.Allow(policy.Attributes{"user": "ann"}, 1)
	require.NoError(t, p.Update(parsed(t, "rules: [{name: Users, key: user, limit: blocked}]")))
	p.Allow(policy.Attributes{"user": "ann"}, 1)
	assert.Equal(t, []policy.Denials{{Rule: "Users", Key: "ann", Count: 2}}, p.Denied(10))
}

// partOf returns the text, cut from a request line of a megabyte. net/http cuts header fields from larger texts, too.
func partOf(text string) string {
	line := make([]byte, 1<<20)
	n := copy(line, text)
	return string(line)[:n]
}

func TestDeniedKeysKeepNoneOfTheirRequests(t *testing.T) {
	p, err := policy.New(parsed(t, "rules: [{name: tenants, key: tenant, limit: blocked}]"), nil)
	require.NoError(t, err)
	before := testsize.Heap()
	for i := range 200 {
		p.Allow(policy.Attributes{"tenant": partOf(fmt.Sprint("tenant", i))}, 1)
	}
	assert.Less(t, testsize.Heap()-before, int64(20<<20), "bytes for 200 denied tenants")
	assert.Len(t, p.Denied(1000), 200)
}

func TestAReservationKeepsItsKeysAndNotItsRequest(t *testing.T) {
	p, err := policy.New(parsed(t, "rules: [{name: tenants, key: tenant, limit: fixed-window 1000/h}]"), nil)
	require.NoError(t, err)
	before := testsize.Heap()
	var open []*ratelimit.Reservation
	for i := range 50 {
		res, err := p.Reserve(t.Context(), policy.Attributes{"tenant": fmt.Sprint("tenant", i), "body": partOf("x")}, 1, 0)
		require.NoError(t, err)
		open = append(open, res)
	}
	assert.Less(t, testsize.Heap()-before, int64(10<<20), "bytes for 50 open reservations")
	for _, res := range open {
		res.Cancel()
	}
}
