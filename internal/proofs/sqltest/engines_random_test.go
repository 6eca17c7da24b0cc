package sqltest

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/internal/outcome"
	"github.com/weir-go/ratelimit/policy"
)

// TestEnginesReportTheSame plays random requests against random rules, shadows among them, in memory and in each
// store. A cost may be 0, above a capacity, or the rule's own. It may be settled at the real cost, and charged always
// or within a grace. Operators look at single budgets, change and reset them. Nothing is regained during the test.
func TestEnginesReportTheSame(t *testing.T) {
	memory := engines["memory"].open(t)
	for name, e := range engines {
		if !e.shared {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := e.open(t)
			for seed := range uint64(40) {
				playRandomRules(t, testsize.Seed(seed), memory, store)
			}
		})
	}
}

func playRandomRules(t *testing.T, seed uint64, engines ...func(name string) policy.Engine) {
	limits := []string{"token-bucket 1/720h burst 5", "fixed-window 4/720h", "sliding-log 6/720h", "sliding-counter 7/720h", "unlimited", "blocked"}
	keys := [][]string{nil, {"user"}, {"user", "plan"}}
	rnd := rand.New(rand.NewPCG(seed, 1))
	text := ""
	converted := rnd.IntN(2) == 0 // some plans have another algorithm. A state converted with a debt may keep less of it.
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
		text += fmt.Sprintf("- {name: r%d, limit: %s, shadow: %v, optional: true, key: [%s]%s}\n",
			i, limit, rnd.IntN(2) == 0, strings.Join(keyOf[i], ", "), extras[rnd.IntN(len(extras))])
	}
	var all []*served
	for _, made := range engines {
		all = append(all, newServed(t, made(fmt.Sprint("seed", seed)), text))
	}
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
		var standings [2][2]string
		for i, p := range all {
			if !reserves {
				_, _ = p.Take(t.Context(), r, cost)
			} else if res, err := p.Reserve(t.Context(), r, cost, 0); err == nil {
				require.NoError(t, res.Settle(actual))
			}
			for k, at := range []policy.Request{subject, r} {
				d, err := p.Peek(t.Context(), at, 1)
				if standings[i][k] = fmt.Sprint(d.Allowed, d.Remaining, d.Debt, d.Limit); err != nil { // the store was not called
					standings[i][k] = "never"
				}
				if operator == k && !converted {
					_ = p.Adjust(t.Context(), at, delta)
				} else if operator == 2+k {
					_ = p.Reset(t.Context(), at)
				}
			}
		}
		memory, remote := all[0].decided[step], all[1].decided[step]
		what := fmt.Sprintf("%v: step %d of seed %d, cost %d of %v, under\n%s", remote.Err, step, seed, cost, r, text)
		require.Equal(t, standings[0], standings[1], what)
		assert.Equal(t, outcome.Of(memory.Decision, memory.Err), outcome.Of(remote.Decision, remote.Err), what)
		require.True(t, remote.Err != nil || memory.Decision.Remaining == remote.Decision.Remaining, what)
		require.Len(t, remote.Rules, len(memory.Rules), what)
		for i := range memory.Rules {
			m, r := memory.Rules[i], remote.Rules[i]
			if remote.Err != nil { // Redis was not called
				// A rule with charge: always was charged later.
				require.True(t, !r.Answered || r.Decision.Allowed == m.Decision.Allowed || !converted, what)
				require.Equal(t, m.Spent, r.Spent, what)
				reported := r.Answered && !r.Decision.Allowed || r.Rule != remote.Decision.Limit.Name
				require.True(t, reported, "the rule that can never allow is reported: %s", what)
				continue
			}
			m.Decision.RetryAfter, m.Decision.ResetAfter, m.Decision.NextAfter = 0, 0, 0
			r.Decision.RetryAfter, r.Decision.ResetAfter, r.Decision.NextAfter = 0, 0, 0
			require.Equal(t, m, r, what)
		}
	}
}
