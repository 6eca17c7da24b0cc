// Package match finds the rules that match a request. Its cost depends on the number of
// matching rules, and not on the number of all rules: it looks routes up in a tree of path
// segments, and attributes in maps. It only reads rules' conditions, not their limits.
package match

import "slices"

// Request is a request as rules read it: see package policy.
type Request interface {
	Attribute(name string) (value string, ok bool)
}

// The names of the attributes that this package reads itself. Package policy documents them.
const (
	attrMethod = "method"
	attrHost   = "host"
	attrPath   = "path"
	attrIP     = "ip"
)

// Rule is one rule's condition on requests. If the rule has patterns, one must
// match. All its conditions must hold, and no pattern in Except may match.
type Rule struct {
	Patterns   []Pattern
	Conditions []Condition
	Except     *Tree // nil if the rule excepts no patterns
	Disabled   bool  // whether the rule matches nothing
	Exempts    bool  // whether every reading of a path must match, instead of one: see [readings]
}

// Holds reports whether a request meets the rule's conditions. It ignores the rule's
// patterns. It is short enough for the compiler to inline it, for rules without conditions.
func (r *Rule) Holds(request Request) bool {
	return len(r.Conditions) == 0 && r.Except == nil || r.holdsAll(request)
}

func (r *Rule) holdsAll(request Request) bool {
	for i := range r.Conditions {
		c := &r.Conditions[i]
		if c.wildcards != nil {
			if !c.holdsOfWildcard(request, r.Exempts) {
				return false
			}
			continue
		}
		if !c.holds(request) || r.Exempts && c.name == attrPath && !c.holdsUncleaned(request) {
			return false
		}
	}
	return r.Except == nil || !r.excepts(request)
}

// excepts reports whether a request matches a pattern in Except. A limiting rule excepts a request
// only if all readings of its path match. An exempting rule excepts it if one reading does.
func (r *Rule) excepts(request Request) bool {
	path, ok := request.Attribute(attrPath)
	if !ok {
		return false
	}
	method, _ := request.Attribute(attrMethod)
	host := r.Except.ofHost(request)
	if isPlain(path) {
		return r.Except.serves(host, method, reading{path: path})
	}
	for each := range readings(path) {
		if served := r.Except.serves(host, method, each); served == r.Exempts {
			return served
		}
	}
	return !r.Exempts
}

// Index finds rules. Make one with [New]. It never changes, and is safe for concurrent use.
//
// Rules with the same route form one [group], which finds them by attributes. One path's groups form a [place]
// in the tree, with one group for each method. The most frequent results are merged in advance: see [merged].
type Index struct {
	rules    []*Rule
	anywhere *group             // the rules without a route
	tree     Tree               // the rules with a route
	paths    map[string]*merged // the results for paths known in advance: see [merger]
}

// New returns an index for rules. The caller must not change the rules afterwards.
func New(rules []*Rule) *Index {
	x := &Index{rules: rules, anywhere: new(group)}
	places := x.enter()
	m := &merger{x.anywhere, mostForAll}
	for _, p := range places {
		p.alone = m.merge([]*place{p})
	}
	x.paths = m.paths(rules, &x.tree)
	return x
}

// enter adds the rules to groups by their routes, and returns all places in the tree.
func (x *Index) enter() (places []*place) {
	groups := []*group{x.anywhere}
	for i, r := range x.rules {
		if r.Disabled {
			continue
		}
		if len(r.Patterns) == 0 {
			x.anywhere.members = append(x.anywhere.members, i)
		}
		for _, p := range r.Patterns {
			at, isNew := x.tree.enter(p)
			if isNew {
				places = append(places, at)
			}
			g := at.groupOf(p.method)
			if len(g.members) == 0 {
				groups = append(groups, g)
			}
			if n := len(g.members); n == 0 || g.members[n-1] != i { // a rule may contain a route twice
				g.members = append(g.members, i)
			}
		}
	}
	for _, g := range groups {
		g.build(x.rules)
	}
	return places
}

// Match returns the rules that match a request, in order.
func (x *Index) Match(r Request) (matching []int) {
	for _, i := range x.Candidates(r, new(Memory)) {
		if x.rules[i].Holds(r) {
			matching = append(matching, i)
		}
	}
	return matching
}

// Memory is a search's working memory. With it searches allocate nothing.
// Its zero value is ready to use. It is not safe for concurrent use.
type Memory struct {
	rules   []int
	places  []*place
	several []int // the rules found by several readings of a path
}

// Candidates returns rules in order, without duplicates. All rules matching the request are among them.
// The others have a matching route, but conditions on attributes that Candidates has not checked: see
// [Rule.Holds]. The caller must not change the result. It is valid until memory is used again.
func (x *Index) Candidates(r Request, memory *Memory) []int {
	if x.tree.empty() {
		return x.anywhere.Candidates(r, memory)
	}
	path, ok := r.Attribute(attrPath)
	if !ok {
		return x.anywhere.Candidates(r, memory)
	}
	method, _ := r.Attribute(attrMethod)
	host := x.tree.ofHost(r)
	if !isPlain(path) {
		return x.ofReadings(r, host, method, path, memory)
	}
	if host == nil {
		if m := x.paths[path]; m != nil {
			return m.of(method).Candidates(r, memory)
		}
	}
	memory.places = x.tree.find(host, method, path, memory.places[:0])
	found := x.among(memory.places, r, method, memory)
	clear(memory.places) // Memory must not keep the index alive
	return found
}

// ofReadings is Candidates for a path that can be read in several ways. It returns a rule
// if one reading matches its patterns, and an exempting rule only if all readings do.
func (x *Index) ofReadings(r Request, host *node, method, path string, memory *Memory) []int {
	several, n := memory.several[:0], 0
	for reading := range readings(path) {
		memory.places = x.tree.walkBoth(host, reading, memory.places[:0])
		several = append(several, x.among(memory.places, r, method, memory)...)
		n++
		clear(memory.places)
	}
	slices.Sort(several)
	found := several[:0]
	for i := 0; i < len(several); {
		rule, times := several[i], 0
		for ; i < len(several) && several[i] == rule; i++ {
			times++
		}
		if times == n || !x.rules[rule].Exempts {
			found = append(found, rule)
		}
	}
	memory.several = several
	return found
}

// among is Candidates for a request that reaches the given places.
func (x *Index) among(places []*place, r Request, method string, memory *Memory) []int {
	switch {
	case len(places) == 0:
		return x.anywhere.Candidates(r, memory)
	case len(places) == 1 && places[0].alone != nil:
		return places[0].alone.of(method).Candidates(r, memory)
	}
	found := x.anywhere.collect(r, memory.rules[:0])
	for _, m := range places {
		found = m.collect(r, method, found)
	}
	memory.rules = found
	return inOrder(found)
}
