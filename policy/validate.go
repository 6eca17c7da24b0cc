package policy

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy/internal/match"
)

// What a set may hold at most. A file that is larger is a mistake, or an attack on
// whoever loads it; and to put a set in force takes a time that grows with it, 0.1 s for
// 10 000 rules.
const (
	maxRules   = 10_000
	maxName    = 128
	maxVersion = 256
	maxText    = 1024 // a description, a value, a route
	maxList    = 10_000
	maxPlaces  = 1000 // in which the routes of one request are looked up: about 20 µs
)

// Validate returns nil, or an [*Error] that says what is wrong first and where. It
// checks all that [New] and [Policies.Update] ask for.
func (s *Set) Validate() error {
	if s == nil {
		return &Error{Err: errors.New("nil Set")}
	}
	if len(s.Version) > maxVersion {
		return &Error{Field: "version", Err: fmt.Errorf("%d bytes, want at most %d", len(s.Version), maxVersion)}
	}
	if len(s.Rules) > maxRules {
		return &Error{Field: "rules", Err: fmt.Errorf("%d rules, want at most %d", len(s.Rules), maxRules)}
	}
	names := map[string]int{}
	rules := s.Complete()
	var tree match.Tree
	for i := range rules {
		r := &rules[i]
		if err := r.validate(i, &tree); err != nil {
			return err
		}
		name := strings.ToLower(r.Name)
		if first, ok := names[name]; ok {
			return r.wrong(i, "name", fmt.Errorf("rules[%d] has the same name", first))
		}
		names[name] = i
	}
	if n := tree.Worst(); n > maxPlaces {
		return &Error{Field: "rules", Err: fmt.Errorf("the patterns of the routes cross each other: a request may have to be looked up in %d places, want at most %d. "+
			"Patterns that have wildcards and words in many combinations do that: use fewer wildcards, or several rules' attributes", n, maxPlaces)}
	}
	return nil
}

// wrong returns an error about a field of the i-th rule.
func (r *Rule) wrong(i int, field string, err error) error {
	name := r.Name
	if checkName(name) != nil {
		name = ""
	}
	return &Error{Rule: name, Field: ruleField(i, field), Err: err}
}

func ruleField(i int, field string) string { return "rules[" + strconv.Itoa(i) + "]." + field }

func (r *Rule) validate(i int, tree *match.Tree) error {
	if r.Allow {
		if field, err := r.checkAllow(); err != nil {
			return r.wrong(i, field, err)
		}
	}
	for _, check := range []struct {
		field string
		err   error
	}{
		{"name", checkName(r.Name)},
		{"description", checkText(r.Description)},
		{"changed_by", checkText(r.ChangedBy)},
		{"cost", r.checkCost()},
		{"limit", r.checkLimit()},
	} {
		if check.err != nil {
			return r.wrong(i, check.field, check.err)
		}
	}
	if field, err := r.checkMatch(tree); err != nil {
		return r.wrong(i, field, err)
	}
	for _, part := range []func(*Rule) (string, error){(*Rule).checkKey, (*Rule).checkPlans, (*Rule).checkOverrides} {
		if field, err := part(r); err != nil {
			return r.wrong(i, field, err)
		}
	}
	return nil
}

// checkAllow checks that a rule which exempts requests does nothing else.
func (r *Rule) checkAllow() (field string, err error) {
	for _, f := range []struct {
		name  string
		given bool
	}{
		{"limit", r.Limit != ratelimit.Limit{}}, {"key", len(r.Key) > 0}, {"plans", r.Plans != nil}, {"overrides", r.Overrides != nil},
		{"cost", !r.Cost.IsZero()}, {"optional", r.Optional}, {"shadow", r.Shadow},
	} {
		if f.given {
			return f.name, errors.New("the rule allows what it matches, whatever the limits: it has a match only")
		}
	}
	return "", nil
}

func (r *Rule) checkLimit() error {
	l := r.Limit
	if r.Allow {
		return nil
	}
	if l == (ratelimit.Limit{}) {
		return fmt.Errorf("%w: the limit is missing", ratelimit.ErrInvalidLimit)
	}
	return l.Named("").Validate()
}

func (r *Rule) checkCost() error {
	if r.Cost.IsZero() {
		return nil
	}
	return r.Cost.check()
}

// checkMatch also enters the patterns into a tree.
func (r *Rule) checkMatch(tree *match.Tree) (field string, err error) {
	if r.Match.Route != nil && len(r.Match.Route) == 0 {
		return "match.route", errors.New("an empty list, which no request matches")
	}
	if n := len(r.Match.Route); n > maxList {
		return "match.route", fmt.Errorf("%d patterns, want at most %d", n, maxList)
	}
	for j, route := range r.Match.Route {
		field = fmt.Sprintf("match.route[%d]", j)
		if err := checkText(route); err != nil {
			return field, err
		}
		p, err := match.ParsePattern(route)
		if err != nil {
			return field, err
		}
		tree.Add(p)
	}
	for _, asked := range []struct {
		field    string
		values   map[string]Values
		networks bool // values may be networks
	}{
		{"match.attributes", r.Match.Attributes, true}, {"match.not", r.Match.Not, true},
		{"match.prefix", r.Match.Prefix, false}, {"match.suffix", r.Match.Suffix, false},
	} {
		for _, name := range slices.Sorted(maps.Keys(asked.values)) {
			if err := checkAttribute(name); err != nil {
				return asked.field, err
			}
			field := asked.field + "." + name
			if field, err := checkValues(field, asked.values[name]); err != nil {
				return field, err
			}
			for j, v := range asked.values[name] {
				if name == AttrIP && asked.networks {
					err = checkIP(v)
				} else if !asked.networks && v == "" {
					err = errors.New("nothing, which every value begins and ends with")
				}
				if err != nil {
					return fmt.Sprintf("%s[%d]", field, j), err
				}
			}
		}
	}
	if r.Match.Absent != nil && len(r.Match.Absent) == 0 {
		return "match.absent", errors.New("an empty list, which says nothing")
	}
	if n := len(r.Match.Absent); n > maxList {
		return "match.absent", fmt.Errorf("%d attributes, want at most %d", n, maxList)
	}
	for j, name := range r.Match.Absent {
		if err := checkAttribute(name); err != nil {
			return fmt.Sprintf("match.absent[%d]", j), err
		}
	}
	return "", nil
}

// checkIP checks a network. What has no slash is compared as text, and need not be an address: the program
// may have put anything into the attribute.
func checkIP(v string) error {
	if !strings.Contains(v, "/") {
		return nil
	}
	network, err := netip.ParsePrefix(v)
	switch {
	case err != nil:
		return errors.New("not a network such as 10.0.0.0/8")
	case network != network.Masked():
		return fmt.Errorf("bits are set behind the first %d: the network is %v", network.Bits(), network.Masked())
	case network.Addr().Is4In6():
		return errors.New("an IPv4 network in IPv6: write it as one of IPv4")
	}
	return nil
}

func checkValues(field string, values Values) (string, error) {
	if len(values) == 0 {
		return field, errors.New("an empty list, which no request matches")
	}
	if len(values) > maxList {
		return field, fmt.Errorf("%d values, want at most %d", len(values), maxList)
	}
	for j, v := range values {
		if err := checkText(v); err != nil {
			return fmt.Sprintf("%s[%d]", field, j), err
		}
	}
	return "", nil
}

func (r *Rule) checkKey() (field string, err error) {
	for j, name := range r.Key {
		field = fmt.Sprintf("key[%d]", j)
		attribute, _ := ipBits(name)
		if err := checkAttribute(attribute); err != nil {
			return field, err
		}
		if slices.Index(r.Key, name) < j {
			return field, fmt.Errorf("the attribute %q is there twice", name)
		}
	}
	return "", nil
}

func (r *Rule) checkPlans() (field string, err error) {
	for _, plan := range slices.Sorted(maps.Keys(r.Plans)) {
		if plan == "" || len(plan) > maxName {
			return "plans", fmt.Errorf("a plan's name of %d bytes, want 1 to %d", len(plan), maxName)
		}
		if err := r.Plans[plan].Named("").Validate(); err != nil {
			return "plans." + plan, err
		}
	}
	return "", nil
}

func (r *Rule) checkOverrides() (field string, err error) {
	if n := len(r.Overrides); n > maxList {
		return "overrides", fmt.Errorf("%d overrides, want at most %d", n, maxList)
	}
	if len(r.Overrides) > 0 && len(r.Key) == 0 {
		return "overrides", errors.New("the rule has no key, so no key has a limit of its own")
	}
	seen := map[string]int{}
	for j, o := range r.Overrides {
		field = fmt.Sprintf("overrides[%d]", j)
		if err := r.checkOverride(o); err != nil {
			return field, err
		}
		if first, ok := seen[joined(o.Key)]; ok {
			return field, fmt.Errorf("overrides[%d] has the same key", first)
		}
		seen[joined(o.Key)] = j
	}
	return "", nil
}

// checkOverride does not tell the key: it may be a secret.
func (r *Rule) checkOverride(o Override) error {
	if len(o.Key) != len(r.Key) {
		return fmt.Errorf("a key of %d values, want %d: %s", len(o.Key), len(r.Key), strings.Join(r.Key, ", "))
	}
	for j, v := range o.Key {
		if v == "" || len(v) > maxText {
			return fmt.Errorf("key[%d] has %d bytes, want 1 to %d", j, len(v), maxText)
		}
		if _, bits := ipBits(r.Key[j]); bits > 0 {
			if err := checkIP(v); err != nil {
				return fmt.Errorf("key[%d]: %w", j, err)
			}
			if network, err := netip.ParsePrefix(v); err == nil && network.Addr().Is4() && network.Bits() != bits {
				return fmt.Errorf("key[%d] is a network of %d bits, want %d", j, network.Bits(), bits)
			}
		}
	}
	return o.Limit.Named("").Validate()
}

// checkName holds names to what a limit's name may be, so that header fields and metrics
// can carry them.
func checkName(name string) error {
	if name == "" || len(name) > maxName {
		return fmt.Errorf("%d bytes, want 1 to %d", len(name), maxName)
	}
	if err := ratelimit.Unlimited().Named(name).Validate(); err != nil {
		return fmt.Errorf("%q, want a letter, then letters, digits, _ and -", name)
	}
	return nil
}

// checkAttribute holds names of attributes to letters, digits and a few signs.
func checkAttribute(name string) error {
	if name == "" || len(name) > maxName {
		return fmt.Errorf("an attribute's name of %d bytes, want 1 to %d", len(name), maxName)
	}
	for i, c := range name {
		letter := 'a' <= c|0x20 && c|0x20 <= 'z' || c == '_'
		inner := '0' <= c && c <= '9' || strings.ContainsRune("-.:", c)
		if !letter && (i == 0 || !inner) {
			return fmt.Errorf("the attribute %q has %q, want a letter, then letters, digits, _ - : and dots", name, c)
		}
	}
	return nil
}

func checkText(s string) error {
	if len(s) > maxText {
		return fmt.Errorf("%d bytes, want at most %d", len(s), maxText)
	}
	return nil
}
