package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/weir-go/ratelimit/policy/internal/match"
)

// eachWildcard calls f for each wildcard of a rule, with the routes that must have it.
func (r *Rule) eachWildcard(f func(field, name string, routes []string)) {
	visit := func(field, attribute string, routes []string) {
		if name, ok := strings.CutPrefix(attribute, attrWildcard); ok && name != "" {
			f(field, name, routes)
		}
	}
	ofMatch := func(within string, m Match, routes []string) {
		m.eachCondition(func(field, attribute string, _ match.Kind, _ []string) { visit(within+field, attribute, routes) })
		for j, name := range m.Absent {
			visit(fmt.Sprintf("%smatch.absent[%d]", within, j), name, routes)
		}
	}
	ofMatch("", r.Match, r.Match.Route)
	for j, name := range r.Key {
		visit(fmt.Sprintf("key[%d]", j), name, r.Match.Route)
	}
	visit("cost", r.Cost.Attribute, r.Match.Route)
	for j, c := range r.Costs {
		routes, field := r.Match.Route, fmt.Sprintf("costs[%d].", j)
		if c.Match != nil {
			if len(c.Match.Route) > 0 {
				routes = c.Match.Route
			}
			ofMatch(field, *c.Match, routes)
		}
		visit(field+"cost", c.Attribute, routes)
	}
}

// checkWildcards reports wildcards missing in a route of the rule.
func (r *Rule) checkWildcards(named lists, report reporter) {
	r.eachWildcard(func(field, name string, routes []string) {
		if len(routes) == 0 {
			report(field, fmt.Errorf("the wildcard {%s}, and the rule has no route: want one such as \"/users/{%s}/\" in match.route", name, name))
			return
		}
		for _, route := range named.of(routes) {
			p, err := match.ParsePattern(route)
			if err != nil {
				continue // its error is reported at the route
			}
			if has, _ := p.Wildcards(); !slices.Contains(has, name) {
				report(field, fmt.Errorf("the wildcard {%s}, which the route %q does not have: want it in each route of the rule", name, route))
				return
			}
		}
	})
}

// mayBeEmpty reports wildcards of keys that may match an empty text. The rule would then refuse the request.
func (r *Rule) mayBeEmpty(named lists, report reporter) {
	r.eachWildcard(func(field, name string, routes []string) {
		if !strings.HasPrefix(field, "key[") || r.Optional {
			return
		}
		for _, route := range named.of(routes) {
			p, err := match.ParsePattern(route)
			if err != nil {
				continue
			}
			if _, rest := p.Wildcards(); rest == name {
				report(field, errors.New("the wildcard {"+name+"...} may stand for nothing: such a request is refused, unless the rule is optional"))
				return
			}
		}
	})
}
