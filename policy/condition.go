package policy

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// condition is what a rule asks of one attribute.
type condition struct {
	name     string
	kind     conditionKind
	values   Values // without networks
	set      map[string]bool
	networks []netip.Prefix // of "ip"
}

type conditionKind uint8

const (
	oneOf conditionKind = iota
	noneOf
	beginsWith
	endsWith
	absent
)

// fewValues is how many values are compared one by one.
const fewValues = 8

// conditionsOf returns what a match asks of attributes. It is valid.
func conditionsOf(m Match) (all []condition) {
	add := func(kind conditionKind, asked map[string]Values) {
		for _, name := range slices.Sorted(maps.Keys(asked)) {
			c := condition{name: name, kind: kind, values: asked[name]}
			if name == AttrIP && (kind == oneOf || kind == noneOf) {
				c.values = nil
				for _, v := range asked[name] {
					if network, err := networkOf(v); err == nil {
						c.networks = append(c.networks, network)
					} else {
						c.values = append(c.values, v)
					}
				}
			}
			if (kind == oneOf || kind == noneOf) && len(c.values) > fewValues {
				c.set = make(map[string]bool, len(c.values))
				for _, v := range c.values {
					c.set[v] = true
				}
			}
			all = append(all, c)
		}
	}
	add(oneOf, m.Attributes)
	add(noneOf, m.Not)
	add(beginsWith, m.Prefix)
	add(endsWith, m.Suffix)
	for _, name := range m.Absent {
		all = append(all, condition{name: name, kind: absent})
	}
	return all
}

// networkOf reads a network of IP addresses.
func networkOf(s string) (netip.Prefix, error) {
	network, err := netip.ParsePrefix(s)
	return network.Masked(), err
}

// exact reports whether a request that holds is found by one of the values: the index looks for them.
func (c *condition) exact() bool { return c.kind == oneOf && len(c.networks) == 0 }

// holds reports whether a request has what the condition asks for.
func (c *condition) holds(r Request) bool {
	v, ok := r.Attribute(c.name)
	switch c.kind {
	case oneOf:
		return ok && c.among(v)
	case noneOf:
		return !ok || !c.among(v)
	case absent:
		return !ok || v == ""
	}
	if !ok {
		return false
	}
	for _, part := range c.values {
		if c.kind == beginsWith && strings.HasPrefix(v, part) || c.kind == endsWith && strings.HasSuffix(v, part) {
			return true
		}
	}
	return false
}

// among reports whether v is one of the values, or in one of the networks.
func (c *condition) among(v string) bool {
	if c.set != nil {
		if c.set[v] {
			return true
		}
	} else if slices.Contains(c.values, v) {
		return true
	}
	if len(c.networks) == 0 {
		return false
	}
	addr, err := netip.ParseAddr(v)
	if err != nil {
		return false
	}
	addr = addr.Unmap().WithZone("")
	for _, network := range c.networks {
		if network.Contains(addr) {
			return true
		}
	}
	return false
}

// cutIP returns an IPv4 address cut to its first bits, as a network. Another address stays as it is.
func cutIP(v string, bits int) (string, bool) {
	addr, err := netip.ParseAddr(v)
	if err != nil {
		return "", false
	}
	if addr = addr.Unmap(); !addr.Is4() {
		return v, true
	}
	network, err := addr.Prefix(bits)
	return network.String(), err == nil
}

// ipBits returns the attribute of a part of a key, and to how many bits an IPv4 address is cut: 0 if it is
// not.
func ipBits(part string) (attribute string, bits int) {
	if rest, ok := strings.CutPrefix(part, AttrIP+"/"); ok {
		if n, err := strconv.Atoi(rest); err == nil && 1 <= n && n <= 32 && rest == strconv.Itoa(n) {
			return AttrIP, n
		}
	}
	return part, 0
}
