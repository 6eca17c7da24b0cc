package policy

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-go/ratelimit/policy/internal/match"
)

// This file recognises how other programs write routes, hosts and methods.
// Net/http treats most of it as literal text, and no request has such a text.

// methods are servers' known methods: the ones in use from IANA's registry, and the ones of caches and UPnP.
var methods = []string{
	http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodConnect, http.MethodOptions, http.MethodTrace,
	"ACL", "BAN", "BASELINE-CONTROL", "BIND", "CHECKIN", "CHECKOUT", "COPY", "LABEL", "LINK", "LOCK", "M-SEARCH", "MERGE", "MKACTIVITY", "MKCALENDAR", "MKCOL",
	"MKREDIRECTREF", "MKWORKSPACE", "MOVE", "NOTIFY", "ORDERPATCH", "PRI", "PROPFIND", "PROPPATCH", "PURGE", "QUERY", "REBIND", "REFRESH", "REPORT", "SEARCH",
	"SOURCE", "SUBSCRIBE", "UNBIND", "UNCHECKOUT", "UNLINK", "UNLOCK", "UNSUBSCRIBE", "UPDATE", "UPDATEREDIRECTREF", "VERSION-CONTROL",
}

// oddMethod returns the method probably meant by a text, and why no request has the text as its method. If there is no
// reason, the text is one of [methods]. A meant of "" stands for every method. Several alternatives are separated by commas.
func oddMethod(method string) (meant, why string) {
	upper := strings.ToUpper(method)
	switch {
	case slices.Contains(methods, method):
		return method, ""
	case slices.Contains(methods, upper):
		return upper, fmt.Sprintf("the method %q, and requests have it in capital letters", method)
	case upper == "*" || upper == "ANY" || upper == "ALL":
		return "", fmt.Sprintf("a method of the name %q alone, and not every method", method)
	}
	if list := strings.FieldsFunc(upper, func(r rune) bool { return r == '|' || r == ',' || r == '+' }); len(list) > 1 {
		return strings.Join(list, ","), fmt.Sprintf("a method of the name %q alone", method)
	}
	for _, known := range methods[:9] {
		if alike(upper, known, 1) {
			return known, fmt.Sprintf("the method %q, which HTTP does not have", method)
		}
	}
	return method, fmt.Sprintf("the method %q, which HTTP does not have", method)
}

// betterRoute returns the patterns that the author of a text probably meant, and the reasons why no
// request matches the text. If there are no reasons, some request may match. If only conditions on
// attributes can replace the text, it returns no pattern, and the reasons name these conditions.
func betterRoute(route string) (better []string, why []string) {
	method, rest := "", strings.TrimSpace(route)
	if i := strings.IndexAny(rest, " \t"); i >= 0 && !strings.Contains(rest[:i], "/") {
		method, rest = rest[:i], strings.TrimLeft(rest[i:], " \t")
	}
	wanted := []string{""}
	if method != "" {
		meant, reason := oddMethod(method)
		if reason != "" {
			why = append(why, reason)
		}
		wanted = strings.Split(meant, ",")
	}
	if i := strings.Index(rest, "://"); i > 0 {
		rest = rest[i+3:]
		why = append(why, "a URL's scheme, which requests do not have")
	}
	if !strings.Contains(rest, "/") && strings.Contains(rest, ".") {
		rest += "/"
	}
	i := strings.IndexByte(rest, '/')
	if i < 0 {
		return nil, why
	}
	host, ok := rest[:i], true
	if method != http.MethodConnect { // for CONNECT, net/http matches the host with its port
		host, ok = betterHost(host, &why)
	}
	path, same := betterPath(rest[i:], &why)
	if !ok || !same {
		return nil, why
	}
	for _, m := range wanted {
		p := strings.TrimSpace(m + " " + host + path)
		if _, err := match.ParsePattern(p); err != nil {
			return nil, why
		}
		better = append(better, p)
	}
	return better, why
}

// betterHost returns the host probably meant in a pattern, and whether a pattern can have it.
func betterHost(host string, why *[]string) (string, bool) {
	if reason := oddHost(host); reason != "" {
		*why = append(*why, reason)
	}
	if strings.ContainsAny(host, "*{}<>") {
		return "", false
	}
	return match.Host(http.MethodGet, host), true
}

// oddHost returns why no request has this host, or "" if one may.
func oddHost(host string) string {
	switch {
	case strings.Contains(host, "://"):
		return "a host with a scheme: write the host alone"
	case strings.Contains(host, "/"):
		return "a host with a path: write the host alone"
	case strings.ContainsAny(host, "*{}<>"):
		return `a host with a wildcard, which is compared as it is written: use a condition such as suffix: {host: .example.com}`
	case match.Host(http.MethodGet, host) != match.Host(http.MethodConnect, host):
		return "a host with a port, and the hosts of requests are compared without it"
	case strings.ContainsFunc(host, func(r rune) bool { return r > 127 }):
		return "a host with letters beyond ASCII, which requests send as xn--…"
	}
	return ""
}

var (
	expressions = regexp.MustCompile(`^\(?(\.[*+]|\[[^\]]*\][*+]?|\\[dwsDWS][*+]?|\(\?.*|.*\\[dwsDWS].*|.*\[(\^|0-9|a-z|A-Z)[^\]]*\].*)\)?\??$`)
	identifier  = regexp.MustCompile(`[A-Za-z_][A-Za-z_0-9]*`)
)

// betterPath returns the path probably meant in a pattern, and whether a pattern can have it.
func betterPath(path string, why *[]string) (better string, ok bool) {
	add := func(format string, args ...any) { *why = append(*why, fmt.Sprintf(format, args...)) }
	// optional parts do not occur here
	if i := strings.IndexAny(path, "?#"); i >= 0 && !strings.ContainsAny(path[strings.LastIndexByte(path[:i], '/'):i], ":{(") {
		switch name, value, pair := strings.Cut(strings.SplitN(path[i+1:], "&", 2)[0], "="); {
		case path[i] == '#':
			add("a fragment, which no client sends")
		case pair && checkAttribute(attrQuery+name) == nil:
			add("the path %q alone, with a question mark in it (a condition on the query is attributes: {%q: %q})", path, attrQuery+name, value)
		default:
			add("the path %q alone, with a question mark in it (conditions on the query have the attribute query:NAME)", path)
		}
		path = path[:i]
	}
	if strings.Contains(path, " ") {
		add("no path, since it has a space")
		path = strings.ReplaceAll(path, " ", "%20")
	}
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	used := map[string]int{}
	odd := false
	for i, part := range parts {
		meant, unlike := betterPart(part, i == len(parts)-1)
		if meant == "" && unlike && i < len(parts)-1 {
			return "", false
		}
		if name := strings.TrimSuffix(strings.Trim(meant, "{}"), "..."); strings.HasPrefix(meant, "{") && name != "$" {
			if used[name]++; used[name] > 1 {
				meant = strings.Replace(meant, name, name+strconv.Itoa(used[name]), 1)
				unlike = true
			}
		}
		odd = odd || unlike
		parts[i] = meant
		if unlike && strings.Contains(part, "*") && meant == part {
			add("the path %q alone, since a * in a pattern stands for itself: use a condition such as prefix: {path: /files/} or suffix: {path: .json}", path)
			return "", false
		}
	}
	if odd {
		add("the path %q alone", path)
	}
	return "/" + strings.Join(parts, "/"), true
}

// betterPart returns the part probably meant in a path, and whether it differs from
// the text. An empty part at the end of a path stands for the rest of the path.
func betterPart(part string, last bool) (meant string, unlike bool) {
	all := func(name string, rest bool) string {
		if name == "" {
			name = "any"
		}
		if rest {
			return "{" + name + "...}"
		}
		return "{" + name + "}"
	}
	name := identifier.FindString(strings.ReplaceAll(part, "-", "_"))
	inner, _, _ := strings.Cut(strings.Trim(part, "{}"), ":") // removes the expression of {id:[0-9]+}
	switch {
	case part == "{$}", part == "":
		return part, false
	case part == "$": // as at the end of a regular expression
		return "{$}", true
	case last && slices.Contains([]string{"*", "**", ".*", ".+", "(.*)", "(.+)", "...", ".*$", "(.*)$"}, part):
		return "", true
	case part == "*" || part == "**":
		return all("", false), true
	// a wildcard of Gin or Next.js
	case strings.HasPrefix(part, "*") && identifier.FindString(part[1:]) == part[1:], strings.HasPrefix(part, "[...") && strings.HasSuffix(part, "]"):
		return all(name, last), true
	case strings.HasPrefix(part, "{") && strings.HasSuffix(part, "}"):
		meant = all(name, last && (strings.ContainsAny(inner, "*") || strings.HasSuffix(inner, "+") || strings.HasSuffix(inner, "...")))
		if strings.HasSuffix(part, "...}") && !last {
			meant = part // net/http's error explains it
		}
		return meant, meant != part
	case strings.HasPrefix(part, ":") && name != "":
		return all(name, last && strings.HasSuffix(part, "*")), true
	case strings.HasPrefix(part, "<") && strings.HasSuffix(part, ">"):
		if i := strings.IndexByte(part, ':'); i > 0 { // a wildcard of Flask, such as <int:id>
			name = identifier.FindString(part[i:])
			return all(name, last && part[1:i] == "path"), true
		}
		return all(name, false), true
	case strings.HasPrefix(part, "[") && strings.HasSuffix(part, "]") && identifier.FindString(part) == part[1:len(part)-1]:
		return all(name, false), true
	case expressions.MatchString(strings.TrimSuffix(part, "$")):
		return all("", false), true
	case strings.HasSuffix(part, "$"):
		return strings.TrimSuffix(part, "$"), true
	case strings.Contains(part, "{"): // a wildcard must be a whole part
		return all(identifier.FindString(part[strings.IndexByte(part, '{'):]), false), true
	case strings.Contains(part, "*"):
		return part, true
	}
	return part, false
}

// oddRoute returns a warning about a valid pattern if it matches no requests, or only requests probably not meant.
func oddRoute(route string) error {
	better, why := betterRoute(route)
	if len(why) == 0 {
		return nil
	}
	text := fmt.Sprintf("route %q matches %s", route, strings.Join(why, " and "))
	if len(better) == 0 || len(better) == 1 && better[0] == route {
		return errors.New(text)
	}
	return fmt.Errorf("%s: write %s", text, quoted(better))
}

// quoted returns a list of patterns for people.
func quoted(patterns []string) string {
	all := make([]string, len(patterns))
	for i, p := range patterns {
		all[i] = strconv.Quote(p)
	}
	return strings.Join(all, " and ")
}

// oddValue returns why no request has this value of an attribute from HTTP, or "" if one may. Kind is how the match compares.
func oddValue(attribute, v string, kind match.Kind) string {
	ends, part := kind == match.EndsWith || kind == match.NoneEnd, kind != match.OneOf && kind != match.NoneOf
	switch attribute {
	case attrMethod:
		if strings.ToUpper(v) != v {
			return "a method in small letters: requests have it in capital letters, such as POST"
		}
		if _, why := oddMethod(v); why != "" && !part {
			return "a method that HTTP does not have"
		}
	case attrPath:
		switch {
		case strings.ContainsAny(v, "?#"):
			return `a path with a query or a fragment, which the paths of requests do not have: compare the attribute query:NAME`
		case !ends && v != "" && v[0] != '/':
			return `a path without a slash at its beginning: write "/" before it`
		case strings.Contains(v, "*"), strings.Contains(v, "{"), strings.Contains(v, "/:"):
			return "a path with a wildcard, which is compared as it is written: use match.route, prefix or suffix"
		}
	case attrHost:
		return oddHost(v)
	}
	return ""
}
