package policy

import "github.com/weir-go/ratelimit"

// Tables returns how the tables of keys stand, by the names of the rules in force. The counts begin when a rule was first in
// force. It is nil if the engine is not [Memory].
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
