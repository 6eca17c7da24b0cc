package policy

import "github.com/weir-go/ratelimit"

// Tables returns the figures of each rule's table of keys, since it was first in force; nil if the engine is not
// [Memory].
func (p *Policies) Tables() map[string]ratelimit.Stats {
	p.mustBeMade()
	in := p.now()
	if !in.inMemory() {
		return nil
	}
	tables := make(map[string]ratelimit.Stats, len(in.rules))
	for i, r := range in.rules {
		if !r.Allow { // an exemption tracks no key
			tables[r.Name] = in.decider.limiters[i].(*table).Stats()
		}
	}
	return tables
}
