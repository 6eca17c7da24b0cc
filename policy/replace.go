package policy

import (
	"strings"

	"github.com/weir-go/ratelimit/policy/internal/match"
)

// replacement is a rule in place of others: see [Rule.Instead].
type replacement struct {
	rule  int
	of    []int      // the replaced rules, in order
	match match.Rule // the rule's match, for all readings of a path
}

// replacementsOf returns the replacements in a set. A shadow replaces no rule,
// because it denies nothing, and the other rules' denied requests would pass.
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
