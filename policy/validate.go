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
	"github.com/weir-go/ratelimit/policy/internal/joined"
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

// Validate returns nil, or an [*Error] about the first mistake for which [New] would refuse the set.
func (s *Set) Validate() error {
	if all := s.problems(); len(all) > 0 {
		return all[0]
	}
	return nil
}

// maxProblems is how many errors are told at once.
const maxProblems = 100

// problems returns all that is wrong with a set, in order.
func (s *Set) problems() (all []*Error) {
	report := func(e *Error) {
		if len(all) < maxProblems {
			all = append(all, e)
		}
	}
	if s == nil {
		return []*Error{{Err: errors.New("nil Set")}}
	}
	if len(s.Version) > maxVersion {
		report(&Error{Field: "version", Err: fmt.Errorf("%d bytes, want at most %d", len(s.Version), maxVersion)})
	}
	if len(s.Rules) > maxRules {
		report(&Error{Field: "rules", Err: fmt.Errorf("%d rules, want at most %d", len(s.Rules), maxRules)})
		return all
	}
	names := map[string]int{}
	rules := s.Complete()
	var tree match.Tree
	wrong := s.Defaults.validate(report) // told once, and not again for each rule that has it from there
	for i := range rules {
		r := &rules[i]
		r.validate(&tree, func(field string, err error) {
			if first := firstOf(field); !wrong[first] || !s.Rules[i].leavesOut(first) {
				report(r.wrong(i, field, err))
			}
		})
		name := strings.ToLower(r.Name)
		if first, ok := names[name]; ok && name != "" {
			report(r.wrong(i, "name", fmt.Errorf("rules[%d] has the same name", first)))
		} else {
			names[name] = i
		}
		if len(all) == maxProblems {
			return all
		}
	}
	if n := tree.Worst(); n > maxPlaces {
		report(&Error{Field: "rules", Err: fmt.Errorf("the patterns of the routes cross each other: a request may have to be looked up in %d places, want at most %d. "+
			"Patterns that have wildcards and words in many combinations do that: use fewer wildcards, or several rules' attributes", n, maxPlaces)})
	}
	return all
}

// validate tells what is wrong with the defaults by themselves, whether rules have them from there or not. It returns
// in which fields something is.
func (d *Defaults) validate(tell func(*Error)) (wrong map[string]bool) {
	if d == nil {
		return nil
	}
	wrong = map[string]bool{}
	report := func(field string, err error) {
		wrong[firstOf(field)] = true
		tell(&Error{Field: "defaults." + field, Err: err})
	}
	r := Rule{Match: d.Match, Key: d.Key, Limit: d.Limit, Plans: d.Plans, Cost: d.Cost}
	if err := r.checkCost(); err != nil {
		report("cost", err)
	}
	if d.Limit != (ratelimit.Limit{}) {
		if err := r.checkLimit(); err != nil {
			report("limit", err)
		}
	}
	r.checkMatch(new(match.Tree), report)
	r.checkKey(report)
	r.checkPlans(report)
	return wrong
}

// firstOf returns the first part of a field, such as match of match.route[0].
func firstOf(field string) string {
	if i := strings.IndexAny(field, ".["); i >= 0 {
		return field[:i]
	}
	return field
}

// leavesOut reports whether a rule has one of its fields from the defaults.
func (r *Rule) leavesOut(field string) bool {
	switch field {
	case "match":
		return r.Match.leftOut()
	case "key":
		return r.Key == nil
	case "limit":
		return r.Limit == ratelimit.Limit{}
	case "plans":
		return r.Plans == nil
	case "cost":
		return r.Cost == Cost{}
	}
	return false
}

// reporter is told of a rule's field in which something is wrong.
type reporter func(field string, err error)

// wrong returns an error about a field of the i-th rule.
func (r *Rule) wrong(i int, field string, err error) *Error {
	name := r.Name
	if checkName(name) != nil {
		name = ""
	}
	return &Error{Rule: name, Field: ruleField(i, field), Err: err}
}

func ruleField(i int, field string) string { return "rules[" + strconv.Itoa(i) + "]." + field }

func (r *Rule) validate(tree *match.Tree, report reporter) {
	if r.Allow {
		r.checkAllow(report)
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
			report(check.field, check.err)
		}
	}
	r.checkMatch(tree, report)
	r.checkKey(report)
	r.checkPlans(report)
	r.checkOverrides(report)
}

// checkAllow checks that a rule which exempts requests does nothing else.
func (r *Rule) checkAllow(report reporter) {
	for _, f := range []struct {
		name  string
		given bool
	}{
		{"limit", r.Limit != ratelimit.Limit{}}, {"key", len(r.Key) > 0}, {"plans", r.Plans != nil}, {"overrides", r.Overrides != nil},
		{"cost", r.Cost != Cost{}}, {"optional", r.Optional}, {"shadow", r.Shadow},
	} {
		if f.given {
			report(f.name, errors.New("the rule allows what it matches, whatever the limits: it has a match only"))
		}
	}
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
	if r.Cost == (Cost{}) {
		return nil
	}
	return r.Cost.check()
}

// checkMatch also enters the patterns into a tree.
func (r *Rule) checkMatch(tree *match.Tree, report reporter) {
	if n := len(r.Match.Route); r.Match.Route != nil && n == 0 {
		report("match.route", errors.New("an empty list, which no request matches"))
	} else if n > maxList {
		report("match.route", fmt.Errorf("%d patterns, want at most %d", n, maxList))
	}
	for j, route := range r.Match.Route[:min(len(r.Match.Route), maxList)] {
		p, err := pattern(route)
		if err != nil {
			report(fmt.Sprintf("match.route[%d]", j), err)
			continue
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
				report(asked.field, err)
				continue
			}
			checkValues(asked.field+"."+name, asked.values[name], func(v string) error {
				switch {
				case name == attrIP && asked.networks:
					return checkIP(v)
				case !asked.networks && v == "":
					return errors.New("nothing, which every value begins and ends with")
				}
				return nil
			}, report)
		}
	}
	if n := len(r.Match.Absent); r.Match.Absent != nil && n == 0 {
		report("match.absent", errors.New("an empty list, which says nothing"))
	} else if n > maxList {
		report("match.absent", fmt.Errorf("%d attributes, want at most %d", n, maxList))
		return
	}
	for j, name := range r.Match.Absent {
		if err := checkAttribute(name); err != nil {
			report(fmt.Sprintf("match.absent[%d]", j), err)
		}
	}
}

// pattern reads the pattern of a route.
func pattern(route string) (match.Pattern, error) {
	if err := checkText(route); err != nil {
		return match.Pattern{}, err
	}
	p, err := match.ParsePattern(route)
	switch instead := withSlash(route); {
	case instead == "":
	case err != nil:
		err = fmt.Errorf("%w; %q, maybe", err, instead)
	default:
		err = fmt.Errorf("%q begins with a host, and has no dot in it: write %q for the path; a host without a dot can be matched by the attribute %s", route, instead, attrHost)
	}
	return p, err
}

// withSlash returns the pattern that was meant if a slash is missing before its path, so that the path's first part
// is taken for a host. It is empty if none is, or if it may be a host: that has a dot, a port or brackets, or is localhost.
func withSlash(route string) string {
	method, path := "", route
	if i := strings.LastIndexAny(route[:strings.IndexByte(route+"/", '/')], " \t"); i >= 0 {
		method, path = route[:i+1], route[i+1:]
	}
	host, _, _ := strings.Cut(path, "/")
	if host == "" || strings.ContainsAny(host, ".:[") || strings.EqualFold(host, "localhost") {
		return ""
	}
	if _, err := match.ParsePattern(method + "/" + path); err != nil {
		return ""
	}
	return method + "/" + path
}

// checkIP checks a network. What has no slash need not be an address: the program may have put anything into the
// attribute.
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

// checkNetwork returns what is wrong with a key that stands for addresses of which IPv4 ones are cut: no request
// would have it. The error does not tell the key.
func checkNetwork(v string, bits int) error {
	if network, err := netip.ParsePrefix(v); err == nil && network.Addr().Is4() {
		switch {
		case network.Bits() != bits:
			return fmt.Errorf("a network of %d bits, want %d", network.Bits(), bits)
		case network != network.Masked():
			return fmt.Errorf("no network of %d bits: bits are set behind these", bits)
		}
		return nil
	}
	switch addr, err := netip.ParseAddr(v); {
	case err != nil:
		return fmt.Errorf("neither an IPv4 network of %d bits nor an IPv6 address", bits)
	case addr.Unmap().Is4():
		return fmt.Errorf("an IPv4 address, want its network of %d bits", bits)
	}
	return nil
}

func checkValues(field string, values Values, check func(v string) error, report reporter) {
	switch n := len(values); {
	case n == 0:
		report(field, errors.New("an empty list, which no request matches"))
	case n > maxList:
		report(field, fmt.Errorf("%d values, want at most %d", n, maxList))
		return
	}
	for j, v := range values {
		err := checkText(v)
		if err == nil {
			err = check(v)
		}
		if err != nil {
			report(fmt.Sprintf("%s[%d]", field, j), err)
		}
	}
}

func (r *Rule) checkKey(report reporter) {
	for j, name := range r.Key {
		attribute, _ := ipBits(name)
		err := checkAttribute(attribute)
		if strings.HasPrefix(attribute, attrIP+"/") {
			err = fmt.Errorf("%q, want ip/1 to ip/32", name)
		}
		if err == nil && slices.Index(r.Key, name) < j {
			err = fmt.Errorf("the attribute %q is there twice", name)
		}
		if err != nil {
			report(fmt.Sprintf("key[%d]", j), err)
		}
	}
}

func (r *Rule) checkPlans(report reporter) {
	for _, plan := range slices.Sorted(maps.Keys(r.Plans)) {
		if plan == "" || len(plan) > maxName {
			report("plans", fmt.Errorf("a plan's name of %d bytes, want 1 to %d", len(plan), maxName))
		} else if err := r.Plans[plan].Named("").Validate(); err != nil {
			report("plans."+plan, err)
		}
	}
}

func (r *Rule) checkOverrides(report reporter) {
	if n := len(r.Overrides); n > maxList {
		report("overrides", fmt.Errorf("%d overrides, want at most %d", n, maxList))
		return
	}
	if len(r.Overrides) > 0 && len(r.Key) == 0 {
		report("overrides", errors.New("the rule has no key, so no key has a limit of its own"))
		return
	}
	seen := map[string]int{}
	for j, o := range r.Overrides {
		err := r.checkOverride(o)
		if err == nil {
			if first, ok := seen[joined.Key(o.Key)]; ok {
				err = fmt.Errorf("overrides[%d] has the same key", first)
			} else {
				seen[joined.Key(o.Key)] = j
			}
		}
		if err != nil {
			report(fmt.Sprintf("overrides[%d]", j), err)
		}
	}
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
			if err := checkNetwork(v, bits); err != nil {
				return fmt.Errorf("key[%d] is %w", j, err)
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
