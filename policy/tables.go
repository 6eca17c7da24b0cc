package policy

import "github.com/weir-go/ratelimit"

// Tables returns how the tables of keys stand that rules have in memory, by the names of the rules in force: how many
// keys they track, and how many were evicted. They count since the rule was first in force. It returns nil if
// the engine is not [Memory]. The RegisterPolicies of promlimit and otellimit exports it.
func (p *Policies) Tables() map[string]ratelimit.Stats {
	p.mustBeMade()
	in := p.now()
	if in.memory == nil {
		return nil
	}
	tables := make(map[string]ratelimit.Stats, len(in.rules))
	for i, r := range in.rules {
		if !r.Allow { // an exemption tracks no key
			tables[r.Name] = in.memory.limiters[i].Stats()
		}
	}
	return tables
}
