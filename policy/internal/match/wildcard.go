package match

import (
	"cmp"
	"slices"
)

// Wildcards finds the texts of wildcards in some patterns, as net/http's
// PathValue returns them. It never changes, and is safe for concurrent use.
type Wildcards struct {
	patterns []Pattern // the most specific first, as a mux would choose
}

// NewWildcards returns the wildcards in some patterns.
func NewWildcards(patterns []Pattern) *Wildcards {
	w := &Wildcards{slices.Clone(patterns)}
	slices.SortStableFunc(w.patterns, moreSpecific)
	return w
}

// moreSpecific compares two patterns that match the same request. A mux would choose the lower
// one. If a mux would not accept both, the pattern with the first literal segment is lower.
func moreSpecific(a, b Pattern) int {
	if c := cmp.Compare(len(b.host), len(a.host)); c != 0 && (a.host == "" || b.host == "") {
		return c
	}
	for i := range min(len(a.segments), len(b.segments)) {
		if c := cmp.Compare(a.segments[i].kind, b.segments[i].kind); c != 0 {
			return c
		}
	}
	return cmp.Compare(methodRank(a.method), methodRank(b.method))
}

// methodRank ranks patterns that serve the same method. For example,
// patterns for HEAD, for GET and for all methods serve HEAD.
func methodRank(method string) int { return slices.Index([]string{"GET", ""}, method) }

// Wildcards returns the names of a pattern's wildcards. rests is the last
// one's name if it matches the rest of the path, which may be empty.
func (p Pattern) Wildcards() (names []string, rests string) {
	for _, s := range p.segments {
		if s.name != "" {
			names = append(names, s.name)
		}
		if s.kind == rest {
			rests = s.name
		}
	}
	return names, rests
}

// Value returns a wildcard's text in a request, in the path's first reading that matches
// a pattern. A mux's reading comes first. Value returns false if no pattern matches.
func (w *Wildcards) Value(r Request, name string) (value string, ok bool) {
	w.values(r, name, func(v string) bool {
		value, ok = v, true
		return false
	})
	return value, ok
}

// values calls f with the wildcard's text in each reading of a request's path that matches a pattern, until f returns false.
func (w *Wildcards) values(r Request, name string, f func(v string) bool) {
	path, ok := r.Attribute(attrPath)
	if !ok {
		return
	}
	method, _ := r.Attribute(attrMethod)
	host, _ := r.Attribute(attrHost)
	host = Host(method, host)
	if isPlain(path) {
		if v, ok := w.of(host, method, reading{path: path}, name); ok {
			f(v)
		}
		return
	}
	for each := range readings(path) {
		if v, ok := w.of(host, method, each, name); ok && !f(v) {
			return
		}
	}
}

// of returns a wildcard's text in one reading of a path.
func (w *Wildcards) of(host, method string, r reading, name string) (string, bool) {
	if r.path == "" || r.path[0] != '/' {
		return "", false
	}
	for i := range w.patterns {
		p := &w.patterns[i]
		if p.host != "" && p.host != host || p.method != "" && p.method != method && !(p.method == "GET" && method == "HEAD") {
			continue
		}
		if v, ok := p.wildcard(r, name); ok {
			return v, true
		}
	}
	return "", false
}

// wildcard returns a wildcard's text if a path matches the pattern.
func (p *Pattern) wildcard(r reading, name string) (value string, ok bool) {
	path := r.path
	for i := range p.segments {
		s := &p.segments[i]
		if path == "" {
			return "", false
		}
		if s.kind == rest {
			if s.name == name {
				if value = path[1:]; !r.decoded {
					value = unescape(value)
				}
			}
			return value, true
		}
		segment, after := firstSegment(path, r.decoded)
		switch {
		case s.kind == literal && segment != s.text, s.kind == wildcard && segment == "/":
			return "", false
		case s.kind == wildcard && s.name == name:
			value = segment
		}
		path = after
	}
	return value, path == ""
}
