package policy

import "github.com/weir-go/ratelimit"

// tables returns the figures of each rule's table of keys, or nil if the engine is not [Memory].
func (g *generation) tables() map[string]ratelimit.Stats {
	if !g.inMemory() {
		return nil
	}
	tables := make(map[string]ratelimit.Stats, len(g.rules))
	for i, r := range g.rules {
		switch l := g.decider.limiters[i].(type) {
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
