package policy

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-go/ratelimit"
)

// What a set may hold at most. A file that is larger is a mistake, or an attack on
// whoever loads it.
const (
	maxRules   = 10_000
	maxName    = 128
	maxVersion = 256
	maxText    = 1024 // a description, a value, a route
	maxList    = 10_000
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
	for i := range s.Rules {
		r := &s.Rules[i]
		if err := r.validate(i); err != nil {
			return err
		}
		name := strings.ToLower(r.Name)
		if first, ok := names[name]; ok {
			return r.wrong(i, "name", fmt.Errorf("rules[%d] has the same name", first))
		}
		names[name] = i
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

func (r *Rule) validate(i int) error {
	for _, check := range []struct {
		field string
		err   error
	}{
		{"name", checkName(r.Name)},
		{"description", checkText(r.Description)},
		{"cost", r.checkCost()},
		{"limit", checkLimit(r.Limit)},
	} {
		if check.err != nil {
			return r.wrong(i, check.field, check.err)
		}
	}
	for _, part := range []func(*Rule) (string, error){(*Rule).checkMatch, (*Rule).checkKey, (*Rule).checkPlans, (*Rule).checkOverrides} {
		if field, err := part(r); err != nil {
			return r.wrong(i, field, err)
		}
	}
	return nil
}

func checkLimit(l ratelimit.Limit) error {
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

func (r *Rule) checkMatch() (field string, err error) {
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
		if _, err := parsePattern(route); err != nil {
			return field, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Match.Attributes)) {
		if err := checkAttribute(name); err != nil {
			return "match.attributes", err
		}
		if field, err := checkValues("match.attributes."+name, r.Match.Attributes[name]); err != nil {
			return field, err
		}
	}
	return "", nil
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
		if err := checkAttribute(name); err != nil {
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
