// Package keytext reads keys from header fields and metadata, for both
// HTTP requests and gRPC calls. Its errors contain no part of a value.
package keytext

import (
	"fmt"
	"net"
	"strings"

	"github.com/weir-go/ratelimit/keyfunc"
)

// Raw returns the only value, and fails if there are several.
func Raw(values []string, what string) (string, error) {
	switch {
	case len(values) > 1:
		return "", fmt.Errorf("%w: %d values of %s", keyfunc.ErrMalformedKey, len(values), what)
	case len(values) == 0 || values[0] == "":
		return "", missing(what)
	}
	return values[0], nil
}

func missing(what string) error { return fmt.Errorf("%w: no %s", keyfunc.ErrNoKey, what) }

// Single returns the only value, without surrounding white space. Such space is not part of a field's value (RFC 9110,
// section 5.5), but only HTTP/1 servers remove it. If it stayed, a client would have one budget for each number of spaces.
func Single(values []string, what string) (string, error) {
	value, err := Raw(values, what)
	if value = strings.Trim(value, " \t"); err == nil && value == "" {
		err = missing(what)
	}
	return value, err
}

// maxKept is the maximum length of a key's text. A limiter keeps its keys, and a
// server by default accepts a megabyte of header, so 65,536 keys could take 65 GB.
const maxKept = 1 << 10

// Short returns a text short enough for a key. The error about a longer text has a method
// Whole for the text. keyfunc hashes it, because the hash of a long secret is short.
func Short(value, what string) (string, error) {
	if len(value) > maxKept {
		return "", tooLong{what: what, size: len(value), whole: func() string { return value }}
	}
	return value, nil
}

// tooLong is the error about a text above maxKept. A function
// holds the text, so that no way of printing the error reveals it.
type tooLong struct {
	what  string
	size  int
	whole func() string
}

func (e tooLong) Error() string {
	return fmt.Sprintf("%v: %d bytes of %s, above %d", keyfunc.ErrMalformedKey, e.size, e.what, maxKept)
}

func (tooLong) Unwrap() error { return keyfunc.ErrMalformedKey }

// Whole returns the text.
func (e tooLong) Whole() string { return e.whole() }

// IsToken reports whether s is a token, like the name of a header field.
func IsToken(s string) bool {
	for i := range len(s) {
		if !IsTokenChar(s[i]) {
			return false
		}
	}
	return s != ""
}

// IsTokenChar reports whether a token may contain c (RFC 9110, section 5.6.2).
func IsTokenChar(c byte) bool {
	return 'a' <= c|0x20 && c|0x20 <= 'z' || '0' <= c && c <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}

// Host returns a host in lower case, without its port and a trailing dot, so that no spelling of it evades a rule.
func Host(host string) string {
	if strings.Contains(host, ":") {
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}
