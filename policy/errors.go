package policy

import (
	"errors"
	"fmt"
	"strings"

	"github.com/weir-go/ratelimit/keyfunc"
	"github.com/weir-go/ratelimit/policy/internal/shown"
)

// Error says what is wrong with a [Set], and where. For a limit it wraps [ratelimit.ErrInvalidLimit]. Its text holds no key.
type Error struct {
	Line   int    // in the file, from 1; 0 if the set was not read from one
	Column int    // in the line, in characters from 1; 0 if the line is
	Rule   string // the rule's name, "" if it is not about a rule, or the rule has none
	Field  string // such as "rules[2].plans.free", "" for the whole
	Err    error
}

// Error returns the text, such as
// policy: line 12: rule "api": rules[2].limit: ratelimit: invalid limit: ….
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

// requestError says in one text what is wrong with a request. It wraps an error of package
// keyfunc: ErrNoKey, ErrMalformedKey or ErrMisconfigured.
type requestError struct {
	kind error
	text string
}

func (e *requestError) Error() string { return e.text }
func (e *requestError) Unwrap() error { return e.kind }

// missing reports whether an error says that an attribute is missing.
func missing(err error) bool { return errors.Is(err, keyfunc.ErrNoKey) }
