package policy

import (
	"slices"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy/internal/sketch"
)

// Denials is how often a rule has denied a key.
type Denials struct {
	Rule  string
	Key   string // of several attributes one text: see [ValuesOf]; "" for a rule without a key
	Count int64
	// Error is by how much Count may be too high: see [Policies.Denied].
	Error int64
	// Shadow reports that the rule is a shadow: it would have denied.
	Shadow bool
}

// Denied returns the keys that the rules in force have denied most in the last 5 to 10 minutes, most denials first, n at most.
// Shadows are among them, with what they would have denied. The memory is bounded: a count may be too high by Error, which
// is at most 1 in 256 of all denials, and a key with more denials than that is never missing.
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

// count counts which keys a decision has denied.
func (p *Policies) count(q *query, allowed bool) {
	for _, i := range q.charges.denied {
		ch := &q.charges.List[i]
		if r := q.in.rules[ch.Rule]; r.Shadow || !allowed {
			p.denials.Add(sketch.ID{Rule: r.id, Key: ch.Key, Shadow: r.Shadow})
		}
	}
}

// blame finds out which rule has denied where the engine has not told it: the one whose limit the answer names, or
// the only one that can.
func (q *query) blame(d *ratelimit.Decision) {
	if d.Allowed {
		return
	}
	enforcing, last := 0, 0
	for i := range q.charges.List {
		r := q.in.rules[q.charges.List[i].Rule]
		switch {
		case r.Shadow:
			continue
		case slices.Contains(q.charges.denied, i):
			return
		case r.Name == d.Limit.Name:
			q.charges.denied = append(q.charges.denied, i)
			return
		}
		enforcing, last = enforcing+1, i
	}
	if enforcing == 1 {
		q.charges.denied = append(q.charges.denied, last)
	}
}
