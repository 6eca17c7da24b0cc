package match

import (
	"iter"
	"path"
	"strings"
)

// reading is a path, as some server reads it.
type reading struct {
	path    string
	decoded bool // whether its segments are decoded
}

// readings returns the ways in which servers read a path that is not plain. Some servers split it into segments
// before they decode it, others decode it first. Some route it as it was sent, others clean it first. If rules
// read a path in only one way, a client could reach a server by a spelling that the rules do not limit.
func readings(escaped string) iter.Seq[reading] {
	return func(yield func(reading) bool) {
		decoded := unescape(escaped)
		for _, r := range [...]reading{{escaped, false}, {decoded, true}} {
			if r.decoded && decoded == escaped {
				return // the other reading has the same segments
			}
			clean := cleanPath(r.path)
			if !yield(reading{clean, r.decoded}) {
				return
			}
			if clean != r.path && strings.HasPrefix(r.path, "/") && !yield(r) {
				return
			}
		}
	}
}

// isPlain reports whether a path has only one reading.
func isPlain(p string) bool { return isClean(p) && strings.IndexByte(p, '%') < 0 }

// plainPath returns the path for conditions and keys: decoded, then cleaned. Any other text is returned unchanged.
func plainPath(p string) string {
	if isPlain(p) || !strings.HasPrefix(p, "/") {
		return p
	}
	return cleanPath(unescape(p))
}

// cleanPath returns the path that a mux would serve: without empty segments,
// "." and "..". So a client cannot evade a rule with such segments.
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

// isClean reports whether a path begins with a slash and has no
// empty segment except the last, nor a segment with a dot in front.
func isClean(p string) bool {
	for i := 1; i < len(p); i++ {
		if p[i-1] == '/' && (p[i] == '/' || p[i] == '.') {
			return false
		}
	}
	return p != "" && p[0] == '/'
}
