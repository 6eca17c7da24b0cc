package policy

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/weir-go/ratelimit/keyfunc"
	"github.com/weir-go/ratelimit/policy/internal/match"
)

// needed is a rule's required attribute.
type needed struct {
	attribute string
	cut       cut              // how an address is cut
	hash      bool             // whether the key contains a hash of the value, a possible secret
	wildcards *match.Wildcards // the routes' wildcards, if the attribute is a wildcard; otherwise nil
	missing   error            // the error for a missing attribute, made once because an optional rule needs it often
	malformed error            // the error for a malformed value
}

func need(attribute string, c cut) needed {
	return needed{attribute, c, isSecret(attribute), nil, &requestError{keyfunc.ErrNoKey, fmt.Sprintf("the request has no %q", attribute)}, keyfunc.ErrMalformedKey}
}

// needCost is need for a cost. If the cost is invalid, the server is at fault, unless the client has sent it.
func needCost(attribute string) needed {
	n := need(attribute, cut{})
	n.hash = false
	if !sentByClient(attribute) {
		n.malformed = keyfunc.ErrMisconfigured
	}
	return n
}

// wrong returns the error for a malformed value.
func (n *needed) wrong(format string, args ...any) error {
	return &requestError{n.malformed, fmt.Sprintf("%q "+format, append([]any{n.attribute}, args...)...)}
}

// of returns the attribute for the requests on some routes.
func (n needed) of(routes []match.Pattern) needed {
	if strings.HasPrefix(n.attribute, attrWildcard) {
		n.wildcards = match.NewWildcards(routes)
	}
	return n
}

// in returns a request's attribute.
func (n *needed) in(r Request) (v string, err error) {
	ok := false
	if n.wildcards != nil {
		v, ok = n.wildcards.Value(r, n.attribute[len(attrWildcard):])
	} else {
		v, ok = r.Attribute(n.attribute)
	}
	switch {
	case n.attribute == attrPath:
		v = match.Spelt(attrPath, v)
	case n.attribute == attrIP && n.cut == (cut{}): // otherwise the address is cut later
		v = match.Client(v)
	}
	switch {
	case !ok || v == "":
		return "", n.missing
	case n.hash:
		return hashOfSecret(v), nil
	case len(v) > maxText:
		return "", n.wrong("has %d bytes, want at most %d", len(v), maxText)
	}
	return v, nil
}

// hashOfSecret returns the text in place of a value in a key.
func hashOfSecret(v string) string {
	h := keyfunc.HashOf(v)
	return hex.EncodeToString(h[:])
}

// textOf returns a value from a key as written by a person, in the form of the keys of
// requests. A value that looks like a hash, as in a listed key, counts as the hash.
func (n *needed) textOf(v string) string {
	if n.cut != (cut{}) {
		if network, err := netip.ParsePrefix(v); err == nil {
			return network.String()
		}
		if network, ok := n.cut.of(v); ok {
			return network
		}
	}
	if n.attribute == attrIP && n.cut == (cut{}) {
		return match.Client(v)
	}
	if n.hash && (len(v) != 2*len(keyfunc.Hash{}) || strings.Trim(v, "0123456789abcdef") != "") {
		return hashOfSecret(v)
	}
	return v
}

// number returns the attribute's value as a cost.
func (n *needed) number(r Request) (int, error) {
	text, err := n.in(r)
	if err != nil {
		return 0, err
	}
	units, err := strconv.Atoi(text)
	if err != nil || units < 0 {
		return 0, n.wrong("is not a whole number of at least 0")
	}
	return units, nil
}
