package policy

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/policy/internal/joined"
	"github.com/weir-go/ratelimit/policy/internal/match"
)

// Bounds of a set. A larger file is a mistake, or an attack on the
// program that loads it. The time to put a set in force grows with its size: 0.1 s for
// 10,000 rules.
const (
	maxRules   = 10_000
	maxName    = 128
	maxVersion = 256
	maxText    = 1024 // a description, a value, a route
	maxList    = 10_000
	maxPercent = 100 // of a limit
	maxWeight  = 1 << 20
	maxPlaces  = 1000 // in which the routes of one request are looked up: about 20 µs
)

// Validate returns nil, or an [*Error] about the first mistake for which [New] would refuse the set.
func (s *Set) Validate() error {
	if all := s.problems(false); len(all) > 0 {
		return all[0]
	}
	return nil
}

// maxProblems is the maximum number of errors that are returned at once.
const maxProblems = 100

// problems returns all that is wrong with a set, in order. A list that was not read is not, if unread is true.
func (s *Set) problems(unread bool) (all []*Error) {
	report := func(e *Error) {
		if len(all) < maxProblems {
			all = append(all, e)
		}
	}
	if s == nil {
		return []*Error{{Err: optional.Nil("the Set")}}
	}
	s.checkHead(report)
	named := lists(s.Lists)
	named.check(unread, report)
	if len(s.Rules) > maxRules {
		report(&Error{Field: "rules", Err: fmt.Errorf("%d rules, want at most %d", len(s.Rules), maxRules)})
		return all
	}
	names := map[string]int{}
	rules := s.Complete()
	var tree match.Tree
	wrong := s.Defaults.validate(named, report) // reported once, and not again for each rule that takes it from the defaults
	for i := range rules {
		r := &rules[i]
		r.validate(named, &tree, func(field string, err error) {
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
	checkBudgets(rules, report)
	checkInstead(rules, names, report)
	if n := tree.Worst(); n > maxPlaces {
		report(&Error{Field: "rules", Err: crossing(n)})
	}
	return all
}

// checkHead reports errors of the version and of the attributes.
func (s *Set) checkHead(report func(*Error)) {
	if len(s.Version) > maxVersion {
		report(&Error{Field: "version", Err: fmt.Errorf("%d bytes, want at most %d", len(s.Version), maxVersion)})
	}
	if len(s.Attributes) > maxList {
		report(&Error{Field: "attributes", Err: fmt.Errorf("%d attributes, want at most %d", len(s.Attributes), maxList)})
		return
	}
	for i, name := range s.Attributes {
		if err := checkAttribute(name); err != nil {
			report(&Error{Field: fmt.Sprintf("attributes[%d]", i), Err: err})
		}
	}
}

// checkBudgets checks the names of the rules' budgets, of which each belongs to one rule.
func checkBudgets(rules []Rule, report func(*Error)) {
	owner := make(map[string]int, len(rules))
	for i := range rules {
		if rules[i].Budget == "" {
			owner[strings.ToLower(rules[i].Name)] = i
		}
	}
	for i := range rules {
		r := &rules[i]
		if r.Budget == "" {
			continue
		}
		err := checkName(r.Budget)
		name := strings.ToLower(r.Budget)
		if first, ok := owner[name]; ok && err == nil {
			err = fmt.Errorf("rules[%d] has the budgets of this name", first)
		} else {
			owner[name] = i
		}
		if err != nil {
			report(r.wrong(i, "budget", err))
		}
	}
}

// checkInstead checks the rules that others take the place of. names has the rules' numbers, by their names in lower case.
func checkInstead(rules []Rule, names map[string]int, report func(*Error)) {
	all := slices.Sorted(maps.Keys(names))
	instead := make([][]int, len(rules))
	for i := range rules {
		r := &rules[i]
		if len(r.Instead) > maxList {
			report(r.wrong(i, "instead", fmt.Errorf("%d rules, want at most %d", len(r.Instead), maxList)))
			continue
		}
		for j, name := range r.Instead {
			other, ok := names[strings.ToLower(name)]
			var err error
			switch {
			case len(name) > maxName:
				err = fmt.Errorf("a name of %d bytes, want 1 to %d", len(name), maxName)
			case !ok:
				err = noRule(name, all)
			case other == i:
				err = errors.New("the rule itself")
			case rules[other].Allow:
				err = fmt.Errorf("the rule %q exempts requests, and has no limit to take the place of", rules[other].Name)
			case slices.Contains(instead[i], other):
				err = fmt.Errorf("the rule %q is there twice", rules[other].Name)
			default:
				instead[i] = append(instead[i], other)
			}
			if err != nil {
				report(r.wrong(i, fmt.Sprintf("instead[%d]", j), err))
			}
		}
	}
	if cycle := cycleIn(instead); cycle != nil {
		text := make([]string, len(cycle))
		for i, rule := range cycle {
			text[i] = rules[rule].Name
		}
		first := cycle[0]
		report(rules[first].wrong(first, "instead", fmt.Errorf("a cycle, in which each rule takes the place of the next: %s, %s", strings.Join(text, ", "), text[0])))
	}
}

// noRule is the error about a name that no rule has. It suggests a name that is like it.
func noRule(name string, all []string) error {
	for changes := range 3 {
		for _, known := range all {
			if alike(strings.ToLower(name), known, changes) {
				return fmt.Errorf("no rule %q; %q, maybe", name, known)
			}
		}
	}
	return fmt.Errorf("no rule %q", name)
}

// cycleIn returns the rules of a cycle, nil if there is none.
func cycleIn(next [][]int) []int {
	const onPath, done = 1, 2
	state := make([]int, len(next))
	var path []int
	var visit func(i int) []int
	visit = func(i int) []int {
		state[i] = onPath
		path = append(path, i)
		for _, j := range next[i] {
			if state[j] == onPath {
				return path[slices.Index(path, j):]
			}
			if state[j] == 0 {
				if cycle := visit(j); cycle != nil {
					return cycle
				}
			}
		}
		path, state[i] = path[:len(path)-1], done
		return nil
	}
	for i := range next {
		if state[i] == 0 {
			if cycle := visit(i); cycle != nil {
				return cycle
			}
		}
	}
	return nil
}

// validate reports the errors in the defaults by themselves, whether rules use them or not. It returns the fields that have
// one.
func (d *Defaults) validate(named lists, tell func(*Error)) (wrong map[string]bool) {
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
	r.Match.check("match", named, new(match.Tree), report)
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

// reporter receives an invalid field of a rule, and the error.
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

func (r *Rule) validate(named lists, tree *match.Tree, report reporter) {
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
		{"limit_from", r.checkLimitFrom()},
		{"actual", r.checkActual()},
		{"until", r.span().check()},
		{"grace", r.checkGrace()},
		{"charge", r.checkCharge()},
	} {
		if check.err != nil {
			report(check.field, check.err)
		}
	}
	r.Match.check("match", named, tree, report)
	r.checkKey(report)
	r.checkPlans(report)
	r.checkShare(report)
	r.checkNotify(report)
	r.checkOverrides(report)
	r.checkCosts(named, report)
	r.checkWildcards(named, report)
}

// checkLimitFrom refuses the attributes that a client chooses.
func (r *Rule) checkLimitFrom() error {
	switch name := r.LimitFrom; {
	case name == "":
		return nil
	case sentByClient(name):
		return fmt.Errorf("%q is sent by the client, which would choose its limit: want an attribute that the program supplies", name)
	default:
		return checkAttribute(name)
	}
}

// checkNotify checks the shares of a limit.
func (r *Rule) checkNotify(report reporter) {
	seen := map[int]int{}
	for j, text := range r.Notify {
		percent, err := percentOf(text)
		if first, twice := seen[percent]; err == nil && twice {
			err = fmt.Errorf("notify[%d] is the same", first)
		}
		if err != nil {
			report(fmt.Sprintf("notify[%d]", j), err)
			continue
		}
		seen[percent] = j
	}
}

// percentOf reads a share of a limit, such as 80%.
func percentOf(text string) (int, error) {
	digits, ok := strings.CutSuffix(text, "%")
	if n, err := strconv.Atoi(digits); ok && err == nil && 1 <= n && n <= maxPercent && digits == strconv.Itoa(n) {
		return n, nil
	}
	return 0, fmt.Errorf("%q, want 1%% to %d%%", text, maxPercent)
}

// checkAllow checks that a rule which exempts requests does nothing else.
func (r *Rule) checkAllow(report reporter) {
	for _, f := range []struct {
		name  string
		given bool
	}{
		{"limit", r.Limit != ratelimit.Limit{}}, {"key", len(r.Key) > 0}, {"plans", r.Plans != nil}, {"overrides", r.Overrides != nil},
		{"cost", r.Cost != Cost{}}, {"optional", r.Optional}, {"shadow", r.Shadow}, {"instead", len(r.Instead) > 0},
		{"limit_from", r.LimitFrom != ""}, {"notify", len(r.Notify) > 0}, {"share", r.Share != 0}, {"shares", r.Shares != nil},
		{"costs", r.Costs != nil}, {"actual", r.Actual != ""}, {"budget", r.Budget != ""}, {"grace", r.Grace != ""}, {"charge", r.Charge != ""},
	} {
		if f.given {
			report(f.name, errors.New("the rule allows the requests that it matches, whatever the limits: it has a match only"))
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
	switch {
	case r.Cost == (Cost{}):
		return nil
	case r.Cost.Match != nil:
		return errors.New("a Match, which only a cost in Costs has")
	}
	return r.Cost.check()
}

// check checks a match, which is in a field, and enters the patterns of its routes into a tree.
func (m *Match) check(field string, named lists, tree *match.Tree, report reporter) {
	if m.Route != nil {
		checkRoutes(field+".route", m.Route, named, tree, report)
	}
	m.checkAttributes(field, named, report)
	m.checkAbsent(field+".absent", report)
}

// checkAttributes checks the values of attributes that a rule matches or excludes, and the excluded routes.
func (m *Match) checkAttributes(field string, named lists, report reporter) {
	for _, name := range slices.Sorted(maps.Keys(m.Attributes)) {
		checkAttributeValues(field+".attributes", name, name, m.Attributes[name], named, true, report)
	}
	for _, name := range slices.Sorted(maps.Keys(m.Not)) {
		if name == attrRoute {
			except := new(match.Tree)
			if checkRoutes(field+".not.route", m.Not[name], named, except, report); except.Worst() > maxPlaces {
				report(field+".not.route", crossing(except.Worst()))
			}
			continue
		}
		kind, attribute := splitNot(name)
		checkAttributeValues(field+".not", name, attribute, m.Not[name], named, kind == match.NoneOf, report)
	}
	for _, name := range slices.Sorted(maps.Keys(m.Prefix)) {
		checkAttributeValues(field+".prefix", name, name, m.Prefix[name], named, false, report)
	}
	for _, name := range slices.Sorted(maps.Keys(m.Suffix)) {
		checkAttributeValues(field+".suffix", name, name, m.Suffix[name], named, false, report)
	}
}

// checkAttributeValues checks the values of one attribute, which name stands for in a field. Whole values may be networks; a
// part of a value is never empty.
func checkAttributeValues(field, name, attribute string, values Values, named lists, whole bool, report reporter) {
	if err := checkAttribute(attribute); err != nil {
		report(field, err)
		return
	}
	checkValues(field+"."+notField(name, attribute), values, named, func(v string, listed bool) error {
		switch {
		case attribute == attrIP && whole && listed:
			return addressOf(v)
		case attribute == attrIP && whole:
			return checkIP(v)
		case !whole && v == "":
			return errors.New("nothing, which every value begins and ends with")
		}
		return nil
	}, report)
}

// checkAbsent checks the attributes that a request must lack.
func (m *Match) checkAbsent(field string, report reporter) {
	if n := len(m.Absent); m.Absent != nil && n == 0 {
		report(field, errors.New("an empty list, which has no effect"))
	} else if n > maxList {
		report(field, fmt.Errorf("%d attributes, want at most %d", n, maxList))
		return
	}
	for j, name := range m.Absent {
		if err := checkAttribute(name); err != nil {
			report(fmt.Sprintf("%s[%d]", field, j), err)
		}
	}
}

// notField returns the part of a field for an attribute: prefix.path for "prefix:path" under not.
func notField(name, attribute string) string {
	if name == attribute {
		return name
	}
	return strings.TrimSuffix(name, ":"+attribute) + "." + attribute
}

// checkRoutes checks patterns, and enters them into a tree.
func checkRoutes(field string, routes []string, named lists, tree *match.Tree, report reporter) {
	if n := len(routes); n == 0 {
		report(field, errors.New("an empty list, which no request matches"))
	} else if n > maxList {
		report(field, fmt.Errorf("%d patterns, want at most %d", n, maxList))
	}
	routes = routes[:min(len(routes), maxList)]
	named.eachChecked(field, routes, report, func(route string, _ bool) error {
		p, err := pattern(route)
		if err == nil {
			tree.Add(p)
		}
		return err
	})
}

// crossing is the error about patterns that need n look-ups.
func crossing(n int) error {
	return fmt.Errorf("the patterns of the routes cross each other: a request may have to be looked up in %d places, want at most %d. "+
		"Patterns that have wildcards and words in many combinations do that: use fewer wildcards, or several rules' attributes", n, maxPlaces)
}

// pattern reads the pattern of a route.
func pattern(route string) (match.Pattern, error) {
	if err := checkText(route); err != nil {
		return match.Pattern{}, err
	}
	p, err := match.ParsePattern(route)
	slash := withSlash(route)
	if err == nil && slash == "" {
		return p, nil
	}
	instead, why := betterRoute(cmp.Or(slash, route))
	if slash != "" && (len(instead) == 0 || len(why) == 0) {
		instead = []string{slash}
	}
	switch {
	case err != nil && len(instead) > 0:
		err = fmt.Errorf("%w; %s, maybe", err, quoted(instead))
	case err != nil && len(why) > 0:
		err = fmt.Errorf("%w; %s", err, strings.Join(why, ", "))
	case err == nil:
		err = fmt.Errorf("%q begins with a host, and has no dot in it: write %s for the path; a host without a dot can be matched by the attribute %s", route, quoted(instead), attrHost)
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
	switch {
	case host == "^": // of a regular expression
		return method + path[1:]
	case method == "" && host != path && slices.Contains(methods, strings.ToUpper(host)):
		return host + " " + path[len(host):]
	}
	if host == "" || strings.ContainsAny(host, ".:[") || strings.EqualFold(host, "localhost") {
		return ""
	}
	if _, err := match.ParsePattern(method + "/" + path); err != nil {
		return ""
	}
	return method + "/" + path
}

// checkIP checks a network. A text without a slash need not be an address: the program may have put anything into the
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

// check returns an error if a key stands for an address and is not cut as the rule cuts them: no request would have it. The
// error does not hold the key.
func (c cut) check(v string) error {
	if network, err := netip.ParsePrefix(v); err == nil {
		bits := c.v6
		if network.Addr().Is4() {
			bits = c.v4
		}
		switch {
		case bits == 0:
			return errors.New("an IPv6 network, and the key has IPv6 addresses")
		case network.Bits() != bits:
			return fmt.Errorf("a network of %d bits, want %d", network.Bits(), bits)
		case network != network.Masked():
			return fmt.Errorf("no network of %d bits: bits are set behind these", bits)
		case bits == network.Addr().BitLen() && c.v6 > 0:
			return errors.New("a network of one address, want the address")
		}
		return nil
	}
	addr, err := netip.ParseAddr(v)
	switch {
	case err != nil && c.v6 > 0:
		return fmt.Errorf("neither an IPv4 network of %d bits nor an IPv6 network of %d", c.v4, c.v6)
	case err != nil:
		return fmt.Errorf("neither an IPv4 network of %d bits nor an IPv6 address", c.v4)
	case addr.Unmap().Is4() && (c.v4 < 32 || c.v6 == 0):
		return fmt.Errorf("an IPv4 address, want its network of %d bits", c.v4)
	case addr.Unmap().Is6() && c.v6 > 0 && c.v6 < 128:
		return fmt.Errorf("an IPv6 address, want its network of %d bits", c.v6)
	}
	return nil
}

func checkValues(field string, values Values, named lists, check func(v string, listed bool) error, report reporter) {
	switch n := len(values); {
	case n == 0:
		report(field, errors.New("an empty list, which no request matches"))
	case n > maxList:
		report(field, fmt.Errorf("%d values, want at most %d", n, maxList))
		return
	}
	named.eachChecked(field, values, report, func(v string, listed bool) error { return cmp.Or(checkText(v), check(v, listed)) })
}

// sameAttribute reports whether two names mean one attribute. The name of a header field may be in any case.
func sameAttribute(a, b string) bool {
	return a == b || strings.HasPrefix(a, attrHeader) && strings.HasPrefix(b, attrHeader) && strings.EqualFold(a, b)
}

func (r *Rule) checkKey(report reporter) {
	for j, name := range r.Key {
		attribute, _ := ipBits(name)
		err := checkAttribute(attribute)
		if strings.HasPrefix(attribute, attrIP+"/") {
			err = fmt.Errorf("%q, want ip/1 to ip/32, or with the bits of IPv6 such as ip/24/56", name)
		}
		same := func(other string) bool { return sameAttribute(other, name) }
		if err == nil && slices.IndexFunc(r.Key, same) < j {
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

// checkWeight returns an error if a number is no weight of a share.
func checkWeight(weight int) error {
	if weight < 1 || weight > maxWeight {
		return fmt.Errorf("%d, want a weight from 1 to %d", weight, maxWeight)
	}
	return nil
}

// checkShare checks the weights, and that a rule with Share has nothing that only budgets of single keys have.
func (r *Rule) checkShare(report reporter) {
	for _, plan := range slices.Sorted(maps.Keys(r.Shares)) {
		if plan == "" || len(plan) > maxName {
			report("shares", fmt.Errorf("a plan's name of %d bytes, want 1 to %d", len(plan), maxName))
		} else if err := checkWeight(r.Shares[plan]); err != nil {
			report("shares."+plan, err)
		} else if limit, ok := r.Plans[plan]; ok {
			report("shares."+plan, fmt.Errorf("the plan has the limit %v in plans, want one of the two", limit.Named("")))
		}
	}
	if r.Allow {
		return
	}
	if r.Share == 0 {
		if r.Shares != nil {
			report("shares", errors.New("weights of plans, and the rule has no share: want share, the weight of keys without such a plan"))
		}
		return
	}
	if err := checkWeight(r.Share); err != nil {
		report("share", err)
		return
	}
	if len(r.Key) == 0 {
		report("share", fmt.Errorf("%d, and the rule has no key: nobody shares its limit", r.Share))
	}
	if r.Limit.Algorithm != ratelimit.AlgorithmTokenBucket && r.checkLimit() == nil {
		report("limit", fmt.Errorf("%w: %v, and the rule has share %d: want a token bucket, whose rate keys can share", ratelimit.ErrInvalidLimit, r.Limit.Named(""), r.Share))
	}
	if r.LimitFrom != "" {
		report("limit_from", fmt.Errorf("%q, and the rule has share %d: its keys have no limits of their own; want shares for weights by plan", r.LimitFrom, r.Share))
	}
	if len(r.Notify) > 0 {
		report("notify", fmt.Errorf("%s, and the rule has share %d: its keys have no limits of their own, of which to notify", r.Notify[0], r.Share))
	}
	for _, plan := range slices.Sorted(maps.Keys(r.Plans)) {
		if limit := r.Plans[plan]; counts(limit) {
			report("plans."+plan, fmt.Errorf("%v, and the rule has share %d: want a weight in shares, or unlimited or blocked", limit.Named(""), r.Share))
		}
	}
}

// counts reports whether a limit counts anything.
func counts(l ratelimit.Limit) bool {
	return l.Algorithm != ratelimit.AlgorithmUnlimited && l.Algorithm != ratelimit.AlgorithmBlocked
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
	seen := map[string][]int{}
	for j := range r.Overrides {
		o := &r.Overrides[j]
		err := r.checkOverride(*o)
		if err == nil {
			key := joined.Key(o.Key)
			for _, first := range seen[key] {
				other := &r.Overrides[first]
				if o.span().always() == other.span().always() && o.span().meets(other.span()) {
					err = fmt.Errorf("overrides[%d] has the same key", first)
					if !o.span().always() {
						err = fmt.Errorf("overrides[%d] has the same key, %v", first, other.span())
					}
				}
			}
			seen[key] = append(seen[key], j)
		}
		if err != nil {
			report(fmt.Sprintf("overrides[%d]", j), err)
		}
	}
}

// The errors of checkOverride do not hold the key: it may be a secret.
func (r *Rule) checkOverride(o Override) error {
	if len(o.Key) != len(r.Key) {
		return fmt.Errorf("a key of %d values, want %d: %s", len(o.Key), len(r.Key), strings.Join(r.Key, ", "))
	}
	for j, v := range o.Key {
		if v == "" || len(v) > maxText {
			return fmt.Errorf("key[%d] has %d bytes, want 1 to %d", j, len(v), maxText)
		}
		if _, c := ipBits(r.Key[j]); c != (cut{}) {
			if err := c.check(v); err != nil {
				return fmt.Errorf("key[%d] is %w", j, err)
			}
		}
	}
	if err := o.span().check(); err != nil {
		return fmt.Errorf("until is %w", err)
	}
	switch {
	case o.Share != 0 && !o.span().always():
		return fmt.Errorf("share is %d, with a time: a weight holds at all times", o.Share)
	case o.Share != 0 && r.Share == 0:
		return fmt.Errorf("share is %d, and the rule has no share", o.Share)
	case o.Share != 0 && o.Limit != ratelimit.Limit{}:
		return fmt.Errorf("both limit %v and share %d", o.Limit.Named(""), o.Share)
	case o.Share != 0:
		if err := checkWeight(o.Share); err != nil {
			return fmt.Errorf("share is %w", err)
		}
		return nil
	case r.Share != 0 && o.Limit == ratelimit.Limit{}:
		return errors.New("neither share nor limit")
	}
	if err := o.Limit.Named("").Validate(); err != nil || r.Share == 0 || !counts(o.Limit) {
		return err
	}
	return fmt.Errorf("limit is %v, and the rule has share %d: want share, or the limit unlimited or blocked", o.Limit.Named(""), r.Share)
}

// checkName applies the rules for a limit's name, so that header fields and metrics can carry the name.
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
	if name == attrHeader || name == attrQuery || name == attrCookie || name == attrWildcard {
		return fmt.Errorf("the attribute %q has no name behind the colon, so no request has it", name)
	}
	for i, c := range name {
		letter := 'a' <= c|0x20 && c|0x20 <= 'z' || c == '_'
		inner := '0' <= c && c <= '9' || strings.ContainsRune("-.:", c)
		if !letter && (i == 0 || !inner) {
			err := fmt.Errorf("the attribute %q has %q, want a letter, then letters, digits, _ - : and dots", name, c)
			if better := withoutSpaces(name); c == ' ' && better != name && checkAttribute(better) == nil {
				err = fmt.Errorf("%w; %q, maybe", err, better)
			}
			return err
		}
	}
	return nil
}

// withoutSpaces returns a name as it may be meant: without spaces around its parts, and with a dash for those in it.
func withoutSpaces(name string) string {
	parts := strings.Split(name, ":")
	for i, part := range parts {
		parts[i] = strings.Join(strings.Fields(part), "-")
	}
	return strings.Join(parts, ":")
}

func checkText(s string) error {
	if len(s) > maxText {
		return fmt.Errorf("%d bytes, want at most %d", len(s), maxText)
	}
	return nil
}
