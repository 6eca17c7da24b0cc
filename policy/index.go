package policy

import "slices"

// index finds the rules that match a request, at a cost that depends on how many rules
// match and not on how many there are: routes are looked up in a tree of path segments,
// attributes in maps.
type index struct {
	rules    []*rule
	anywhere *group // rules without a route
	routes   routes // the others
	prepared prepared
}

func newIndex(rules []*rule) *index {
	x := &index{rules: rules, anywhere: new(group)}
	groups := []*group{x.anywhere}
	for i, r := range rules {
		if r.Disabled {
			continue
		}
		if len(r.patterns) == 0 {
			x.anywhere.members = append(x.anywhere.members, i)
		}
		for _, p := range r.patterns {
			g := x.routes.place(p)
			if len(g.members) == 0 {
				groups = append(groups, g)
			}
			if !slices.Contains(g.members, i) {
				g.members = append(g.members, i)
			}
		}
	}
	for _, g := range groups {
		g.build(rules)
	}
	x.prepared = prepare(rules, x.anywhere, &x.routes)
	return x
}

// match returns the rules that match a request, in order.
func (x *index) match(r Request) (matching []int) {
	var scratch []int
	for _, i := range x.candidates(r, &scratch) {
		if x.rules[i].holds(r) {
			matching = append(matching, i)
		}
	}
	return matching
}

// candidates returns the rules of which the routes match a request, in order, each once. Of
// what else they ask for, the request may lack something: see [rule.holds]. The result may
// be in scratch, and must not be changed.
func (x *index) candidates(r Request, scratch *[]int) []int {
	if x.routes.empty() {
		return x.anywhere.candidates(r, scratch)
	}
	path, ok := r.Attribute(AttrPath)
	if !ok {
		return x.anywhere.candidates(r, scratch)
	}
	method, _ := r.Attribute(AttrMethod)
	host := x.routes.ofHost(r)
	if host == nil {
		if m := x.prepared[path]; m != nil {
			return m.candidates(r, method, scratch)
		}
	}
	var memory [8]*methods
	places := x.routes.find(host, method, path, memory[:0])
	switch {
	case len(places) == 0:
		return x.anywhere.candidates(r, scratch)
	case len(places) == 1 && places[0].alone != nil:
		return places[0].alone.candidates(r, method, scratch)
	}
	found := x.anywhere.collect(r, (*scratch)[:0])
	for _, m := range places {
		found = m.collect(r, method, found)
	}
	*scratch = found
	return inOrder(found)
}
