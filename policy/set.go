package policy

import (
	"encoding/json"
	"slices"

	"go.yaml.in/yaml/v4"

	"github.com/weir-go/ratelimit"
)

// Set is a set of rules: what a policy file holds. The zero Set limits nothing. A Set must not be changed while it is in force.
type Set struct {
	// Version is any text, at most 256 bytes. It is reported in [Policies.Stats] and
	// [Decision], and changes nothing.
	Version string `yaml:"version,omitempty" json:"version,omitempty"`
	// KillSwitch lets every request pass. Nothing is charged; [Policies.Stats] counts the
	// requests.
	KillSwitch bool `yaml:"kill_switch,omitempty" json:"kill_switch,omitempty"`
	// Defaults are what rules have that leave it out. Nil: nothing.
	Defaults *Defaults `yaml:"defaults,omitempty" json:"defaults,omitempty"`
	// Rules are the rules, in the order in which they are charged and reported. All
	// that match a request apply to it.
	Rules []Rule `yaml:"rules" json:"rules"`
}

// Defaults are fields of a [Rule] that leaves them out. A field is taken as a whole. What a file gives empty, such as "match: {}",
// "key: []" or 'cost: ""', is not left out. A rule with Allow takes only Match.
type Defaults struct {
	Match Match                      `yaml:"match,omitempty" json:"match,omitzero"`
	Key   []string                   `yaml:"key,omitempty" json:"key,omitempty"`
	Limit ratelimit.Limit            `yaml:"limit,omitempty" json:"limit,omitzero"`
	Plans map[string]ratelimit.Limit `yaml:"plans,omitempty" json:"plans,omitempty"`
	Cost  Cost                       `yaml:"cost,omitempty" json:"cost,omitzero"`
}

// leftOut reports whether the match is that of the defaults: all its fields are nil. Without defaults it is for every request.
func (m Match) leftOut() bool {
	return m.Route == nil && m.Attributes == nil && m.Not == nil && m.Prefix == nil && m.Suffix == nil && m.Absent == nil
}

// all reports whether the match is for every request.
func (m Match) all() bool {
	return len(m.Route)+len(m.Attributes)+len(m.Not)+len(m.Prefix)+len(m.Suffix)+len(m.Absent) == 0
}

// Complete returns the rules with their defaults. They must not be changed.
func (s *Set) Complete() []Rule {
	if s.Defaults == nil {
		return s.Rules
	}
	d, rules := s.Defaults, slices.Clone(s.Rules)
	for i := range rules {
		r := &rules[i]
		if r.leavesOut("match") {
			r.Match = d.Match
		}
		if r.Allow {
			continue
		}
		if r.leavesOut("key") {
			r.Key = d.Key
		}
		if r.leavesOut("limit") {
			r.Limit = d.Limit
		}
		if r.leavesOut("plans") {
			r.Plans = d.Plans
		}
		if r.leavesOut("cost") {
			r.Cost = d.Cost
		}
	}
	return rules
}

// Rule is one limit, and the requests that it is for.
type Rule struct {
	// Name is a letter, then letters, digits, "_" and "-", 128 at most, unique in its set whatever the case. Budgets belong to
	// the name: while it stays, what was spent stays.
	Name string `yaml:"name" json:"name"`
	// Description is for people.
	Description string `yaml:"description,omitempty" json:"description,omitempty"`
	// Match says which requests the rule is for; the zero Match is for every request.
	Match Match `yaml:"match,omitempty" json:"match,omitzero"`
	// Key names the attributes whose values have a budget of their own; several are one key together. If there are none, all
	// requests share one budget. "ip/24" cuts an IPv4 address to 24 bits, or any number from 1 to 32.
	Key []string `yaml:"key,omitempty" json:"key,omitzero"`
	// Allow lets the requests that the rule matches pass, whatever other rules say, and charges nothing. Such a rule has only a
	// Match, and may have a Description and Disabled.
	Allow bool `yaml:"allow,omitempty" json:"allow,omitempty"`
	// Limit is the limit of each key that has no other. Its Name is ignored: a
	// decision tells the rule's.
	Limit ratelimit.Limit `yaml:"limit,omitempty" json:"limit,omitzero"`
	// Plans are the limits for values of the attribute "plan"; for others Limit applies. A change of plan keeps what was spent.
	Plans map[string]ratelimit.Limit `yaml:"plans,omitempty" json:"plans,omitzero"`
	// Overrides are limits of single keys. They win over plans.
	Overrides []Override `yaml:"overrides,omitempty" json:"overrides,omitempty"`
	// Cost replaces the caller's cost. The zero Cost is that of the defaults, or without one the caller's. A caller's
	// cost of 0 charges nothing, whatever is given here.
	Cost Cost `yaml:"cost,omitempty" json:"cost,omitzero"`
	// Optional lets a request pass that lacks an attribute of Key or Cost. If false, such a request is an error.
	Optional bool `yaml:"optional,omitempty" json:"optional,omitempty"`
	// Shadow makes the rule decide, count and report, and never deny.
	Shadow bool `yaml:"shadow,omitempty" json:"shadow,omitempty"`
	// Disabled takes the rule out of force. What was spent is kept for when it comes
	// back.
	Disabled bool `yaml:"disabled,omitempty" json:"disabled,omitempty"`
	// ChangedBy says who changed the rule last, for people.
	ChangedBy string `yaml:"changed_by,omitempty" json:"changed_by,omitempty"`
}

// MarshalYAML returns the rule's fields. A Match, Key and Plans that are empty, and not nil, are among them: they hold in
// the place of the defaults.
func (r Rule) MarshalYAML() (any, error) {
	type fields Rule
	n := new(yaml.Node)
	if err := n.Encode(fields(r)); err != nil {
		return nil, err
	}
	if r.Match.all() && !r.Match.leftOut() {
		n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: "match"}, &yaml.Node{Kind: yaml.MappingNode, Style: yaml.FlowStyle})
	}
	if r.Key != nil && len(r.Key) == 0 {
		n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: "key"}, &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle})
	}
	if r.Plans != nil && len(r.Plans) == 0 {
		n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: "plans"}, &yaml.Node{Kind: yaml.MappingNode, Style: yaml.FlowStyle})
	}
	return n, nil
}

// Match says which requests a rule is for. All that is given has to match.
type Match struct {
	// Route lists patterns of [net/http.ServeMux]; one of them has to match the
	// attributes method, host and path. Overlaps and duplicates are fine, and
	// precedence plays no part.
	Route []string `yaml:"route,omitempty" json:"route,omitempty"`
	// Attributes lists for each attribute the values of which it must have one. For "ip", values may be networks; [HTTP] cuts IPv6
	// addresses to their /64, so smaller networks match nothing.
	Attributes map[string]Values `yaml:"attributes,omitempty" json:"attributes,omitempty"`
	// Not lists for each attribute values of which it must have none. A request without the attribute matches.
	Not map[string]Values `yaml:"not,omitempty" json:"not,omitempty"`
	// Prefix and Suffix list for each named attribute texts of which it must begin with
	// one, or end with one. A request without the attribute does not match.
	Prefix map[string]Values `yaml:"prefix,omitempty" json:"prefix,omitempty"`
	Suffix map[string]Values `yaml:"suffix,omitempty" json:"suffix,omitempty"`
	// Absent lists attributes that the request must not have, or have empty.
	Absent []string `yaml:"absent,omitempty" json:"absent,omitempty"`
}

// Values are the values that an attribute may have. In a file a single one may be
// written without brackets.
type Values []string

// UnmarshalJSON reads a value, or a list of them.
func (v *Values) UnmarshalJSON(data []byte) error {
	var one string
	if err := json.Unmarshal(data, &one); err == nil {
		*v = Values{one}
		return nil
	}
	return json.Unmarshal(data, (*[]string)(v))
}

// Override is the limit of a single key.
type Override struct {
	// Key holds the key's values, one for each attribute of the rule's Key.
	Key Values `yaml:"key" json:"key"`
	// Limit is the key's limit.
	Limit ratelimit.Limit `yaml:"limit" json:"limit"`
}

// The attributes that [HTTP] knows, and that rules read with a fixed meaning.
const (
	attrMethod = "method"
	attrHost   = "host"
	attrPath   = "path"
	attrRoute  = "route"
	attrIP     = "ip"
	attrPlan   = "plan"
	attrHeader = "header:"
)
