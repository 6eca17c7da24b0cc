package policyredis_test

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
	"github.com/weir-go/ratelimit/ratelimittest"
)

// alwaysRules regain nothing during a test.
const alwaysRules = `rules:
- {name: tokens, key: user, limit: token-bucket 1/h burst 100, charge: always}
- {name: team, key: team, limit: token-bucket 1/h burst 150, charge: always, grace: 10%}
- {name: requests, key: user, limit: token-bucket 1/h burst 12, cost: 1}
- {name: bytes, key: user, limit: token-bucket 1/h burst 60, cost: bytes}
- {name: trial, key: user, limit: token-bucket 1/h burst 50, charge: always, shadow: true}
`

// ledger is a small model of alwaysRules: the spending of each rule and key.
type ledger map[string]int

// figures are the capacity by which each rule denies, and the rule's cost.
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

// take is a decision, and returns the spending that a reservation settles: the rules that are charged with the caller's cost.
func (l ledger) take(n int, r policy.Attributes) (allowed bool, charged []string) {
	allowed = true
	for _, f := range figures {
		c, spent := f.cost(n, r), l[f.rule+r[f.by]]
		if !f.shadow && (c > 0 && spent+c > f.denies || c == 0 && f.always && spent >= f.denies) {
			allowed = false
		}
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

// TestARuleThatIsChargedAlwaysIsTheSameInMemoryOnRedisAndInAModel plays random calls.
func TestARuleThatIsChargedAlwaysIsTheSameInMemoryOnRedisAndInAModel(t *testing.T) {
	addr := server(t)
	for seed := range testsize.Of[uint64](4, 60) {
		rnd := rand.New(rand.NewPCG(74, seed))
		memory, err := policy.New(ratelimit.Must(policy.Parse([]byte(alwaysRules))), &policy.Options{Engine: policy.Memory(&policy.MemoryOptions{Clock: new(ratelimittest.Clock)})})
		require.NoError(t, err)
		both := []*policy.Policies{memory, shared(t, addr, alwaysRules)}
		model := ledger{}
		for step := range 60 {
			name := fmt.Sprintf("seed %d step %d", seed, step)
			r := policy.Attributes{"user": fmt.Sprintf("%d-%d", seed, rnd.IntN(2)), "team": fmt.Sprint("t", seed), "bytes": strconv.Itoa(rnd.IntN(25))}
			n := []int{0, 0, 1, 5, 20, 40, 120}[rnd.IntN(7)]
			settle, real := rnd.IntN(3), rnd.IntN(50)
			allowed, charged := model.take(n, r)
			for k, p := range both {
				var d ratelimit.Decision
				var res *ratelimit.Reservation
				if settle == 0 {
					d, err = p.Take(t.Context(), r, n)
				} else {
					res, err = p.Reserve(t.Context(), r, n, 0)
					d = res.Decision
				}
				require.True(t, err == nil || errors.Is(err, ratelimit.ErrExceedsLimit), "%v", err)
				require.Equal(t, allowed, d.Allowed && err == nil, "%s, engine %d, cost %d of %v", name, k, n, r)
				if !allowed && err == nil {
					assert.Positive(t, d.RetryAfter, name)
				}
				if settle == 1 {
					require.NoError(t, res.Settle(real))
				} else if settle == 2 {
					require.NoError(t, res.Cancel())
				}
			}
			if allowed && settle > 0 {
				if settle == 2 {
					real = 0
				}
				for _, id := range charged {
					model[id] += real - n
				}
				if real == 0 { // Settle(0) is Cancel
					for _, f := range figures {
						if !f.always {
							model[f.rule+r[f.by]] -= f.cost(n, r)
						}
					}
				}
			}
			for _, f := range figures {
				spent := model[f.rule+r[f.by]]
				for k, p := range both {
					d, err := p.Peek(t.Context(), policy.Subject{Rule: f.rule, Key: []string{r[f.by]}}, 1)
					require.NoError(t, err)
					require.Equal(t, [2]int{max(0, f.shows-spent), max(0, spent-f.shows)}, [2]int{d.Remaining, d.Debt}, "%s, engine %d, rule %s after cost %d", name, k, f.rule, n)
				}
			}
			if rnd.IntN(25) == 0 {
				for _, f := range figures {
					delete(model, f.rule+r[f.by])
					for _, p := range both {
						require.NoError(t, p.Reset(t.Context(), policy.Subject{Rule: f.rule, Key: []string{r[f.by]}}))
					}
				}
			}
		}
	}
}
