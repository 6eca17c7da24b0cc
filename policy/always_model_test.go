package policy_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/policy"
)

// alwaysRules are rules that regain nothing during a test.
const alwaysRules = `- {name: tokens, key: user, limit: token-bucket 1/h burst 100, charge: always}
- {name: team, key: team, limit: token-bucket 1/h burst 150, charge: always, grace: 10%}
- {name: requests, key: user, limit: token-bucket 1/h burst 12, cost: 1}
- {name: bytes, key: user, limit: token-bucket 1/h burst 60, cost: bytes}
- {name: trial, key: user, limit: token-bucket 1/h burst 50, charge: always, shadow: true}
`

// ledger is a small model of alwaysRules. It maps each rule with a key to its spending.
type ledger map[string]int

// figures lists each rule's key, its capacity for denials and for reports, and its cost.
var figures = []struct {
	rule, by       string
	denies, shows  int
	always, shadow bool
	cost           func(n int, r policy.Attributes) int
}{
	{"tokens", "user", 100, 100, true, false, func(n int, _ policy.Attributes) int { return n }},
	{"team", "team", 165, 150, true, false, func(n int, _ policy.Attributes) int { return n }},
	{"requests", "user", 12, 12, false, false, func(n int, _ policy.Attributes) int { return min(n, 1) }},
	{"bytes", "user", 60, 60, false, false, func(n int, r policy.Attributes) int {
		bytes, _ := strconv.Atoi(r["bytes"])
		return min(n, 1) * bytes
	}},
	{"trial", "user", 50, 50, true, true, func(n int, _ policy.Attributes) int { return n }},
}

// take makes a decision. It returns the rules charged the caller's cost, for a reservation's settlement.
func (l ledger) take(n int, r policy.Attributes) (allowed bool, charged []string) {
	allowed = true
	for _, f := range figures {
		c, spent := f.cost(n, r), l[f.rule+r[f.by]]
		allowed = allowed && (f.shadow || (c == 0 || spent+c <= f.denies) && (c > 0 || !f.always || spent < f.denies))
	}
	for _, f := range figures {
		id, c := f.rule+r[f.by], f.cost(n, r)
		if allowed || f.always {
			l[id] += c
		}
		if allowed && f.always {
			charged = append(charged, id)
		}
	}
	return allowed, charged
}

// TestARuleThatIsChargedAlwaysAgreesWithAModel compares random calls' results with the ledger's.
func TestARuleThatIsChargedAlwaysAgreesWithAModel(t *testing.T) {
	for seed := range testsize.Of[uint64](4, 60) {
		rnd := rand.New(rand.NewPCG(74, seed))
		p, _ := onClock(t, alwaysRules)
		model := ledger{}
		for step := range 60 {
			name := fmt.Sprintf("seed %d step %d", seed, step)
			r := policy.Attributes{"user": fmt.Sprintf("%d-%d", seed, rnd.IntN(2)), "team": fmt.Sprint("t", seed), "bytes": strconv.Itoa(rnd.IntN(25))}
			n := []int{0, 0, 1, 5, 20, 40, 120}[rnd.IntN(7)]
			settle, actual := rnd.IntN(3), rnd.IntN(50)
			if settle == 2 { // Settle(0) is Cancel
				actual = 0
			}
			allowed, charged := model.take(n, r)
			res, err := new(ratelimit.Reservation), error(nil)
			if settle == 0 {
				res.Decision, err = p.Take(t.Context(), r, n)
			} else {
				res, err = p.Reserve(t.Context(), r, n, 0)
			}
			require.True(t, err == nil || errors.Is(err, ratelimit.ErrExceedsLimit), "%v", err)
			require.Equal(t, allowed, res.Allowed && err == nil, "%s, cost %d of %v", name, n, r)
			if !allowed && err == nil {
				assert.Positive(t, res.RetryAfter, name)
			}
			if settle == 1 {
				require.NoError(t, res.Settle(actual))
			} else if settle == 2 {
				require.NoError(t, res.Cancel())
			}
			if allowed && settle > 0 {
				for _, id := range charged {
					model[id] += actual - n
				}
				for _, f := range figures {
					if actual == 0 && !f.always {
						model[f.rule+r[f.by]] -= f.cost(n, r)
					}
				}
			}
			reset := rnd.IntN(25) == 0
			for _, f := range figures {
				spent := model[f.rule+r[f.by]]
				require.Equal(t, [2]int{max(0, f.shows-spent), max(0, spent-f.shows)}, standing(t, p, f.rule, r[f.by]), "%s, rule %s after cost %d", name, f.rule, n)
				if reset {
					delete(model, f.rule+r[f.by])
					require.NoError(t, p.Reset(t.Context(), policy.Subject{Rule: f.rule, Key: []string{r[f.by]}}))
				}
			}
		}
	}
}
