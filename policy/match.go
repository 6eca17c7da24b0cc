package policy

import (
	"maps"
	"slices"
	"strings"

	"github.com/weir-go/ratelimit/policy/internal/match"
)

// Match selects a rule's requests. All set fields must match. The zero Match matches every request.
type Match struct {
	// Route lists patterns of [net/http.ServeMux]. One must match the method, the host and the path.
	Route []string `yaml:"route,omitempty" json:"route,omitempty"`
	// Attributes lists an attribute's possible values. For "ip" they may be networks. In a file a single value
	// needs no brackets. Here and in the other fields, "@NAME" stands for a list's values: see [Set.Lists].
	Attributes map[string][]string `yaml:"attributes,omitempty" json:"attributes,omitempty"`
	// Not lists an attribute's excluded values. A request without the attribute matches. The
	// key "route" lists excluded patterns. The keys "prefix:NAME" and "suffix:NAME" list how
	// the attribute NAME must not begin or end. A file writes them as prefix: {NAME: …}.
	Not map[string][]string `yaml:"not,omitempty" json:"not,omitempty"`
	// Prefix and Suffix list an attribute's permitted beginnings and ends. The attribute must not be missing.
	Prefix map[string][]string `yaml:"prefix,omitempty" json:"prefix,omitempty"`
	Suffix map[string][]string `yaml:"suffix,omitempty" json:"suffix,omitempty"`
	// Absent lists attributes that must be missing or empty.
	Absent []string `yaml:"absent,omitempty" json:"absent,omitempty"`
}

// leftOut reports whether the match of the defaults applies, because all fields
// of this one are nil. Without defaults the match then matches every request.
func (m Match) leftOut() bool {
	return m.Route == nil && m.Attributes == nil && m.Not == nil && m.Prefix == nil && m.Suffix == nil && m.Absent == nil
}

// all reports whether the match matches every request.
func (m Match) all() bool {
	return len(m.Route)+len(m.Attributes)+len(m.Not)+len(m.Prefix)+len(m.Suffix)+len(m.Absent) == 0
}

// eachCondition calls f in order for each attribute whose value the match restricts.
func (m *Match) eachCondition(f func(field, attribute string, kind match.Kind, values []string)) {
	for _, cond := range []struct {
		field  string
		kind   match.Kind
		values map[string][]string
	}{{"attributes", match.OneOf, m.Attributes}, {"not", match.NoneOf, m.Not}, {"prefix", match.BeginsWith, m.Prefix}, {"suffix", match.EndsWith, m.Suffix}} {
		for _, name := range slices.Sorted(maps.Keys(cond.values)) {
			attribute, kind := name, cond.kind
			if kind == match.NoneOf {
				kind, attribute = splitNot(name)
			}
			f("match."+cond.field+"."+notField(name, attribute), attribute, kind, cond.values[name])
		}
	}
}

// These parts of [Match.Not] are not attributes.
const (
	notPrefix = "prefix:"
	notSuffix = "suffix:"
)

// splitNot returns the attribute in a name of [Match.Not], and how its values are compared.
func splitNot(name string) (kind match.Kind, attribute string) {
	if attribute, ok := strings.CutPrefix(name, notPrefix); ok {
		return match.NoneBegin, attribute
	}
	if attribute, ok := strings.CutPrefix(name, notSuffix); ok {
		return match.NoneEnd, attribute
	}
	return match.NoneOf, name
}

// notField returns the part of a field for an attribute: prefix.path for "prefix:path" under not.
func notField(name, attribute string) string {
	if name == attribute {
		return name
	}
	return strings.TrimSuffix(name, ":"+attribute) + "." + attribute
}
