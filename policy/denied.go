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

// Denied returns the keys that the rules in force have denied most often of late, by rule, most denials first, n at
// most. A rule that is a shadow is told too, with what it would have denied: see [Denials]. Each rule that has
// denied a request counts it.
//
// Of late means in the 5 minutes that run and the 5 before. They are counted in bounded memory, some hundred KiB,
// whatever the keys: a count is at most [Denials.Error] too high, and never too low. As long as no more than 256
// keys are denied, it is exact. Error is at most 1 in 256 of all denials of late, and each key with more
// denials than that is listed: a flood of rotating keys cannot hide one that is denied often.
//
// An engine that does not tell what each rule has said lets a denial count for the rule whose limit the answer names.
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
		ch := &q.charges.list[i]
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
	for i := range q.charges.list {
		r := q.in.rules[q.charges.list[i].Rule]
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
