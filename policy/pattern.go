package policy

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
)

// pattern is a pattern of [http.ServeMux], taken apart.
type pattern struct {
	method   string // "" for all
	host     string // "" for all, else in lower case
	path     string // as it is written, "" if it has wildcards other than {$}
	segments []segment
}

// segment is a part of a pattern's path.
type segment struct {
	text string // of a literal, decoded
	kind segmentKind
}

type segmentKind uint8

const (
	literal  segmentKind = iota
	wildcard             // {name}: exactly one segment
	rest                 // {name...}, or a slash at the end: all that follows
	slash                // {$}: a slash at the end, and nothing else
)

// parsePattern takes a pattern apart. What a valid pattern is, net/http decides: the
// pattern is registered with a mux of its own.
func parsePattern(s string) (pattern, error) {
	if err := register(s); err != nil {
		return pattern{}, err
	}
	var p pattern
	if i := strings.IndexAny(s, " \t"); i >= 0 {
		p.method, s = s[:i], strings.TrimLeft(s[i+1:], " \t")
	}
	i := strings.IndexByte(s, '/')
	p.host = strings.ToLower(s[:i])
	if s[i:] != cleanPath(s[i:]) {
		return pattern{}, fmt.Errorf("the path %q can never match: paths are cleaned first, to %q", s[i:], cleanPath(s[i:]))
	}
	for text := range strings.SplitSeq(s[i+1:], "/") {
		p.segments = append(p.segments, toSegment(text))
	}
	if !slices.ContainsFunc(p.segments, segment.matchesMany) {
		p.path = strings.TrimSuffix(s[i:], "{$}")
	}
	return p, nil
}

func (s segment) matchesMany() bool { return s.kind == wildcard || s.kind == rest }

// register returns what net/http says of a pattern.
func register(s string) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = errors.New(strings.TrimPrefix(fmt.Sprint(r), "http: "))
		}
	}()
	http.NewServeMux().Handle(s, http.NotFoundHandler())
	return nil
}

func toSegment(text string) segment {
	switch {
	case text == "": // only the last can be empty: net/http refuses others, or never matches them
		return segment{kind: rest}
	case text == "{$}":
		return segment{kind: slash}
	case strings.HasPrefix(text, "{") && strings.HasSuffix(text, "...}"):
		return segment{kind: rest}
	case strings.HasPrefix(text, "{"):
		return segment{kind: wildcard}
	}
	return segment{text: unescape(text)}
}

// unescape decodes a segment. One that is escaped wrongly stands for itself, as in net/http.
func unescape(s string) string {
	if strings.IndexByte(s, '%') < 0 {
		return s
	}
	if u, err := url.PathUnescape(s); err == nil {
		return u
	}
	return s
}

// cleanPath returns the path that a mux would serve: without empty segments, "." and
// "..". So a detour of that kind does not evade a rule.
func cleanPath(p string) string {
	if p == "" {
		return "/"
	}
	if p[0] != '/' {
		p = "/" + p
	}
	if isClean(p) {
		return p
	}
	clean := path.Clean(p)
	if p[len(p)-1] == '/' && clean != "/" {
		clean += "/"
	}
	return clean
}

// isClean reports whether a path begins with a slash and has no segment but the last that is
// empty, and none that begins with a dot.
func isClean(p string) bool {
	for i := 1; i < len(p); i++ {
		if p[i-1] == '/' && (p[i] == '/' || p[i] == '.') {
			return false
		}
	}
	return p != "" && p[0] == '/'
}
