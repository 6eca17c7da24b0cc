package policy

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/policy/internal/match"
)

// validate returns nil, or an [*Error] about the set's first mistake, as [New] does.
func (s *Set) validate() error {
	if all := s.problems(false); len(all) > 0 {
		return all[0]
	}
	return nil
}

// problems returns all errors of a set, in order. If unread is true, an unread list is not an error.
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
	rules := s.complete()
	var tree match.Tree
	wrong := s.Defaults.validate(named, report) // errors of the defaults are reported once, and not again for each rule with the defaults
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

// checkHead reports errors in the version and the attributes.
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

// checkBudgets checks the uniqueness of budgets' names.
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

// checkInstead checks the replacing rules. names are the rules' indices by lower-case name.
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

// noRule returns the error for a name without a rule. It suggests a similar name.
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

// cycleIn returns a cycle's rules, or nil if there is none.
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

// validate reports the defaults' errors, even if no rule uses them. It returns the fields with an error.
func (d *Defaults) validate(named lists, add func(*Error)) (wrong map[string]bool) {
	if d == nil {
		return nil
	}
	wrong = map[string]bool{}
	report := func(field string, err error) {
		wrong[firstOf(field)] = true
		add(&Error{Field: "defaults." + field, Err: err})
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
