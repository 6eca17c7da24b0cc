package policy

// index finds the rules that match a request, at a cost that depends on how many rules
// match and not on how many there are: routes are looked up in a tree of path segments,
// attributes in maps.
type index struct {
	rules    []*rule
	anywhere *group             // rules without a route
	routes   routes             // the others
	paths    map[string]*merged // what is found on paths that are known beforehand: see merger
}

func newIndex(rules []*rule) *index {
	x := &index{rules: rules, anywhere: new(group)}
	places := x.enter()
	m := &merger{x.anywhere, mostForAll}
	for _, place := range places {
		place.alone = m.merge([]*methods{place})
	}
	x.paths = m.paths(rules, &x.routes)
	return x
}

// enter puts the rules into groups by their routes, and returns all places of the tree.
func (x *index) enter() (places []*methods) {
	groups := []*group{x.anywhere}
	for i, r := range x.rules {
		if r.Disabled {
			continue
		}
		if len(r.patterns) == 0 {
			x.anywhere.members = append(x.anywhere.members, i)
		}
		for _, p := range r.patterns {
			place, isNew := x.routes.place(p)
			if isNew {
				places = append(places, place)
			}
			g := place.add(p.method)
			if len(g.members) == 0 {
				groups = append(groups, g)
			}
			if n := len(g.members); n == 0 || g.members[n-1] != i { // a rule may name a route twice
				g.members = append(g.members, i)
			}
		}
	}
	for _, g := range groups {
		g.build(x.rules)
	}
	return places
}

// match returns the rules that match a request, in order.
func (x *index) match(r Request) (matching []int) {
	for _, i := range x.candidates(r, new(scratch)) {
		if x.rules[i].holds(r) {
			matching = append(matching, i)
		}
	}
	return matching
}

// scratch is memory for a search. Its zero value can be used.
type scratch struct {
	rules  []int
	places []*methods
}

// candidates returns rules in order, each once. All that match the request are among them. Others
// are those whose route matches, and which ask for an attribute that was not looked at: see
// [rule.holds]. The result must not be changed. It is valid until memory is used again.
func (x *index) candidates(r Request, memory *scratch) []int {
	if x.routes.empty() {
		return x.anywhere.candidates(r, memory)
	}
	path, ok := r.Attribute(AttrPath)
	if !ok {
		return x.anywhere.candidates(r, memory)
	}
	method, _ := r.Attribute(AttrMethod)
	host := x.routes.ofHost(r)
	if host == nil {
		if m := x.paths[path]; m != nil {
			return m.of(method).candidates(r, memory)
		}
	}
	memory.places = x.routes.find(host, method, path, memory.places[:0])
	found := x.among(memory.places, r, method, memory)
	clear(memory.places) // they need not outlive the index
	return found
}

// among is candidates for a request that meets those places.
func (x *index) among(places []*methods, r Request, method string, memory *scratch) []int {
	switch {
	case len(places) == 0:
		return x.anywhere.candidates(r, memory)
	case len(places) == 1 && places[0].alone != nil:
		return places[0].alone.of(method).candidates(r, memory)
	}
	found := x.anywhere.collect(r, memory.rules[:0])
	for _, m := range places {
		found = m.collect(r, method, found)
	}
	memory.rules = found
	return inOrder(found)
}
