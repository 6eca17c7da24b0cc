package policyredis_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/redistest"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/internal/outcome"
	"github.com/weir-go/ratelimit/keyfunc"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policyredis"
)

const rules = `
rules:
- {name: api, key: user, limit: fixed-window 10/h, plans: {pro: fixed-window 100/h}, overrides: [{key: mallory, limit: blocked}]}
- {name: tokens, key: user, limit: fixed-window 1000/h, cost: tokens, optional: true}
- {name: trial, shadow: true, limit: fixed-window 1/h}
`

var ann = policy.Attributes{"user": "ann"}

func TestOneBudgetForSeveralPolicies(t *testing.T) {
	addr := redistest.Start(t).Addr
	two := []*policy.Policies{shared(t, addr, rules), shared(t, addr, rules)}
	for i := range 12 {
		d := take(t, two[i%2], ann, 1)
		assert.Equal(t, i < 10, d.Allowed, i)
		assert.Equal(t, "api", d.Limit.Name)
	}
	d := take(t, two[0], policy.Attributes{"user": "ann", "plan": "pro"}, 1)
	assert.True(t, d.Allowed)
	assert.Equal(t, 89, d.Remaining, "an upgrade keeps what was spent")
	_, err := two[0].Take(t.Context(), policy.Attributes{"user": "mallory"}, 1)
	require.ErrorIs(t, err, ratelimit.ErrBlocked)
}

func TestOnRedisARenamedRuleKeepsItsSpendingAndAnOverrideEnds(t *testing.T) {
	addr := redistest.Start(t).Addr
	take(t, shared(t, addr, "rules:\n- {name: api, key: user, limit: token-bucket 1/h burst 100}\n"), ann, 60)
	d := take(t, shared(t, addr, "rules:\n- {name: public, budget: Api, key: user, limit: token-bucket 1/h burst 100, overrides: [{key: ann, limit: blocked, until: 2020-01-01T00:00:00Z}]}\n"+
		"- {name: later, from: 2500-01-01T00:00:00Z, limit: blocked}\n"), ann, 1)
	assert.True(t, d.Allowed)
	assert.Equal(t, 39, d.Remaining)
	assert.Equal(t, "public", d.Limit.Name)
}

func TestOnRedisAGraceDeniesAboveIt(t *testing.T) {
	p := over(t, local(t), "rules:\n- {name: quota, key: user, grace: 10%, limit: token-bucket 1/h burst 100}\n- {name: api, key: user, limit: token-bucket 1/h burst 105}\n", policyredis.Options{}, policy.Options{})
	type row struct {
		cost            int
		allowed         bool
		remaining, debt int
		limit           string
	}
	for _, want := range []row{{90, true, 10, 0, "quota"}, {12, true, 0, 2, "quota"}, {4, false, 3, 0, "api"}, {3, true, 0, 5, "quota"}} {
		d := take(t, p, ann, want.cost)
		assert.Equal(t, want, row{want.cost, d.Allowed, d.Remaining, d.Debt, d.Limit.Name})
	}
}

// TestNoCredentialIsStoredOnRedis, neither in a name nor in a value.
func TestNoCredentialIsStoredOnRedis(t *testing.T) {
	client := local(t)
	p := over(t, client, "rules:\n- {name: a, key: header:X-API-Key, limit: fixed-window 9/h}\n- {name: b, key: [ip, header:Authorization], limit: sliding-log 9/h}", policyredis.Options{}, policy.Options{})
	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set("X-API-Key", "s3cret")
	r.Header.Set("Authorization", "s3cret")
	require.True(t, p.Allow(policy.HTTP(r, nil), 1))
	keys := client.Keys(t.Context(), "*").Val()
	require.Len(t, keys, 2)
	for _, key := range keys {
		dump, err := client.Dump(t.Context(), key).Result()
		require.NoError(t, err)
		assert.NotContains(t, key+dump, "s3cret")
		assert.True(t, strings.HasPrefix(key, "policy:"), key)
	}
}

// TestAWaitThatGivesUpIsADenial compares the reports of a Wait on Redis and in memory.
func TestAWaitThatGivesUpIsADenial(t *testing.T) {
	const text = "rules:\n- {name: wide, limit: fixed-window 100/h}\n- {name: narrow, key: user, limit: token-bucket 1/h burst 1}\n- {name: trial, shadow: true, limit: fixed-window 1/h}"
	var seen []policy.Decision
	for name, p := range both(t, local(t), "", text, policy.Options{OnDecision: func(d policy.Decision) { seen = append(seen, d) }}) {
		seen = nil
		end := func(n int) outcome.Outcome { return outcome.Of(seen[n].Decision, seen[n].Err) }
		require.NoError(t, p.Wait(t.Context(), ann, 1), name)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.ErrorIs(t, p.Wait(ctx, ann, 1), context.DeadlineExceeded, name)
		for patience := 50 * time.Millisecond; len(seen) < 3 || end(2) == outcome.Failed && patience < time.Minute; patience *= 2 { // a busy machine had not yet booked
			seen = seen[:2]
			ctx, cancel = context.WithCancel(t.Context())
			time.AfterFunc(patience, cancel)
			require.ErrorIs(t, p.Wait(ctx, ann, 1), context.Canceled, name)
		}
		require.ErrorIs(t, p.Wait(ctx, ann, 1), context.Canceled, name)
		require.Len(t, seen, 4)
		assert.Equal(t, []outcome.Outcome{outcome.Allowed, outcome.Denied, outcome.Denied, outcome.Failed}, []outcome.Outcome{end(0), end(1), end(2), end(3)}, name)
		assert.Equal(t, "narrow", seen[0].Decision.Limit.Name, name)
		for _, d := range seen[1:3] {
			assert.Equal(t, "narrow", d.Decision.Limit.Name, name)
			assert.Equal(t, []bool{true, false}, []bool{d.Rules[0].Decision.Allowed, d.Rules[1].Decision.Allowed}, name)
			assert.True(t, d.Rules[0].Answered && d.Rules[1].Answered, name)
			assert.Positive(t, d.Rules[1].Decision.RetryAfter, name)
			assert.False(t, d.Rules[0].Spent || d.Rules[1].Spent, name)
		}
		assert.False(t, seen[3].Rules[0].Answered, name)
	}
}

// TestSupportFreesAndFinanceCharges looks at single budgets and changes them, on Redis and in memory.
func TestSupportFreesAndFinanceCharges(t *testing.T) {
	const text = `
rules:
- {name: api, key: [user, region], limit: unlimited, plans: {pro: fixed-window 100/h}, overrides: [{key: [acme, eu], limit: token-bucket 50/h burst 50}]}
- {name: nets, key: ip/24, limit: sliding-log 10/h, cost: 3, shadow: true, optional: true}
- {name: all, limit: fixed-window 1000/h}
- {name: probes, allow: true, match: {route: /health}}
`
	client := local(t)
	ann, acme := policy.Subject{Rule: "API", Key: []string{"ann", "eu"}, Plan: "pro"}, policy.Subject{Rule: "api", Key: []string{"acme", "eu"}}
	net, all := policy.Subject{Rule: "nets", Key: []string{"192.0.2.7"}}, policy.Subject{Rule: "all"}
	request := policy.Attributes{"user": "ann", "region": "eu", "plan": "pro", "ip": "192.0.2.9"}
	for n, hook := range []func(policy.Decision){nil, func(policy.Decision) {}} {
		for name, p := range both(t, client, fmt.Sprint(n), text, policy.Options{OnDecision: hook}) {
			adjust := func(r policy.Request, delta int) { require.NoError(t, p.Adjust(t.Context(), r, delta), name) }
			reset := func(r policy.Request) { require.NoError(t, p.Reset(t.Context(), r), name) }
			look := func(r policy.Request, cost int) ratelimit.Decision {
				d, err := p.Peek(t.Context(), r, cost)
				require.NoError(t, err)
				return d
			}
			standing := func(want ...int) {
				t.Helper()
				assert.Equal(t, want, []int{look(ann, 1).Remaining, look(acme, 1).Remaining, look(net, 1).Remaining, look(all, 1).Remaining}, name)
			}
			require.True(t, p.Allow(request, 40))
			standing(60, 50, 7, 960)
			for s, remaining := range map[*policy.Subject]int{&ann: 60, &net: 7, &acme: 50} {
				d, err := p.Peek(t.Context(), s, 101)
				require.ErrorIs(t, err, ratelimit.ErrExceedsLimit, name)
				assert.Equal(t, []any{false, remaining}, []any{d.Allowed, d.Remaining}, "%d: what is left, although the cost can never pass", name)
			}
			ex, err := p.Explain(request, 101)
			require.NoError(t, err)
			assert.Equal(t, []int{60, 7, 960}, []int{ex.Rules[0].Decision.Remaining, ex.Rules[1].Decision.Remaining, ex.Rules[2].Decision.Remaining}, name)
			adjust(ann, 70)
			standing(0, 50, 7, 960)
			assert.False(t, look(ann, 1).Allowed)
			adjust(ann, -20)
			standing(10, 50, 7, 960)
			reset(ann)
			adjust(acme, 45)
			adjust(policy.Subject{Rule: "nets", Key: []string{"192.0.2.0/24"}}, -3)
			standing(100, 5, 10, 960)
			for _, bad := range []policy.Subject{{Rule: "none"}, {Rule: "probes"}, {Rule: "api", Key: []string{"ann"}}, {Rule: "api", Key: []string{"ann", ""}}, {Rule: "all", Key: []string{"x"}}} {
				_, err := p.Peek(t.Context(), bad, 1)
				for _, err := range []error{err, p.Reset(t.Context(), bad), p.Adjust(t.Context(), bad, 1)} {
					require.Error(t, err)
					assert.NotContains(t, err.Error(), "ann")
				}
			}
			adjust(request, 30)
			standing(70, 5, 10, 930) // the shadow has a cost of its own
			d := look(request, 60)
			assert.Equal(t, []any{true, 70}, []any{d.Allowed, d.Remaining}, name)
			reset(request)
			standing(100, 5, 10, 1000)
			assert.True(t, look(policy.Attributes{"path": "/health"}, 5).Allowed, name)
			_, err = p.Peek(t.Context(), policy.Attributes{}, 5)
			require.ErrorIs(t, err, keyfunc.ErrNoKey)
			_, err = p.Peek(t.Context(), all, -1)
			require.ErrorIs(t, err, ratelimit.ErrNegativeCost)
			assert.True(t, p.Describe().ReplacesCost)
		}
	}
}

func TestADecisionIsOneRoundTrip(t *testing.T) {
	count := new(trips)
	p := over(t, local(t), rules, policyredis.Options{Hooks: []redis.Hook{count}}, policy.Options{})
	r := policy.Attributes{"user": "ann", "tokens": "1"}
	require.True(t, p.Allow(r, 1)) // loads the script
	before, commands := count.n.Load(), count.commands.Load()
	for range 5 {
		require.True(t, p.Allow(r, 1))
	}
	assert.Equal(t, []int64{5, 5}, []int64{count.n.Load() - before, count.commands.Load() - commands})
}

// TestEnginesReportTheSame plays random requests against random rules, shadows among them, in memory and on Redis. Costs are 0,
// above a capacity, or of the rule's own, and settled at the real cost. Nothing is regained during the test.
func TestEnginesReportTheSame(t *testing.T) {
	client := local(t)
	limits := []string{"token-bucket 1/720h burst 5", "fixed-window 4/720h", "sliding-log 6/720h", "sliding-counter 7/720h", "unlimited", "blocked"}
	for seed := range uint64(30) {
		rnd := rand.New(rand.NewPCG(testsize.Seed(seed), 1))
		text := "rules:\n"
		for i := range 1 + rnd.IntN(4) {
			text += fmt.Sprintf("- {name: r%d, limit: %s, shadow: %v, optional: true", i, limits[rnd.IntN(len(limits))], rnd.IntN(2) == 0)
			text += []string{"", ", key: user", ", key: [user, plan]"}[rnd.IntN(3)]
			text += []string{"", ", cost: 2", ", cost: weight", ", cost: weight, actual: real", ", costs: [{match: {attributes: {plan: pro}}, cost: 3}]"}[rnd.IntN(5)]
			text += []string{"", ", plans: {pro: fixed-window 9/720h}"}[rnd.IntN(2)] + "}\n"
		}
		var seen []policy.Decision
		policies := both(t, client, fmt.Sprint(seed, ":"), text, policy.Options{OnDecision: func(d policy.Decision) { seen = append(seen, d) }})
		for step := range 25 {
			r := policy.Attributes{"user": []string{"ann", "bob"}[rnd.IntN(2)], "weight": strconv.Itoa(rnd.IntN(10)), "real": strconv.Itoa(rnd.IntN(5))}
			if rnd.IntN(2) == 0 {
				r["plan"] = []string{"pro", "free"}[rnd.IntN(2)]
			}
			cost, reserves, actual := rnd.IntN(9), rnd.IntN(3) == 0, rnd.IntN(4)
			seen = nil
			for _, p := range policies {
				if !reserves {
					_, _ = p.Take(t.Context(), r, cost)
				} else if res, err := p.Reserve(t.Context(), r, cost, 0); err == nil {
					require.NoError(t, res.Settle(actual))
				}
			}
			memory, remote := seen[0], seen[1]
			what := fmt.Sprintf("%v: step %d of seed %d, cost %d of %v, under\n%s", remote.Err, step, seed, cost, r, text)
			assert.Equal(t, outcome.Of(memory.Decision, memory.Err), outcome.Of(remote.Decision, remote.Err), what)
			require.True(t, remote.Err != nil || memory.Decision.Remaining == remote.Decision.Remaining, what)
			require.Len(t, remote.Rules, len(memory.Rules), what)
			for i := range memory.Rules {
				m, r := memory.Rules[i], remote.Rules[i]
				if remote.Err != nil { // Redis was not called
					require.True(t, !r.Answered || r.Decision.Allowed == m.Decision.Allowed, what)
					require.False(t, r.Spent || m.Spent, what)
					require.True(t, r.Answered && !r.Decision.Allowed || r.Rule != remote.Decision.Limit.Name, "the rule that can never allow is reported: %s", what)
					continue
				}
				m.Decision.RetryAfter, m.Decision.ResetAfter, m.Decision.NextAfter = 0, 0, 0
				r.Decision.RetryAfter, r.Decision.ResetAfter, r.Decision.NextAfter = 0, 0, 0
				require.Equal(t, m, r, what)
			}
		}
	}
}
