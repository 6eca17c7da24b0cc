package policy

import (
	"slices"
	"strings"

	"github.com/weir-go/ratelimit/internal/keytext"
)

// index finds the rules that match a request, at a cost that depends on how many rules
// match and not on how many there are: routes are looked up in a tree of path segments,
// attributes in maps.
type index struct {
	rules    []*rule
	anywhere *group           // rules without a route
	allHosts *node            // of patterns without a host
	hosts    map[string]*node // of others, by the host
}

// node is a place in the tree of path segments.
type node struct {
	next  map[string]*node // by a literal segment
	wild  *node            // after a wildcard
	end   *methods         // of patterns that end here
	slash *methods         // of patterns that end with {$} here: one slash follows
	rest  *methods         // of patterns that take all that follows
}

// methods holds the rules of one path by the method of their patterns.
type methods struct {
	all *group // of patterns without a method
	by  []methodGroup
}

type methodGroup struct {
	method string
	*group
}

// group holds rules that agree in their route. Each is found by one attribute that it
// asks for, if it asks for any.
type group struct {
	always []int
	by     []attributeIndex

	members []int // while the index is built
}

// attributeIndex holds rules by a value of one attribute.
type attributeIndex struct {
	name   string
	values map[string][]int
}

func newIndex(rules []*rule) *index {
	x := &index{rules: rules, anywhere: new(group), hosts: map[string]*node{}}
	groups := []*group{x.anywhere}
	for i, r := range rules {
		if r.Disabled {
			continue
		}
		if len(r.patterns) == 0 {
			x.anywhere.members = append(x.anywhere.members, i)
		}
		for _, p := range r.patterns {
			g := x.place(p)
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
	return x
}

// place returns the group for a pattern, a new one if it is the first of its kind.
func (x *index) place(p pattern) *group {
	n := x.root(p.host)
	for _, s := range p.segments {
		switch s.kind {
		case rest:
			return at(&n.rest, p.method)
		case slash:
			return at(&n.slash, p.method)
		}
		n = n.child(s)
	}
	return at(&n.end, p.method)
}

// root returns where the paths of a host begin.
func (x *index) root(host string) *node {
	if host == "" {
		if x.allHosts == nil {
			x.allHosts = new(node)
		}
		return x.allHosts
	}
	if x.hosts[host] == nil {
		x.hosts[host] = new(node)
	}
	return x.hosts[host]
}

func (n *node) child(s segment) *node {
	if s.kind == wildcard {
		if n.wild == nil {
			n.wild = new(node)
		}
		return n.wild
	}
	c := n.next[s.text]
	if c == nil {
		c = new(node)
		if n.next == nil {
			n.next = map[string]*node{}
		}
		n.next[s.text] = c
	}
	return c
}

// at returns the group of a method, a new one if it is the first.
func at(m **methods, method string) *group {
	if *m == nil {
		*m = &methods{}
	}
	if method == "" {
		if (*m).all == nil {
			(*m).all = new(group)
		}
		return (*m).all
	}
	if g := (*m).group(method); g != nil {
		return g
	}
	(*m).by = append((*m).by, methodGroup{method, new(group)})
	return (*m).group(method)
}

// group returns the group of a method, nil if there is none.
func (m *methods) group(method string) *group {
	for i := range m.by {
		if m.by[i].method == method {
			return m.by[i].group
		}
	}
	return nil
}

// build sorts the group's members by the attributes that they ask for.
func (g *group) build(rules []*rule) {
	sizes := map[[2]string]int{}
	for _, i := range g.members {
		for _, c := range rules[i].conditions {
			for _, v := range c.values {
				sizes[[2]string{c.name, v}]++
			}
		}
	}
	for _, i := range g.members {
		if len(rules[i].conditions) == 0 {
			g.always = append(g.always, i)
			continue
		}
		c := rarest(rules[i].conditions, sizes)
		values := g.attribute(c.name)
		for _, v := range c.values {
			values[v] = append(values[v], i)
		}
	}
	g.members = nil
}

// rarest returns the condition whose most common value is asked for by the fewest rules.
func rarest(conditions []condition, sizes map[[2]string]int) condition {
	most := func(c condition) (n int) {
		for _, v := range c.values {
			n = max(n, sizes[[2]string{c.name, v}])
		}
		return n
	}
	return slices.MinFunc(conditions, func(a, b condition) int { return most(a) - most(b) })
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

// match appends the rules that match a request, in order.
func (x *index) match(r Request, found []int) []int {
	first := len(found)
	found = x.anywhere.collect(r, found)
	if x.allHosts != nil || len(x.hosts) > 0 {
		found = x.routes(r, found)
	}
	some := found[first:]
	sort(some)
	kept, last := found[:first], -1
	for _, i := range some {
		if i != last && (len(x.rules[i].conditions) == 0 || x.rules[i].holds(r)) {
			kept = append(kept, i)
		}
		last = i
	}
	return kept
}

// sort sorts the numbers of rules. A request seldom matches more than a few: then a call of
// [slices.Sort] takes longer than the sorting.
func sort(some []int) {
	if len(some) > 12 {
		slices.Sort(some)
		return
	}
	for i := 1; i < len(some); i++ {
		for j := i; j > 0 && some[j] < some[j-1]; j-- {
			some[j], some[j-1] = some[j-1], some[j]
		}
	}
}

// routes appends the rules that have a pattern for the request's route.
func (x *index) routes(r Request, found []int) []int {
	p, ok := r.Attribute(AttrPath)
	if !ok {
		return found
	}
	method, _ := r.Attribute(AttrMethod)
	if method != "CONNECT" {
		p = cleanPath(p)
	}
	if p == "" || p[0] != '/' {
		return found
	}
	q := search{r: r, method: method, escaped: strings.IndexByte(p, '%') >= 0, found: found}
	q.walk(x.allHosts, p)
	if len(x.hosts) > 0 {
		if host, ok := r.Attribute(AttrHost); ok {
			q.walk(x.hosts[keytext.Host(host)], p)
		}
	}
	return q.found
}

// search is one walk through the tree.
type search struct {
	r       Request
	method  string
	escaped bool // the path has an escaped byte
	found   []int
}

// walk goes on with the rest of a path, which is empty or begins with a slash.
func (q *search) walk(n *node, p string) {
	for n != nil && p != "" {
		if n.rest != nil {
			q.collect(n.rest)
		}
		if p == "/" {
			if n.slash != nil {
				q.collect(n.slash)
			}
			return
		}
		seg, after := p[1:], ""
		if i := strings.IndexByte(seg, '/'); i >= 0 {
			seg, after = seg[:i], seg[i:]
		}
		if q.escaped {
			seg = unescape(seg)
		}
		if n.wild != nil {
			q.walk(n.wild, after)
		}
		n, p = n.next[seg], after
	}
	if n != nil && n.end != nil {
		q.collect(n.end)
	}
}

// collect appends the rules of a place for the request's method.
func (q *search) collect(m *methods) {
	if m.all != nil {
		q.found = m.all.collect(q.r, q.found)
	}
	if q.method == "" || len(m.by) == 0 {
		return
	}
	q.found = m.group(q.method).collect(q.r, q.found)
	if q.method == "HEAD" { // a pattern for GET is one for HEAD too
		q.found = m.group("GET").collect(q.r, q.found)
	}
}

func (g *group) collect(r Request, found []int) []int {
	if g == nil {
		return found
	}
	found = append(found, g.always...)
	for _, a := range g.by {
		if v, ok := r.Attribute(a.name); ok {
			found = append(found, a.values[v]...)
		}
	}
	return found
}
