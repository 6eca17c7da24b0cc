package policy

import "github.com/weir-go/ratelimit"

// Tables returns the figures of each rule's table of keys, since it was first in force; nil if the engine is not
// [Memory]. Of a rule with Share they are Keys, Evicted and Waiting.
func (p *Policies) Tables() map[string]ratelimit.Stats {
	p.mustBeMade()
	in := p.now()
	if !in.inMemory() {
		return nil
	}
	tables := make(map[string]ratelimit.Stats, len(in.rules))
	for i, r := range in.rules {
		switch l := in.decider.limiters[i].(type) {
		case *memoryPool:
			s := l.Stats()
			tables[r.Name] = ratelimit.Stats{Keys: s.Tracked, Evicted: s.Evicted, Waiting: s.Waiting}
		case *table:
			if !r.Allow { // an exemption tracks no key
				tables[r.Name] = l.Stats()
			}
		}
	}
	return tables
}
