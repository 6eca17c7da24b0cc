package policy

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy/internal/match"
)

// warnings reports the parts of a valid set that are certainly mistakes, for example an empty list.
func (s *Set) warnings() (all []*Error) {
	rules, named := s.complete(), lists(s.Lists)
	for _, name := range slices.Sorted(maps.Keys(named)) {
		if list := named[name]; len(list.Values) == 0 && !list.unread() {
			all = append(all, &Error{Field: "lists." + name, Err: fmt.Errorf("list %q: %s has no values: no request has one of them", name, list.File)})
		}
	}
	for i := range rules {
		r := &rules[i]
		report := func(field string, err error) {
			if len(all) < maxProblems {
				all = append(all, r.wrong(i, field, err))
			}
		}
		r.neverPasses(report)
		r.neverCome(named, report)
		r.unsupplied(s, report)
		r.addressesInHeaders(report)
		r.exempted(report)
		r.neverMatches(named, report)
		r.mayBeEmpty(named, report)
		for j := range r.Costs {
			price := &Rule{Match: *r.Costs[j].Match}
			within := func(field string, err error) { report(fmt.Sprintf("costs[%d].%s", j, field), err) }
			price.neverCome(named, within)
			price.unsupplied(s, within)
			price.neverMatches(named, within)
		}
	}
	return all
}

// neverMatches reports routes, methods, hosts and paths that no request has.
func (r *Rule) neverMatches(named lists, report reporter) {
	odd := func(route string, _ bool) error { return oddRoute(route) }
	named.eachChecked("match.route", r.Match.Route, report, odd)
	named.eachChecked("match.not.route", r.Match.Not[attrRoute], report, odd)
	r.Match.eachCondition(func(field, attribute string, kind match.Kind, values []string) {
		if attribute == attrRoute {
			return
		}
		named.eachChecked(field, values, report, func(v string, _ bool) error {
			if why := oddValue(attribute, v, kind); why != "" {
				return fmt.Errorf("%q is %s", v, why)
			}
			return nil
		})
	})
	for k, name := range r.Key {
		for j, o := range r.Overrides {
			if why := oddValue(name, o.Key[k], match.OneOf); why != "" { // without the key: it may be a secret
				report(fmt.Sprintf("overrides[%d]", j), fmt.Errorf("key[%d] is %s: no request has it", k, why))
			}
		}
	}
	r.contradicts(named, report)
}

// contradicts reports a rule whose other conditions exclude its routes' methods.
func (r *Rule) contradicts(named lists, report reporter) {
	wanted, given := r.Match.Attributes[attrMethod]
	wanted = named.of(wanted)
	if !given || len(r.Match.Route) == 0 {
		return
	}
	for _, route := range named.of(r.Match.Route) {
		method, _, _ := strings.Cut(route, "/")
		method, _, _ = strings.Cut(method, " ")
		if !strings.Contains(route, method+" ") || slices.Contains(wanted, method) || method == http.MethodGet && slices.Contains(wanted, http.MethodHead) {
			return
		}
	}
	report("match.attributes.method", errors.New("no route of the rule is for one of these methods: no request matches"))
}

// supplied is the list of attributes in warnings' texts.
const supplied = "policy.HTTP supplies method, host, path, route, ip, header:NAME, query:NAME and cookie:NAME"

// unsupplied reports attributes that no request has. If the set declares attributes, these are all names
// neither declared nor supplied by [HTTP]. Otherwise they are only names similar to an attribute of HTTP.
func (r *Rule) unsupplied(set *Set, report reporter) {
	seen := map[string]bool{}
	check := func(field, name string) {
		switch {
		case seen[name] || slices.Contains(set.Attributes, name):
			return
		case neverSent(name) != nil:
			report(field, neverSent(name))
		case sentByClient(name):
			return
		case len(set.Attributes) > 0:
			report(field, fmt.Errorf("the attribute %q is not among the attributes of the set%s, and %s", name, maybe(name, set.Attributes), supplied))
		default:
			meant := looksLike(name)
			if meant == "" {
				return
			}
			report(field, fmt.Errorf("the attribute %q; %q, maybe: %s. Attributes of the program can be declared by the field attributes", name, meant, supplied))
		}
		seen[name] = true
	}
	r.Match.eachCondition(func(field, attribute string, _ match.Kind, _ []string) { check(field, attribute) })
	for j, name := range r.Match.Absent {
		check(fmt.Sprintf("match.absent[%d]", j), name)
	}
	for j, name := range r.Key {
		attribute, _ := ipBits(name)
		check(fmt.Sprintf("key[%d]", j), attribute)
	}
	r.eachCost(func(field string, c Cost) {
		if c.Attribute != "" {
			check(field, c.Attribute)
		}
	})
	if r.Actual != "" {
		check("actual", r.Actual)
	}
	if r.LimitFrom != "" {
		check("limit_from", r.LimitFrom)
	}
	if len(r.Plans) > 0 {
		check("plans", attrPlan)
	}
	if len(r.Shares) > 0 {
		check("shares", attrPlan)
	}
}

// wellKnownFields are header fields whose misspelled names are certainly mistakes.
var wellKnownFields = []string{"Accept-Language", "Authorization", "Content-Type", "Proxy-Authorization", "Referer", "User-Agent", "X-Forwarded-For"}

// neverSent returns a warning about a name that seems to be supplied by [HTTP] but never is. It returns nil for other names.
func neverSent(name string) error {
	word, rest, _ := strings.Cut(name, ":")
	switch lower := strings.ToLower(rest); {
	case word+":" == attrHeader && strings.HasPrefix(rest, ":"):
		return fmt.Errorf("the attribute %q, and net/http has no such header field: %s", name, supplied)
	case word+":" == attrHeader && strings.Contains(rest, ":"):
		return fmt.Errorf("the attribute %q, and no header field has a colon in its name", name)
	case word+":" == attrHeader && lower == attrHost:
		return fmt.Errorf("the attribute %q, which net/http takes out of the header: write %q", name, attrHost)
	case word+":" == attrHeader && (lower == "transfer-encoding" || lower == "trailer"):
		return fmt.Errorf("the attribute %q, which net/http takes out of the header: no request has it", name)
	case word+":" == attrHeader && !slices.ContainsFunc(wellKnownFields, func(f string) bool { return strings.EqualFold(f, rest) }):
		for _, f := range wellKnownFields {
			if reaches(lower, strings.ToLower(f), 1) {
				return fmt.Errorf("the attribute %q; %q, maybe", name, attrHeader+f)
			}
		}
	case word == name:
	case word == attrPath || word == attrRoute:
		return fmt.Errorf("the attribute %q: no request has it, as the wildcards of a route are no attributes. Write %q for a budget of each path, %q for the wildcard {%s} of the rule's own routes, or an attribute that the program supplies and the field attributes declares",
			name, attrPath, attrWildcard+rest, rest)
	case word == attrIP:
		return fmt.Errorf("the attribute %q: no request has it. Write \"ip\", or \"ip/24\" for networks of 24 bits", name)
	case word == attrMethod || word == attrHost:
		return fmt.Errorf("the attribute %q: no request has it; %q, maybe", name, word)
	}
	return nil
}

// looksLike returns the attribute of [HTTP] similar to a name, or "" if there is none.
func looksLike(name string) string {
	lower := strings.ToLower(name)
	for _, own := range []string{attrMethod, attrHost, attrPath, attrRoute, attrIP} {
		if lower == own || lower == own+"s" || len(own) > 4 && alike(lower, own, 1) {
			return own
		}
	}
	for own, likes := range map[string][]string{
		attrIP:     {"client_ip", "clientip", "ip_address", "ipaddress", "ipaddr", "remote_addr", "remote_ip", "remoteaddr", "remoteip", "binary_remote_addr"},
		attrMethod: {"verb", "http_method", "request_method"},
		attrPath:   {"uri", "url", "request_path", "request_uri", "url_path"},
		attrHost:   {"hostname", "http_host", "authority"},
	} {
		if slices.Contains(likes, lower) {
			return own
		}
	}
	word := lower[:strings.IndexAny(lower+":", ":.")]
	if len(word) == len(lower) {
		return ""
	}
	for own, likes := range map[string][]string{
		attrHeader: {"header", "headers", "field", "fields"},
		attrQuery:  {"query", "queries", "param", "params", "parameter", "arg", "args"},
		attrCookie: {"cookie", "cookies"},
	} {
		if slices.Contains(likes, word) || len(word) > 4 && alike(word, likes[0], 1) {
			return own + name[len(word)+1:]
		}
	}
	return ""
}

// addressFields are the header fields in which proxies send the client's address.
var addressFields = []string{
	"cf-connecting-ip", "cf-connecting-ipv6", "client-ip", "fastly-client-ip", "fly-client-ip", "forwarded", "true-client-ip", "x-appengine-user-ip",
	"x-azure-clientip", "x-azure-socketip", "x-client-ip", "x-cluster-client-ip", "x-envoy-external-address", "x-forwarded", "x-forwarded-for",
	"x-original-forwarded-for", "x-real-ip",
}

// addressesInHeaders reports keys with addresses in header fields, because rules do not cut these to their networks.
func (r *Rule) addressesInHeaders(report reporter) {
	for j, name := range r.Key {
		if field, ok := strings.CutPrefix(name, attrHeader); ok && slices.Contains(addressFields, strings.ToLower(field)) {
			report(fmt.Sprintf("key[%d]", j), fmt.Errorf("%q holds an address that a client may write itself, and that is not cut: one with an IPv6 /64 has 2^64 budgets. "+
				`Use the key "ip", and give policy.HTTP the attribute ip by httplimit.ClientIP`, name))
		}
	}
}

// exempted warns if a rule with Allow or Instead matches by values that clients choose themselves.
func (r *Rule) exempted(report reporter) {
	does := "passes all"
	switch {
	case r.Disabled || !r.Allow && len(r.Instead) == 0:
		return
	case !r.Allow:
		does = "replaces other rules"
	}
	warn := func(field, name string) {
		if writtenByClient(name) {
			report(field, fmt.Errorf("a client writes %q itself, and the rule %s: any client can exempt itself. Use an attribute of the program, which has verified the client", name, does))
		}
	}
	r.Match.eachCondition(func(field, attribute string, _ match.Kind, _ []string) { warn(field, attribute) })
	for j, name := range r.Match.Absent {
		warn(fmt.Sprintf("match.absent[%d]", j), name)
	}
	if r.Allow {
		return
	}
	for j, name := range r.Key {
		if writtenByClient(name) {
			report(fmt.Sprintf("key[%d]", j), fmt.Errorf("a client writes %q itself, and the rule replaces other rules: any client can have a new budget for each value that it invents. "+
				"Use an attribute of the program, which has verified the client", name))
		}
	}
	if r.Optional {
		warn("cost", r.Cost.Attribute)
	}
}

// neverCome reports single addresses never supplied as the ip by [HTTP] and httplimit.ClientIP.
func (r *Rule) neverCome(named lists, report reporter) {
	check := func(field, v string) {
		if err := uncommonIP(v); err != nil {
			report(field, err)
		}
	}
	uncommon := func(v string, _ bool) error { return uncommonIP(v) }
	named.eachChecked("match.attributes.ip", r.Match.Attributes[attrIP], report, uncommon)
	named.eachChecked("match.not.ip", r.Match.Not[attrIP], report, uncommon)
	for k, name := range r.Key {
		attribute, c := ipBits(name)
		if attribute != attrIP {
			continue
		}
		for j, o := range r.Overrides {
			field := fmt.Sprintf("overrides[%d]", j)
			if _, err := netip.ParsePrefix(match.Client(o.Key[k])); err == nil && c == (cut{}) {
				report(field, errors.New("a network, and the key is a single ip: no request has it"))
			}
			check(field, o.Key[k])
		}
	}
}

// uncommonIP returns an error if a text only looks like an address. The error does not contain the text: it may be a key.
func uncommonIP(v string) error {
	addr, err := netip.ParseAddr(v)
	network, notOne := netip.ParsePrefix(v)
	switch addr = addr.Unmap(); {
	case v == "":
	case notOne == nil && network.Addr().Is6() && network.Bits() > 64 && network.Addr() != netip.PrefixFrom(network.Addr(), 64).Masked().Addr():
		return errors.New("an IPv6 network that is smaller than a /64 and not at its beginning: the addresses of requests are cut to their /64, and none is in it")
	case err != nil && strings.Trim(v, "0123456789.") == "", err != nil && strings.Contains(v, ":") && strings.Trim(v, "0123456789abcdefABCDEF:.") == "":
		return errors.New("an ip that looks like an address and is none: no request has it")
	case addr.Is6() && addr != netip.PrefixFrom(addr, 64).Masked().Addr():
		return errors.New("an IPv6 address that is not cut to its /64, as the addresses of requests are: write the first address of the /64")
	}
	return nil
}

// neverPasses reports limits below a rule's fixed cost.
func (r *Rule) neverPasses(report reporter) {
	if r.Disabled || r.Allow {
		return
	}
	least := 0 // the lowest cost, if all costs are fixed
	r.eachCost(func(field string, c Cost) {
		if field == "cost" || c.Number == 0 || c.Number < least {
			least = c.Number
		}
		if c.Number > 0 && r.Limit.Algorithm != ratelimit.AlgorithmBlocked && c.Number > r.Limit.Capacity() {
			report(field, fmt.Errorf("the rule's cost of %d is above %d, the capacity of %v: no request can ever pass", c.Number, r.Limit.Capacity(), r.Limit))
		}
	})
	check := func(field string, l ratelimit.Limit) {
		if l.Algorithm != ratelimit.AlgorithmBlocked && least > l.Capacity() {
			report(field, fmt.Errorf("the rule's cost of %d is above %d, the capacity of %v: no request can ever pass", least, l.Capacity(), l))
		}
	}
	for _, plan := range slices.Sorted(maps.Keys(r.Plans)) {
		check("plans."+plan, r.Plans[plan])
	}
	for j, o := range r.Overrides {
		if o.Share == 0 {
			check(fmt.Sprintf("overrides[%d]", j), o.Limit)
		}
	}
}

// eachCost calls f for the rule's cost, even if it is the caller's, and for each of its Costs.
func (r *Rule) eachCost(f func(field string, c Cost)) {
	f("cost", r.Cost)
	for j := range r.Costs {
		f(fmt.Sprintf("costs[%d].cost", j), r.Costs[j])
	}
}
