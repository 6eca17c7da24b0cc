package policy

import (
	"maps"
	"slices"
	"strings"

	"github.com/weir-go/ratelimit/policy/internal/match"
)

// matchOf returns the condition of a valid rule on requests. Its conditions on wildcards refer to the given routes.
func matchOf(r *Rule, named lists, routes []match.Pattern) match.Rule {
	m := match.Rule{Disabled: r.Disabled, Exempts: r.Allow}
	m.Patterns = patternsOf(named.of(r.Match.Route))
	add := func(kind match.Kind, attribute string, values []string) {
		c := match.NewCondition(kind, attribute, values)
		if name, ok := strings.CutPrefix(attribute, attrWildcard); ok {
			c = c.Of(match.NewWildcards(routes), name)
		}
		m.Conditions = append(m.Conditions, c)
	}
	for _, cond := range []struct {
		kind   match.Kind
		values map[string][]string
	}{{match.OneOf, r.Match.Attributes}, {match.NoneOf, r.Match.Not}, {match.BeginsWith, r.Match.Prefix}, {match.EndsWith, r.Match.Suffix}} {
		for _, name := range slices.Sorted(maps.Keys(cond.values)) {
			kind, attribute := cond.kind, name
			if kind == match.NoneOf {
				kind, attribute = splitNot(name)
			}
			if name == attrRoute && kind == match.NoneOf {
				m.Except = new(match.Tree)
				for _, p := range patternsOf(named.of(cond.values[name])) {
					m.Except.Add(p)
				}
				continue
			}
			add(kind, attribute, named.of(cond.values[name]))
		}
	}
	for _, name := range r.Match.Absent {
		add(match.Absent, name, nil)
	}
	return m
}

// patternsOf returns the patterns of a valid rule.
func patternsOf(routes []string) (patterns []match.Pattern) {
	for _, route := range routes {
		p, err := match.ParsePattern(route)
		if err != nil {
			panic("policy: a rule that has not been validated: " + err.Error())
		}
		patterns = append(patterns, p)
	}
	return patterns
}
