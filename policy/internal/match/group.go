package match

import "slices"

// group holds rules with the same route. It finds a rule by the
// attribute in one of the rule's conditions, if one is suitable.
type group struct {
	always []int            // the rules found without an attribute, in order, without duplicates
	by     []attributeIndex // the other rules

	members []int // used while New builds the index
}

// attributeIndex finds rules by one attribute's value.
type attributeIndex struct {
	name   string
	values map[string][]int
}

// build sorts the group's members by an attribute in their conditions.
func (g *group) build(rules []*Rule) {
	sizes := map[[2]string]int{}
	for _, i := range g.members {
		for _, c := range rules[i].Conditions {
			for _, v := range c.values {
				if c.exact(len(rules[i].Patterns)) {
					sizes[[2]string{c.name, v}]++
				}
			}
		}
	}
	for _, i := range g.members {
		c, ok := rarest(rules[i], sizes)
		if !ok {
			g.always = append(g.always, i)
			continue
		}
		values := g.attribute(c.name)
		for _, v := range c.values {
			values[v] = append(values[v], i)
		}
	}
	g.members = nil
}

// rarest returns the condition with the rarest values: the one whose most common value
// is in the fewest rules. It considers only conditions that the index can look up.
func rarest(r *Rule, sizes map[[2]string]int) (best Condition, ok bool) {
	fewest := 0
	for _, c := range r.Conditions {
		if !c.exact(len(r.Patterns)) {
			continue
		}
		most := 0
		for _, v := range c.values {
			most = max(most, sizes[[2]string{c.name, v}])
		}
		if !ok || most < fewest {
			best, fewest, ok = c, most, true
		}
	}
	return best, ok
}

func (g *group) attribute(name string) map[string][]int {
	for _, a := range g.by {
		if a.name == name {
			return a.values
		}
	}
	g.by = append(g.by, attributeIndex{name, map[string][]int{}})
	return g.by[len(g.by)-1].values
}

// collect appends the rules without an attribute, and the rules found by one.
func (g *group) collect(r Request, found []int) []int {
	return append(g.find(r, found), g.always...)
}

// find appends the rules found by their attributes.
func (g *group) find(r Request, found []int) []int {
	for i := range g.by {
		a := &g.by[i]
		v, ok := r.Attribute(a.name)
		if !ok {
			continue
		}
		v = Spelt(a.name, v)
		found = append(found, a.values[v]...)
		if a.name == attrIP {
			if client := Client(v); client != v {
				found = append(found, a.values[client]...)
			}
		}
	}
	return found
}

// Candidates is [Index.Candidates] for a request that reaches no other group.
func (g *group) Candidates(r Request, memory *Memory) []int {
	found := g.find(r, memory.rules[:0])
	if len(found) == 0 {
		return g.always
	}
	memory.rules = append(found, g.always...)
	return inOrder(memory.rules)
}

// inOrder sorts rules' numbers and removes duplicates. A request seldom
// matches more than a few rules, and for a few [slices.Sort] takes longer.
func inOrder(some []int) []int {
	if len(some) > 12 {
		slices.Sort(some)
	}
	for i := 1; i < len(some); i++ { // one pass if already sorted
		for j := i; j > 0 && some[j] < some[j-1]; j-- {
			some[j], some[j-1] = some[j-1], some[j]
		}
	}
	return slices.Compact(some)
}
