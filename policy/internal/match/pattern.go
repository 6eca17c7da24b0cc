package match

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/weir-go/ratelimit/internal/keytext"
)

// Pattern is a parsed pattern of [http.ServeMux].
type Pattern struct {
	method   string // "" for all
	host     string // "" for all, else in lower case
	path     string // as it is written, "" if it has wildcards other than {$}
	segments []segment
}

// segment is a part of a pattern's path.
type segment struct {
	text string // a literal's decoded text; a slash for {$}: see [firstSegment]
	name string // of a wildcard, "" for a slash at the end
	kind segmentKind
}

type segmentKind uint8

const (
	literal  segmentKind = iota
	wildcard             // {name}, matches exactly one segment
	rest                 // {name...} or a slash at the end; matches the rest of a path
)

// ParsePattern parses a pattern. It registers the pattern with a
// new mux, so that package net/http determines whether it is valid.
func ParsePattern(s string) (Pattern, error) {
	if err := register(s); err != nil {
		return Pattern{}, err
	}
	var p Pattern
	if i := strings.IndexAny(s, " \t"); i >= 0 {
		p.method, s = s[:i], strings.TrimLeft(s[i+1:], " \t")
	}
	i := strings.IndexByte(s, '/')
	if strings.ContainsAny(s[:i], " \t") {
		return Pattern{}, fmt.Errorf("the host %q has a space in it: a pattern has at most one method, a host and a path", s[:i])
	}
	p.host = Host("CONNECT", s[:i]) // keeps a port, which stands for CONNECT requests
	clean := s[i:] == cleanPath(s[i:])
	if !clean && p.method != "CONNECT" {
		return Pattern{}, fmt.Errorf("the path %q can never match: paths are cleaned first, to %q", s[i:], cleanPath(s[i:]))
	}
	texts := strings.Split(s[i+1:], "/")
	for j, text := range texts {
		p.segments = append(p.segments, toSegment(text, j == len(texts)-1))
	}
	if clean && !slices.ContainsFunc(p.segments, segment.matchesMany) {
		p.path = strings.TrimSuffix(s[i:], "{$}")
	}
	return p, nil
}

func (s segment) matchesMany() bool { return s.kind == wildcard || s.kind == rest }

// register returns net/http's error for a pattern.
func register(s string) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = errors.New(strings.TrimPrefix(fmt.Sprint(r), "http: "))
		}
	}()
	http.NewServeMux().Handle(s, http.NotFoundHandler())
	return nil
}

func toSegment(text string, last bool) segment {
	switch {
	case text == "" && last, strings.HasPrefix(text, "{") && strings.HasSuffix(text, "...}"):
		return segment{kind: rest, name: strings.TrimSuffix(strings.TrimPrefix(text, "{"), "...}")}
	case text == "{$}":
		return segment{text: "/"}
	case text == "", strings.HasPrefix(text, "{"): // the mux reads an empty segment as a wildcard
		return segment{kind: wildcard, name: strings.Trim(text, "{}")}
	}
	return segment{text: unescape(text)}
}

// firstSegment returns the first segment of a path that begins with a slash, and the rest of the path. It
// decodes the segment, unless the path is decoded already. For a slash at the end the segment is a slash.
// For %2F it is a slash, too, because the mux does not distinguish the two. Wildcards do not match it.
func firstSegment(p string, decoded bool) (segment, after string) {
	if p == "/" {
		return "/", ""
	}
	segment = p[1:]
	if i := strings.IndexByte(segment, '/'); i >= 0 {
		segment, after = segment[:i], segment[i:]
	}
	if decoded {
		return segment, after
	}
	return unescape(segment), after
}

// unescape decodes a segment. It returns a malformed segment unchanged, as net/http does.
func unescape(s string) string {
	if strings.IndexByte(s, '%') < 0 {
		return s
	}
	if u, err := url.PathUnescape(s); err == nil {
		return u
	}
	return s
}

// Host returns a host in the form for comparing it with routes: in lower case, without a dot at
// its end, and without a port. For a CONNECT request a mux uses the host unchanged, with its port.
func Host(method, host string) string {
	if method == "CONNECT" {
		return strings.ToLower(strings.TrimSuffix(host, "."))
	}
	return keytext.Host(host)
}
