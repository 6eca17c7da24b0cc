package policy

// A request mostly meets rules in one group without a route and in one of a route, or it has
// the path of a pattern without wildcards. For these, what there is to find is put into one
// group when the index is made: then nothing has to be collected and sorted.

// prepared has what there is to find on a path that a pattern names, at all places. This spares
// the walk through the tree. It holds for requests to a host that no pattern names.
type prepared map[string]*methods

// mostPrepared is how much is prepared for one path, or one place. It would take too much
// memory if each of thousands had thousands of rules.
const mostPrepared = 64

// prepare prepares each place, for requests that meet no other, and the paths of all patterns
// without wildcards.
func prepare(rules []*rule, anywhere *group, x *routes) prepared {
	for _, m := range x.places {
		m.alone = merge(anywhere, []*methods{m})
	}
	ready := prepared{}
	for _, r := range rules {
		for _, p := range r.patterns {
			if p.path == "" || r.Disabled || p.host != "" || ready[p.path] != nil {
				continue
			}
			if m := merge(anywhere, x.find(nil, "", p.path, nil)); m != nil {
				ready[p.path] = m
			}
		}
	}
	return ready
}

// merge returns one group for each method that one of the places has, and one for all other
// methods. It returns nil if that is too much.
func merge(anywhere *group, places []*methods) *methods {
	merged := &methods{all: new(group)}
	for _, m := range places {
		for _, g := range m.by {
			merged.add(g.method)
			if g.method == "GET" {
				merged.add("HEAD")
			}
			if len(merged.by) > mostPrepared {
				return nil
			}
		}
	}
	room := mostPrepared
	fill := func(g *group, method string) {
		parts := []*group{anywhere}
		for _, m := range places {
			parts = append(parts, m.groups(method)...)
		}
		for _, part := range parts {
			if room -= len(part.always) + len(part.by); room < 0 {
				return
			}
			g.always = append(g.always, part.always...)
			g.by = append(g.by, part.by...)
		}
		g.always = inOrder(g.always)
	}
	fill(merged.all, "")
	for _, g := range merged.by {
		fill(g.group, g.method)
	}
	if room < 0 {
		return nil
	}
	return merged
}

// candidates is [group.candidates] of the group for the request's method. The methods are what
// merge has returned.
func (m *methods) candidates(r Request, method string, scratch *[]int) []int {
	if g := m.group(method); g != nil {
		return g.candidates(r, scratch)
	}
	return m.all.candidates(r, scratch)
}
