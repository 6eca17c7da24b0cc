package policy

import (
	"errors"
	"fmt"
	"strings"

	"github.com/weir-go/ratelimit/keyfunc"
	"github.com/weir-go/ratelimit/policy/internal/shown"
)

// The errors of this package. Each is returned wrapped; test for them with [errors.Is].
var (
	// ErrInvalid says that a [Set] cannot be put in force. The error is an [*Error],
	// which says where.
	ErrInvalid = errors.New("policy: invalid")

	// ErrMissing says that a request lacks an attribute that a rule needs, and that the
	// rule is not optional. It is an [keyfunc.ErrNoKey] too, which httplimit answers
	// with status 400.
	ErrMissing = fmt.Errorf("policy: the request lacks an attribute: %w", keyfunc.ErrNoKey)

	// ErrMalformed says that a request has an attribute that a rule needs, but in a form
	// that the rule cannot use: above 1 KiB, no IP address, or a header field that is a cost and
	// no whole number of at least 0. It is an [keyfunc.ErrMalformedKey] too. Another cost of a wrong
	// form is the server's fault, a [keyfunc.ErrMisconfigured].
	ErrMalformed = fmt.Errorf("policy: the request has an attribute of a wrong form: %w", keyfunc.ErrMalformedKey)
)

// Error says what is wrong with a set, and where. It wraps [ErrInvalid] and, for a
// limit, [ratelimit.ErrInvalidLimit]. Its text holds no key.
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

// Unwrap returns the cause and [ErrInvalid].
func (e *Error) Unwrap() []error { return []error{ErrInvalid, e.Err} }

// requestError says in one text what is wrong with a request. It wraps [ErrMissing], [ErrMalformed] or
// [keyfunc.ErrMisconfigured].
type requestError struct {
	kind error
	text string
}

func (e *requestError) Error() string { return e.text }
func (e *requestError) Unwrap() error { return e.kind }

// missing reports whether an error says that an attribute is missing.
func missing(err error) bool { return errors.Is(err, ErrMissing) }
