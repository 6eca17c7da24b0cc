package policy

import (
	"errors"
	"fmt"
	"strings"

	"github.com/weir-go/ratelimit/keyfunc"
	"github.com/weir-go/ratelimit/policy/internal/shown"
)

// Error is a fault in a [Set]. For a limit it wraps [ratelimit.ErrInvalidLimit]. Its text contains no key.
type Error struct {
	Line   int    // from 1; 0 without a file
	Column int    // in characters, from 1
	Rule   string // the rule's name, if it has one
	Field  string // such as "rules[2].plans.free"
	Err    error
}

// Error returns a text such as policy: line 12: rule "api": rules[2].limit: ….
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("policy: ")
	if e.Line > 0 {
		fmt.Fprintf(&b, "line %d: ", e.Line)
	}
	if e.Rule != "" {
		fmt.Fprintf(&b, "rule %q: ", e.Rule)
	}
	if e.Field != "" {
		b.WriteString(shown.Visible(e.Field) + ": ")
	}
	b.WriteString(e.Err.Error())
	return b.String()
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// requestError describes what is wrong with a request, in one text. It
// wraps ErrNoKey, ErrMalformedKey or ErrMisconfigured of package keyfunc.
type requestError struct {
	kind error
	text string
}

func (e *requestError) Error() string { return e.text }
func (e *requestError) Unwrap() error { return e.kind }

// missing reports whether an error is about a missing attribute.
func missing(err error) bool { return errors.Is(err, keyfunc.ErrNoKey) }

// reporter receives an invalid field of a rule, and the error.
type reporter func(field string, err error)
