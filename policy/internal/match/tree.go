package match

// Tree is a tree of path segments. It finds the places of the patterns that match a request. Its zero value is empty.
type Tree struct {
	allHosts *node            // the patterns without a host
	hosts    map[string]*node // the other patterns, by host
}

// node is the part of the tree below a sequence of segments.
type node struct {
	next children // after a literal segment
	wild *node    // after a wildcard
	end  *place   // the patterns ending here
	rest *place   // the patterns matching the rest of a path
}

// place holds the rules by method whose patterns have the same host and path.
type place struct {
	all *group // the rules with patterns for all methods
	by  byMethod

	alone *merged // the rules for a request that reaches no other place; nil if they are too many
}

type methodGroup struct {
	method string
	*group
}

// serves reports whether patterns with the group's method match a request with the given one.
func (g *methodGroup) serves(method string) bool {
	return g.method == method || g.method == "GET" && method == "HEAD"
}

type byMethod []methodGroup

// of returns a method's group, or nil if there is none.
func (x byMethod) of(method string) *group {
	for i := range x {
		if x[i].method == method {
			return x[i].group
		}
	}
	return nil
}

// Add adds a pattern without rules, for [Rule.Except].
func (x *Tree) Add(p Pattern) {
	at, _ := x.enter(p)
	at.groupOf(p.method)
}

// enter returns a pattern's place, and whether it is new.
func (x *Tree) enter(p Pattern) (found *place, isNew bool) {
	at := x.root(p.host).leaf(p.segments)
	if *at == nil {
		*at = &place{}
		isNew = true
	}
	return *at, isNew
}

// leaf returns a pointer to the place for a pattern's segments below n.
func (n *node) leaf(segments []segment) **place {
	for _, s := range segments {
		if s.kind == rest {
			return &n.rest
		}
		n = n.child(s)
	}
	return &n.end
}

// root returns the node at which a host's paths begin.
func (x *Tree) root(host string) *node {
	if host == "" {
		if x.allHosts == nil {
			x.allHosts = new(node)
		}
		return x.allHosts
	}
	if x.hosts[host] == nil {
		if x.hosts == nil {
			x.hosts = map[string]*node{}
		}
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
	c := n.next.get(s.text)
	if c == nil {
		c = new(node)
		n.next.add(s.text, c)
	}
	return c
}

// children are the nodes after a literal segment. A few nodes are compared one by one, because this is faster than a map.
type children struct {
	list []child
	many map[string]*node // all nodes, if there are more than fewChildren; then list is empty
}

type child struct {
	text string
	*node
}

const fewChildren = 8

func (c *children) add(text string, n *node) {
	if c.many != nil {
		c.many[text] = n
		return
	}
	if c.list = append(c.list, child{text, n}); len(c.list) <= fewChildren {
		return
	}
	c.many = map[string]*node{}
	for _, each := range c.list {
		c.many[each.text] = each.node
	}
	c.list = nil
}

// get returns a child, or nil if there is none.
func (c *children) get(text string) *node {
	for i := range c.list {
		if c.list[i].text == text {
			return c.list[i].node
		}
	}
	return c.many[text]
}

// groupOf returns a method's group. It creates the group if necessary.
func (m *place) groupOf(method string) *group {
	if method == "" {
		if m.all == nil {
			m.all = new(group)
		}
		return m.all
	}
	if g := m.by.of(method); g != nil {
		return g
	}
	g := new(group)
	m.by = append(m.by, methodGroup{method, g})
	return g
}

// collect appends the groups' rules for a request's method.
func (m *place) collect(r Request, method string, found []int) []int {
	if m.all != nil {
		found = m.all.collect(r, found)
	}
	for i := range m.by {
		if g := &m.by[i]; g.serves(method) {
			found = g.collect(r, found)
		}
	}
	return found
}

// groups returns the groups for a request's method.
func (m *place) groups(method string) (groups []*group) {
	if m.all != nil {
		groups = append(groups, m.all)
	}
	for i := range m.by {
		if g := &m.by[i]; g.serves(method) {
			groups = append(groups, g.group)
		}
	}
	return groups
}

// empty reports whether there are no patterns.
func (x *Tree) empty() bool { return x.allHosts == nil && len(x.hosts) == 0 }

// ofHost returns the node at which the paths for the request's host begin, or nil if no pattern names the host.
func (x *Tree) ofHost(r Request) *node {
	if len(x.hosts) == 0 {
		return nil
	}
	host, ok := r.Attribute(attrHost)
	if !ok {
		return nil
	}
	method, _ := r.Attribute(attrMethod)
	return x.hosts[Host(method, host)]
}

// find appends the places of the patterns that match a request's path, read as a mux reads it. It does not compare methods.
func (x *Tree) find(host *node, method, p string, places []*place) []*place {
	if method != "CONNECT" {
		p = cleanPath(p)
	}
	return x.walkBoth(host, reading{path: p}, places)
}

// walkBoth appends a path's places for all hosts and, unless host is nil, for the request's host.
func (x *Tree) walkBoth(host *node, r reading, places []*place) []*place {
	if r.path == "" || r.path[0] != '/' {
		return places
	}
	places = x.allHosts.walk(r.path, r.decoded, places)
	if host != nil {
		places = host.walk(r.path, r.decoded, places)
	}
	return places
}

// serves reports whether one of the patterns matches a path's reading and the method.
func (x *Tree) serves(host *node, method string, r reading) bool {
	var memory [8]*place
	for _, p := range x.walkBoth(host, r, memory[:0]) {
		if p.all != nil {
			return true
		}
		for i := range p.by {
			if p.by[i].serves(method) {
				return true
			}
		}
	}
	return false
}

// walk appends the places for the rest of a path. p is empty or begins with a slash.
func (n *node) walk(p string, decoded bool, places []*place) []*place {
	for n != nil && p != "" {
		if n.rest != nil {
			places = append(places, n.rest)
		}
		segment, after := firstSegment(p, decoded)
		if n.wild != nil && segment != "/" {
			places = n.wild.walk(after, decoded, places)
		}
		n, p = n.next.get(segment), after
	}
	if n != nil && n.end != nil {
		places = append(places, n.end)
	}
	return places
}

// Worst returns an upper bound for the number of nodes that one request's look-up visits. The bound may be
// too high, because it counts the literal segments beside a wildcard as if the wildcard matched them, too.
func (x *Tree) Worst() int {
	most := 0
	for _, n := range x.hosts {
		most = max(most, n.Worst())
	}
	return most + x.allHosts.Worst()
}

func (n *node) Worst() int {
	if n == nil {
		return 0
	}
	most := 0
	for _, c := range n.next.list {
		most = max(most, c.node.Worst())
	}
	for _, c := range n.next.many {
		most = max(most, c.Worst())
	}
	return 1 + n.wild.Worst() + most
}
