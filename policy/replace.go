package policy

import (
	"slices"
	"strings"

	"github.com/weir-go/ratelimit/policy/internal/match"
)

// replacement is a rule that takes the place of others: see [Rule.Instead].
type replacement struct {
	rule  int
	of    []int      // the rules that it takes the place of, in order
	match match.Rule // of the rule, for all readings of a path
}

// replacementsOf returns the replacements in a set. A shadow replaces nothing: it denies nothing, and so would let requests
// pass that the other rules deny.
func replacementsOf(rules []*rule) (all []replacement) {
	byName := map[string]int{}
	for i, r := range rules {
		byName[strings.ToLower(r.Name)] = i
	}
	for i, r := range rules {
		if len(r.Instead) == 0 || r.Shadow || r.Disabled {
			continue
		}
		x := replacement{rule: i, match: r.match}
		x.match.Exempts = true
		for _, name := range r.Instead {
			x.of = append(x.of, byName[strings.ToLower(name)])
		}
		all = append(all, x)
	}
	return all
}

// replaced appends the rules that do not apply to a request, since others take their place. The candidates come from the index.
func (q *query) replaced(candidates []int, by []int) []int {
	g := q.in
	for _, c := range slices.Backward(candidates) {
		n := c - len(g.rules)
		if n < 0 {
			break
		}
		x := &g.replaces[n]
		if !x.match.Holds(q.request) || !q.inForce(g.rules[x.rule]) {
			continue
		}
		if g.rules[x.rule].Optional {
			var ch charge
			if applies, err := g.rules[x.rule].charge(q.request, q.cost, &ch); err == nil && !applies {
				continue
			}
		}
		by = append(by, x.of...)
	}
	return by
}

// replacedBy returns the rule that takes the place of another for a request.
func (q *query) replacedBy(rule int, candidates []int) (by *rule) {
	g := q.in
	for _, c := range candidates {
		if n := c - len(g.rules); n >= 0 && slices.Contains(q.replaced([]int{c}, nil), rule) {
			return g.rules[g.replaces[n].rule]
		}
	}
	return nil
}
