package policyredis_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
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
	"github.com/weir-go/ratelimit/stats"
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

// left returns what is left of each rule for a request.
func left(t *testing.T, p *policy.Policies, r policy.Request) map[string]int {
	t.Helper()
	ex, err := p.Explain(r, 1)
	require.NoError(t, err)
	all := map[string]int{}
	for _, rule := range ex.Rules {
		all[rule.Rule] = rule.Decision.Remaining
	}
	return all
}

func TestAllRulesAreChargedOrNone(t *testing.T) {
	p := over(t, local(t), rules, policyredis.Options{}, policy.Options{})
	bob, cleo := policy.Attributes{"user": "bob", "tokens": "600"}, policy.Attributes{"user": "cleo"}
	assert.True(t, p.Allow(bob, 1))
	assert.False(t, p.Allow(bob, 1), "600 tokens more do not fit")
	assert.Equal(t, map[string]int{"api": 9, "tokens": 400, "trial": 0}, left(t, p, policy.Attributes{"user": "bob", "tokens": "1"}), "what was denied has charged nothing")
	require.NoError(t, reserve(t, p, cleo, 8).Settle(3))
	assert.True(t, p.Allow(cleo, 7))
	assert.False(t, p.Allow(cleo, 1))
}

func TestOnRedisEachRuleHasItsCostByRouteAndItsRealCost(t *testing.T) {
	p := over(t, local(t), `rules:
- {name: requests, key: user, cost: 1, limit: token-bucket 1/h burst 100}
- {name: points, key: user, limit: token-bucket 1/h burst 100, costs: [{match: {route: [/export]}, cost: 20}]}
- {name: tokens, key: user, cost: estimate, actual: tokens, limit: token-bucket 1/h burst 1000}
- {name: dollars, key: user, actual: dollars, limit: token-bucket 1/h burst 1000, shadow: true}
`, policyredis.Options{}, policy.Options{})
	r := policy.Attributes{"user": "ann", "path": "/export", "estimate": "300"}
	standing := func(requests, points, tokens, dollars int) {
		t.Helper()
		assert.Equal(t, map[string]int{"requests": requests, "points": points, "tokens": tokens, "dollars": dollars}, left(t, p, r))
	}
	res := reserve(t, p, r, 5)
	require.True(t, res.Allowed)
	standing(99, 80, 700, 995)
	r["tokens"], r["dollars"] = "40", "9"
	require.NoError(t, res.Settle(7))
	standing(99, 80, 960, 991)
	r["path"] = "/"
	res = reserve(t, p, r, 5)
	standing(98, 75, 660, 986)
	delete(r, "dollars")
	require.NoError(t, res.Settle(7))
	standing(98, 73, 920, 984) // without their attribute dollars are settled at the argument
	require.NoError(t, reserve(t, p, r, 5).Cancel())
	standing(98, 73, 920, 984)
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
	}
}

func TestEachRuleReportsItsDecision(t *testing.T) {
	client := local(t)
	var seen []policy.Decision
	p := over(t, client, rules, policyredis.Options{}, policy.Options{OnDecision: func(d policy.Decision) { seen = append(seen, d) }})
	for range 11 {
		take(t, p, ann, 1)
	}
	require.Len(t, seen, 11)
	first, second, last := seen[0].Rules, seen[1].Rules, seen[10].Rules
	for _, rules := range [][]stats.RuleDecision{first, second, last} {
		require.Len(t, rules, 2)
		assert.Equal(t, []string{"api", "trial"}, []string{rules[0].Rule, rules[1].Rule})
		assert.True(t, rules[0].Answered && rules[1].Answered)
	}
	assert.Equal(t, 9, first[0].Decision.Remaining)
	assert.True(t, first[0].Spent && first[1].Spent)
	assert.True(t, second[0].Decision.Allowed && second[0].Spent)
	assert.False(t, second[1].Decision.Allowed || second[1].Spent, "the shadow rule would have denied")
	assert.False(t, last[0].Decision.Allowed || last[0].Spent)
	assert.Positive(t, last[0].Decision.RetryAfter)

	require.NoError(t, client.Close())
	_, err := p.Take(t.Context(), ann, 1)
	require.Error(t, err)
	require.Len(t, seen, 12)
	assert.False(t, seen[11].Rules[0].Answered, "no answer")
}

// TestOnlyTheRuleThatCanNeverAllowIsReportedDenied compares the decisions of the rules on Redis with their decisions in memory,
// with a rule that blocks or is exceeded in each place among others.
func TestOnlyTheRuleThatCanNeverAllowIsReportedDenied(t *testing.T) {
	client := local(t)
	others := []string{"{name: a, key: user, limit: fixed-window 10/h}", "{name: b, limit: token-bucket 10/h burst 10}",
		"{name: c, shadow: true, limit: sliding-log 10/h}", "{name: d, key: user, limit: unlimited}"}
	for n, never := range []string{
		"{name: never, limit: blocked}",
		"{name: never, limit: fixed-window 3/h, cost: 4}",
		"{name: never, key: user, limit: fixed-window 10/h, overrides: [{key: ann, limit: blocked}]}",
		"{name: never, key: user, limit: fixed-window 10/h, plans: {free: leaky-bucket 1/h queue 1}, cost: 5}",
	} {
		for at := range len(others) + 1 {
			text := "rules:\n- " + strings.Join(slices.Insert(slices.Clone(others), at, never), "\n- ")
			var seen []policy.Decision
			for _, p := range both(t, client, fmt.Sprintf("%d-%d:", n, at), text, policy.Options{OnDecision: func(d policy.Decision) { seen = append(seen, d) }}) {
				_, err := p.Take(t.Context(), policy.Attributes{"user": "ann", "plan": "free"}, 1)
				require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
			}
			require.Len(t, seen, 2)
			for _, d := range seen {
				assert.Equal(t, "never", d.Decision.Limit.Name)
				for _, r := range d.Rules {
					assert.False(t, r.Spent)
					assert.True(t, r.Answered || r.Rule != "never")
					assert.True(t, !r.Answered || r.Decision.Allowed == (r.Rule != "never"), "%s, with %s at %d", r.Rule, never, at)
				}
			}
		}
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

// TestAFleetFollowsOneFile runs two followers that share budgets on one Redis and follow the rules in one file.
func TestAFleetFollowsOneFile(t *testing.T) {
	addr, path := redistest.Start(t).Addr, filepath.Join(t.TempDir(), "rules.yaml")
	write := func(limit string) {
		require.NoError(t, os.WriteFile(path+".new", []byte("rules:\n- {name: api, key: [user], limit: "+limit+"}\n"), 0o600))
		require.NoError(t, os.Rename(path+".new", path))
	}
	write("fixed-window 10/h")
	var fleet [2]*policy.Policies
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	for i := range fleet {
		fleet[i] = over(t, dial(t, addr), "rules: []", policyredis.Options{}, policy.Options{Logger: slog.New(slog.DiscardHandler)})
		go func() { ended <- policy.Follow(ctx, fleet[i], policy.File(path)) }()
	}
	passes := func(limit string, want int) {
		for _, p := range fleet {
			require.Eventually(t, func() bool {
				rules := p.Current().Rules
				return len(rules) == 1 && rules[0].Limit.String() == limit
			}, 30*time.Second, 20*time.Millisecond)
		}
		admitted := 0
		for i := range 30 {
			if take(t, fleet[i%2], ann, 1).Allowed {
				admitted++
			}
		}
		assert.Equal(t, want, admitted)
	}
	passes("fixed-window 10/h", 10) // one budget for both
	write("fixed-window 25/h")
	passes("fixed-window 25/h", 15) // the limit was raised, and the spending stays
	cancel()
	for range fleet {
		assert.ErrorIs(t, <-ended, context.Canceled)
	}
}

// TestEnginesReportTheSame plays random requests against random rules, shadows among them, in memory and on Redis. Costs are 0,
// above a capacity, or of the rule's own. Nothing is regained during the test.
func TestEnginesReportTheSame(t *testing.T) {
	client := local(t)
	limits := []string{"token-bucket 1/720h burst 5", "fixed-window 4/720h", "sliding-log 6/720h", "sliding-counter 7/720h", "unlimited", "blocked"}
	for seed := range uint64(30) {
		rnd := rand.New(rand.NewPCG(testsize.Seed(seed), 1))
		text := "rules:\n"
		for i := range 1 + rnd.IntN(4) {
			text += fmt.Sprintf("- {name: r%d, limit: %s, shadow: %v, optional: true", i, limits[rnd.IntN(len(limits))], rnd.IntN(2) == 0)
			text += []string{"", ", key: user", ", key: [user, plan]"}[rnd.IntN(3)]
			text += []string{"", ", cost: 2", ", cost: weight"}[rnd.IntN(3)]
			text += []string{"", ", plans: {pro: fixed-window 9/720h}"}[rnd.IntN(2)] + "}\n"
		}
		var seen []policy.Decision
		policies := both(t, client, fmt.Sprint(seed, ":"), text, policy.Options{OnDecision: func(d policy.Decision) { seen = append(seen, d) }})
		for step := range 25 {
			r := policy.Attributes{"user": []string{"ann", "bob"}[rnd.IntN(2)], "weight": strconv.Itoa(rnd.IntN(10))}
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
					continue
				}
				m.Decision.RetryAfter, m.Decision.ResetAfter, m.Decision.NextAfter = 0, 0, 0
				r.Decision.RetryAfter, r.Decision.ResetAfter, r.Decision.NextAfter = 0, 0, 0
				require.Equal(t, m, r, what)
			}
		}
	}
}
