package policy

import (
	"slices"
)

// Denials counts a rule's denials of a key.
type Denials struct {
	Rule   string
	Key    string // several values are one text: see [ValuesOf]
	Count  int64
	Error  int64 // Count may be too high by up to this number, at most 1/256 of all denials
	Shadow bool  // whether the rule is a shadow, and only would have denied the key
}

// Denied returns up to n keys with the most denials by the rules in force, including shadows,
// in the last 5 to 10 minutes. A key with more than 1/256 of all denials is always found.
func (p *Policies) Denied(n int) []Denials {
	g := p.now()
	var all []Denials
	for _, c := range p.denials.All() {
		if len(all) >= n {
			break
		}
		if i := slices.IndexFunc(g.rules, func(r *rule) bool { return r.id == c.Rule }); i >= 0 {
			all = append(all, Denials{Rule: g.rules[i].Name, Key: c.Key, Count: c.Count, Error: c.Error, Shadow: c.Shadow})
		}
	}
	return all
}
