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

// warnings returns what is valid in a set and surely a mistake.
func (p *parser) warnings(set *Set) (all []*Error) {
	rules := set.Complete()
	for i := range rules {
		r := &rules[i]
		report := func(field string, err error) {
			if len(all) < maxProblems {
				all = append(all, p.located(r.wrong(i, field, err)))
			}
		}
		r.neverPasses(report)
		r.neverCome(report)
	}
	return all
}

// neverCome reports single addresses that no request has whose ip is that of [HTTP] or of httplimit.ClientIP.
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
		attribute, bits := ipBits(name)
		if attribute != attrIP {
			continue
		}
		for j, o := range r.Overrides {
			field := fmt.Sprintf("overrides[%d]", j)
			if _, err := netip.ParsePrefix(o.Key[k]); err == nil && bits == 0 {
				report(field, errors.New("a network, and the key is a single ip: no request has it"))
			}
			check(field, o.Key[k])
		}
	}
}

// uncommonIP returns what is wrong with text that looks like an address. The error does not tell it: it may be a key.
func uncommonIP(v string) error {
	addr, err := netip.ParseAddr(v)
	switch addr = addr.Unmap(); {
	case v == "":
	case err != nil && strings.Trim(v, "0123456789.") == "", err != nil && strings.Contains(v, ":") && strings.Trim(v, "0123456789abcdefABCDEF:.") == "":
		return errors.New("an ip that looks like an address and is none: no request has it")
	case addr.Is6() && addr != netip.PrefixFrom(addr, 64).Masked().Addr():
		return errors.New("an IPv6 address that is not cut to its /64, as those of requests are: write the first address of the /64")
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
