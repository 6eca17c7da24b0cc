package policy

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weir-go/ratelimit/policy/internal/match"
)

// check checks the match in a field, and adds its routes' patterns to a tree.
func (m *Match) check(field string, named lists, tree *match.Tree, report reporter) {
	if m.Route != nil {
		checkRoutes(field+".route", m.Route, named, tree, report)
	}
	m.checkAttributes(field, named, report)
	m.checkAbsent(field+".absent", report)
}

// checkAttributes checks the matched or excluded values of attributes, and the excluded routes.
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

// checkAttributeValues checks one attribute's values, listed by the field under
// name. A whole value may be a network. A part of a value must not be empty.
func checkAttributeValues(field, name, attribute string, values []string, named lists, whole bool, report reporter) {
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

// checkAbsent checks the attributes listed as absent.
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

// checkRoutes checks patterns, and adds them to a tree.
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

// crossing returns the error for patterns with n look-ups.
func crossing(n int) error {
	return fmt.Errorf("the patterns of the routes cross each other: a request may have to be looked up in %d places, want at most %d. "+
		"Patterns that have wildcards and words in many combinations do that: use fewer wildcards, or several rules' attributes", n, maxPlaces)
}

// pattern reads a route's pattern.
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

// withSlash returns the pattern that was probably meant, if the path lacks a slash at its
// beginning: its first part would then be a host. It returns "" if no slash is missing,
// or if the part may be a host. A host has a dot, a port or brackets, or is localhost.
func withSlash(route string) string {
	method, path := "", route
	if i := strings.LastIndexAny(route[:strings.IndexByte(route+"/", '/')], " \t"); i >= 0 {
		method, path = route[:i+1], route[i+1:]
	}
	host, _, _ := strings.Cut(path, "/")
	switch {
	case host == "^": // as at the beginning of a regular expression
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

func checkValues(field string, values []string, named lists, check func(v string, listed bool) error, report reporter) {
	switch n := len(values); {
	case n == 0:
		report(field, errors.New("an empty list, which no request matches"))
	case n > maxList:
		report(field, fmt.Errorf("%d values, want at most %d", n, maxList))
		return
	}
	named.eachChecked(field, values, report, func(v string, listed bool) error { return cmp.Or(checkText(v), check(v, listed)) })
}
