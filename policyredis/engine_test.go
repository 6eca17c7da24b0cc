package policyredis_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
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

// Two processes count by the same budget, also while one has the set before and the other a set with another name for the rule.
func TestOneBudgetForSeveralPolicies(t *testing.T) {
	addr := redistest.Start(t).Addr
	const renamed = "rules: [{name: public, budget: Api, key: user, limit: fixed-window 10/h, plans: {pro: fixed-window 100/h}}, {name: later, from: 2500-01-01T00:00:00Z, limit: blocked}]"
	two := []*policy.Policies{shared(t, addr, rules), shared(t, addr, renamed)}
	for i := range 12 {
		d := take(t, two[i%2], ann, 1)
		assert.Equal(t, i < 10, d.Allowed, i)
		assert.Equal(t, []string{"api", "public"}[i%2], d.Limit.Name)
	}
	d := take(t, two[0], policy.Attributes{"user": "ann", "plan": "pro"}, 1)
	assert.Equal(t, 89, d.Remaining, "an upgrade keeps what was spent")
	_, err := two[0].Take(t.Context(), policy.Attributes{"user": "mallory"}, 1)
	require.ErrorIs(t, err, ratelimit.ErrBlocked)
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

// A denial of a rule that is charged always takes one more round trip, or two if its budgets differ from what the script returns.
func TestADecisionIsOneRoundTrip(t *testing.T) {
	client := local(t)
	for limit, denial := range map[string]int64{
		"token-bucket 100/h burst 100": 2, "fixed-window 100/h": 2,
		"calendar 100/month UTC": 3, // months differ in length
		"sliding-log 100/h":      3,
	} {
		count := new(trips)
		p := over(t, client, "rules: [{name: tokens, key: user, limit: "+limit+", charge: always}, {name: calls, limit: fixed-window 100/h, cost: 1}]",
			policyredis.Options{Hooks: []redis.Hook{count}}, policy.Options{})
		require.NoError(t, client.FlushDB(t.Context()).Err())
		for _, user := range []string{"scripts", "ann"} { // the first one loads them
			for _, cost := range []int{90, 20, 35} {
				before, commands := count.n.Load(), count.commands.Load()
				allowed := take(t, p, policy.Attributes{"user": user}, cost).Allowed
				if assert.Equal(t, cost == 90, allowed, limit); user == "ann" {
					assert.Equal(t, map[bool]int64{true: 1, false: denial}[allowed], count.n.Load()-before, limit)
				}
				if user == "ann" && allowed {
					assert.EqualValues(t, 1, count.commands.Load()-commands, limit)
				}
			}
		}
		for _, key := range client.Keys(t.Context(), "*").Val() {
			assert.Regexp(t, "^policy:(tokens|calls):", key)
		}
	}
}

// TestEnginesReportTheSame plays random requests against random rules, shadows among them, in memory and on Redis. Costs are 0,
// above a capacity, or of the rule's own, settled at the real cost, charged always or within a grace. Operators look at single budgets, change and
// reset them. Nothing is regained during the test.
func TestEnginesReportTheSame(t *testing.T) {
	client := local(t)
	limits := []string{"token-bucket 1/720h burst 5", "fixed-window 4/720h", "sliding-log 6/720h", "sliding-counter 7/720h", "unlimited", "blocked"}
	keys := [][]string{nil, {"user"}, {"user", "plan"}}
	for seed := range uint64(40) {
		rnd := rand.New(rand.NewPCG(testsize.Seed(seed), 1))
		text := "rules:\n"
		converted := rnd.IntN(2) == 0 // some plans have another algorithm. A state that is converted with a debt may keep less of it.
		var keyOf [][]string
		for i := range 1 + rnd.IntN(4) {
			keyOf = append(keyOf, keys[rnd.IntN(3)])
			limit := limits[rnd.IntN(len(limits))]
			extras := []string{"", ", cost: 2", ", cost: weight", ", cost: weight, actual: real", ", costs: [{match: {attributes: {plan: pro}}, cost: 3}]"}
			if converted {
				extras = append(extras, ", plans: {pro: fixed-window 9/720h}", ", cost: 2, plans: {pro: fixed-window 9/720h}")
			} else if extras = append(extras, ", charge: always"); strings.Contains(limit, "720h") {
				extras = append(extras, ", grace: 50%")
			}
			text += fmt.Sprintf("- {name: r%d, limit: %s, shadow: %v, optional: true, key: [%s]%s}\n", i, limit, rnd.IntN(2) == 0, strings.Join(keyOf[i], ", "), extras[rnd.IntN(len(extras))])
		}
		var seen []policy.Decision
		policies := both(t, client, fmt.Sprint(seed, ":"), text, policy.Options{OnDecision: func(d policy.Decision) { seen = append(seen, d) }})
		for step := range 25 {
			r := policy.Attributes{"user": []string{"ann", "bob"}[rnd.IntN(2)], "weight": strconv.Itoa(rnd.IntN(10)), "real": strconv.Itoa(rnd.IntN(5))}
			if rnd.IntN(2) == 0 {
				r["plan"] = []string{"pro", "free"}[rnd.IntN(2)]
			}
			cost, reserves, actual := rnd.IntN(9), rnd.IntN(3) == 0, rnd.IntN(4)
			of, operator, delta := rnd.IntN(len(keyOf)), rnd.IntN(8), rnd.IntN(7)-3
			subject := policy.Subject{Rule: fmt.Sprint("R", of), Plan: r["plan"]}
			for _, name := range keyOf[of] {
				subject.Key = append(subject.Key, cmp.Or(r[name], "free"))
			}
			seen = nil
			var standings [2][2]string
			for i, p := range policies {
				if !reserves {
					_, _ = p.Take(t.Context(), r, cost)
				} else if res, err := p.Reserve(t.Context(), r, cost, 0); err == nil {
					require.NoError(t, res.Settle(actual))
				}
				for k, at := range []policy.Request{subject, r} {
					d, err := p.Peek(t.Context(), at, 1)
					if standings[i][k] = fmt.Sprint(d.Allowed, d.Remaining, d.Debt, d.Limit); err != nil { // Redis was not called
						standings[i][k] = "never"
					}
					if operator == k && !converted {
						_ = p.Adjust(t.Context(), at, delta)
					} else if operator == 2+k {
						_ = p.Reset(t.Context(), at)
					}
				}
			}
			memory, remote := seen[0], seen[1]
			what := fmt.Sprintf("%v: step %d of seed %d, cost %d of %v, under\n%s", remote.Err, step, seed, cost, r, text)
			require.Equal(t, standings[0], standings[1], what)
			assert.Equal(t, outcome.Of(memory.Decision, memory.Err), outcome.Of(remote.Decision, remote.Err), what)
			require.True(t, remote.Err != nil || memory.Decision.Remaining == remote.Decision.Remaining, what)
			require.Len(t, remote.Rules, len(memory.Rules), what)
			for i := range memory.Rules {
				m, r := memory.Rules[i], remote.Rules[i]
				if remote.Err != nil { // Redis was not called
					require.True(t, !r.Answered || r.Decision.Allowed == m.Decision.Allowed || !converted, what) // a rule that is charged always was charged later
					require.Equal(t, m.Spent, r.Spent, what)
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
