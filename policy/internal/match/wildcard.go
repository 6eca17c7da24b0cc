package match

import (
	"cmp"
	"slices"
)

// Wildcards finds the texts that the wildcards of some patterns stand for, as net/http's PathValue returns them. It does not change, and is safe
// for concurrent use.
type Wildcards struct {
	patterns []Pattern // the most specific first, as a mux chooses
}

// NewWildcards returns the wildcards of patterns.
func NewWildcards(patterns []Pattern) *Wildcards {
	w := &Wildcards{slices.Clone(patterns)}
	slices.SortStableFunc(w.patterns, moreSpecific)
	return w
}

// moreSpecific compares two patterns that match one request: a mux chooses the lower one. If it would refuse the two beside each other, the one
// with a literal segment first is lower.
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

// methodRank orders the patterns that serve one method: a HEAD is served by those for HEAD, for GET, and for all.
func methodRank(method string) int { return slices.Index([]string{"GET", ""}, method) }

// Wildcards returns the names of a pattern's wildcards, and of the last one if it takes all that follows, which may be nothing.
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

// Value returns the text of a wildcard in a request. The first reading of the path that matches a pattern counts, and a mux's reading comes
// first. Value reports false if no pattern matches.
func (w *Wildcards) Value(r Request, name string) (value string, ok bool) {
	w.values(r, name, func(v string) bool {
		value, ok = v, true
		return false
	})
	return value, ok
}

// values passes the text that a wildcard stands for by each reading of a request's path that matches a pattern, until f returns false.
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

// of returns the text of a wildcard by one reading of a path.
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

// wildcard returns the text of a wildcard if a path matches the pattern.
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
