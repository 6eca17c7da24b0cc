package match

// Most requests reach only one place, or have the path of a pattern without wildcards. For these
// requests New merges the results into one group in advance, with the rules without a route. Then a
// search need not collect and sort rules, and for a known path it need not walk through the tree.

// merged holds all rules at some places, and the rules without a route, as one group for each method.
type merged struct {
	by     byMethod
	others *group // all other methods' group
}

// of returns the method's group.
func (m *merged) of(method string) *group {
	if g := m.by.of(method); g != nil {
		return g
	}
	return m.others
}

// A merged group takes memory, and takes time when rules are put in force. A file could
// have thousands of rules on each of thousands of paths. So merging is bounded, in words of
// memory, for each path and for all together. A search finds the other rules in the tree.
const (
	mostForOne = 1 << 10
	mostForAll = 1 << 22
	groupWords = 16 // an empty group's size
	mostPlaces = 8  // the maximum number of places merged
)

// merger merges groups while there is room.
type merger struct {
	anywhere *group
	room     int
}

// merge returns the rules at places, or nil if they are too many.
func (g *merger) merge(places []*place) *merged {
	if len(places) > mostPlaces {
		g.room -= len(places)
		return nil
	}
	rest := max(0, g.room-mostForOne) // the room to be left for other paths
	m := &merged{others: g.group("", places)}
	for _, method := range methodsOf(places) {
		if g.room < rest {
			break
		}
		m.by = append(m.by, methodGroup{method, g.group(method, places)})
	}
	if g.room < rest {
		return nil
	}
	return m
}

// methodsOf returns the methods that have rules of their own at the places.
func methodsOf(places []*place) (names []string) {
	seen := map[string]bool{}
	add := func(name string) {
		if !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
	for _, m := range places {
		for _, g := range m.by {
			if add(g.method); g.method == "GET" {
				add("HEAD")
			}
		}
	}
	return names
}

// group returns the rules at places for requests with a method. If there is no room, some are missing.
func (g *merger) group(method string, places []*place) *group {
	sum := new(group)
	g.room -= groupWords
	g.add(sum, g.anywhere)
	for _, m := range places {
		for _, part := range m.groups(method) {
			g.add(sum, part)
		}
	}
	sum.always = inOrder(sum.always)
	return sum
}

// add adds a part to a sum if there is room.
func (g *merger) add(sum, part *group) {
	if g.room -= len(part.always) + 3*len(part.by); g.room < 0 {
		return
	}
	sum.always = append(sum.always, part.always...)
	sum.by = append(sum.by, part.by...)
}

// paths returns a merged group for each pattern's path without wildcards.
// The groups hold for requests to a host that no pattern names.
func (g *merger) paths(rules []*Rule, x *Tree) map[string]*merged {
	ready := map[string]*merged{} // nil values if the rules are too many
	for _, r := range rules {
		for _, p := range r.Patterns {
			if !isPlain(p.path) || p.host != "" || r.Disabled {
				continue
			}
			if _, done := ready[p.path]; done {
				continue
			}
			if g.room < 0 {
				return ready
			}
			places := x.find(nil, "", p.path, nil)
			if len(places) == 1 {
				ready[p.path] = places[0].alone
			} else {
				ready[p.path] = g.merge(places)
			}
		}
	}
	return ready
}
