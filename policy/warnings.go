package policy

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-go/ratelimit"
)

// warnings returns the parts of a valid set that are surely mistakes.
func (s *Set) warnings() (all []*Error) {
	rules := s.Complete()
	for i := range rules {
		r := &rules[i]
		report := func(field string, err error) {
			if len(all) < maxProblems {
				all = append(all, r.wrong(i, field, err))
			}
		}
		r.neverPasses(report)
		r.neverCome(report)
		r.unsupplied(s, report)
		r.addressesInHeaders(report)
		r.exempted(report)
	}
	return all
}

// supplied is the list of attributes in warnings.
const supplied = "policy.HTTP supplies method, host, path, route, ip, header:NAME, query:NAME and cookie:NAME"

// unsupplied reports attributes that no request has: all that are neither declared in the set nor supplied by [HTTP]; if the
// set declares none, only names that resemble an attribute of HTTP.
func (r *Rule) unsupplied(set *Set, report reporter) {
	seen := map[string]bool{}
	check := func(field, name string) {
		switch {
		case seen[name] || sentByClient(name) || slices.Contains(set.Attributes, name):
			return
		case len(set.Attributes) > 0:
			report(field, fmt.Errorf("the attribute %q is not among the attributes of the set, and %s", name, supplied))
		default:
			meant := looksLike(name)
			if meant == "" {
				return
			}
			report(field, fmt.Errorf("the attribute %q; %q, maybe: %s. Attributes of the program can be declared by the field attributes", name, meant, supplied))
		}
		seen[name] = true
	}
	for _, asked := range []struct {
		field  string
		values map[string]Values
	}{{"attributes", r.Match.Attributes}, {"not", r.Match.Not}, {"prefix", r.Match.Prefix}, {"suffix", r.Match.Suffix}} {
		for _, name := range slices.Sorted(maps.Keys(asked.values)) {
			attribute := name
			if asked.field == "not" {
				_, attribute = splitNot(name)
			}
			check("match."+asked.field+"."+notField(name, attribute), attribute)
		}
	}
	for j, name := range r.Match.Absent {
		check(fmt.Sprintf("match.absent[%d]", j), name)
	}
	for j, name := range r.Key {
		attribute, _ := ipBits(name)
		check(fmt.Sprintf("key[%d]", j), attribute)
	}
	if r.Cost.Attribute != "" {
		check("cost", r.Cost.Attribute)
	}
	if r.LimitFrom != "" {
		check("limit_from", r.LimitFrom)
	}
	if len(r.Plans) > 0 {
		check("plans", attrPlan)
	}
}

// looksLike returns the attribute of [HTTP] that a name looks like, "" if it looks like none.
func looksLike(name string) string {
	lower := strings.ToLower(name)
	for _, own := range []string{attrMethod, attrHost, attrPath, attrRoute, attrIP} {
		if lower == own || lower == own+"s" || len(own) > 4 && alike(lower, own, 1) {
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

// addressFields are the header fields in which proxies pass on the client's address.
var addressFields = []string{
	"cf-connecting-ip", "cf-connecting-ipv6", "client-ip", "fastly-client-ip", "fly-client-ip", "forwarded", "true-client-ip", "x-appengine-user-ip",
	"x-azure-clientip", "x-azure-socketip", "x-client-ip", "x-cluster-client-ip", "x-envoy-external-address", "x-forwarded", "x-forwarded-for",
	"x-original-forwarded-for", "x-real-ip",
}

// addressesInHeaders reports keys of header fields with an address, which no rule cuts to its network.
func (r *Rule) addressesInHeaders(report reporter) {
	for j, name := range r.Key {
		if field, ok := strings.CutPrefix(name, attrHeader); ok && slices.Contains(addressFields, strings.ToLower(field)) {
			report(fmt.Sprintf("key[%d]", j), fmt.Errorf("%q holds an address that a client may write itself, and that is not cut: one with an IPv6 /64 has 2^64 budgets. "+
				`Use the key "ip", and give policy.HTTP the attribute ip by httplimit.ClientIP or httplimit.HeaderIP`, name))
		}
	}
}

// exempted reports the conditions by which clients exempt themselves: those of a rule with Allow or Instead on what they write.
func (r *Rule) exempted(report reporter) {
	does := "passes all"
	switch {
	case r.Disabled || !r.Allow && len(r.Instead) == 0:
		return
	case !r.Allow:
		does = "replaces other rules"
	}
	warn := func(field, name string) {
		if strings.HasPrefix(name, attrHeader) || strings.HasPrefix(name, attrQuery) || strings.HasPrefix(name, attrCookie) {
			report(field, fmt.Errorf("a client writes %q itself, and the rule %s: any client can exempt itself. Use an attribute of the program, which has verified the client", name, does))
		}
	}
	for _, asked := range []struct {
		field  string
		values map[string]Values
	}{{"attributes", r.Match.Attributes}, {"not", r.Match.Not}, {"prefix", r.Match.Prefix}, {"suffix", r.Match.Suffix}} {
		for _, name := range slices.Sorted(maps.Keys(asked.values)) {
			attribute := name
			if asked.field == "not" {
				_, attribute = splitNot(name)
			}
			warn("match."+asked.field+"."+notField(name, attribute), attribute)
		}
	}
	for j, name := range r.Match.Absent {
		warn(fmt.Sprintf("match.absent[%d]", j), name)
	}
}

// neverCome reports single addresses that never occur as the ip of [HTTP] or of httplimit.ClientIP.
func (r *Rule) neverCome(report reporter) {
	check := func(field, v string) {
		if err := uncommonIP(v); err != nil {
			report(field, err)
		}
	}
	for j, v := range r.Match.Attributes[attrIP] {
		check(fmt.Sprintf("match.attributes.ip[%d]", j), v)
	}
	for j, v := range r.Match.Not[attrIP] {
		check(fmt.Sprintf("match.not.ip[%d]", j), v)
	}
	for k, name := range r.Key {
		attribute, c := ipBits(name)
		if attribute != attrIP {
			continue
		}
		for j, o := range r.Overrides {
			field := fmt.Sprintf("overrides[%d]", j)
			if _, err := netip.ParsePrefix(o.Key[k]); err == nil && c == (cut{}) {
				report(field, errors.New("a network, and the key is a single ip: no request has it"))
			}
			check(field, o.Key[k])
		}
	}
}

// uncommonIP returns an error if a text only looks like an address. The error does not hold the text: it may be a key.
func uncommonIP(v string) error {
	addr, err := netip.ParseAddr(v)
	switch addr = addr.Unmap(); {
	case v == "":
	case err != nil && strings.Trim(v, "0123456789.") == "", err != nil && strings.Contains(v, ":") && strings.Trim(v, "0123456789abcdefABCDEF:.") == "":
		return errors.New("an ip that looks like an address and is none: no request has it")
	case addr.Is6() && addr != netip.PrefixFrom(addr, 64).Masked().Addr():
		return errors.New("an IPv6 address that is not cut to its /64, as the addresses of requests are: write the first address of the /64")
	}
	return nil
}

// neverPasses reports the limits under which a rule's fixed cost can never pass.
func (r *Rule) neverPasses(report reporter) {
	if r.Disabled || r.Allow || r.Cost.Number == 0 {
		return
	}
	check := func(field string, l ratelimit.Limit) {
		if l.Algorithm != ratelimit.AlgorithmBlocked && r.Cost.Number > l.Capacity() {
			report(field, fmt.Errorf("the rule's cost of %d is above %d, the capacity of %v: no request can ever pass", r.Cost.Number, l.Capacity(), l))
		}
	}
	check("cost", r.Limit)
	for _, plan := range slices.Sorted(maps.Keys(r.Plans)) {
		check("plans."+plan, r.Plans[plan])
	}
	for j, o := range r.Overrides {
		check(fmt.Sprintf("overrides[%d]", j), o.Limit)
	}
}
