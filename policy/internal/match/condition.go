package match

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-go/ratelimit/internal/clientaddr"
	"github.com/weir-go/ratelimit/keyfunc"
)

// Condition is a rule's condition on one attribute. Make one with [NewCondition].
type Condition struct {
	name     string
	kind     Kind
	values   []string // the values, except networks
	set      map[string]bool
	networks networks // of "ip"

	wildcards *Wildcards // the wildcards' patterns, if the condition is on a wildcard; otherwise nil
	wildcard  string     // the wildcard's name
}

// Of returns the same condition on a wildcard in some patterns, instead of an attribute.
func (c Condition) Of(w *Wildcards, wildcard string) Condition {
	c.wildcards, c.wildcard = w, wildcard
	return c
}

// Kind is how a condition compares values.
type Kind uint8

// The kinds of conditions. If the attribute is "ip", a network among the values of OneOf and NoneOf
// stands for its addresses. The spelling of an address or a host does not matter: see [Spelt].
const (
	OneOf      Kind = iota // the value is one of the given values
	NoneOf                 // the value is none of them, or the request lacks the attribute
	BeginsWith             // the value begins with one of them
	EndsWith               // the value ends with one of them
	Absent                 // the request lacks the attribute, or it is empty
	NoneBegin              // the value begins with none of them, or the request lacks the attribute
	NoneEnd                // the value ends with none of them, or the request lacks the attribute
)

// fewValues is the maximum number of values to compare one by one.
const fewValues = 8

// NewCondition returns a condition on a named attribute. For [Absent] there must be no values.
func NewCondition(kind Kind, name string, values []string) Condition {
	c := Condition{name: name, kind: kind}
	single := kind == OneOf || kind == NoneOf
	var found []netip.Prefix
	for _, v := range values {
		if network, err := netip.ParsePrefix(v); err == nil && single && name == attrIP {
			found = append(found, network)
		} else if single || name == attrHost {
			c.values = append(c.values, Spelt(name, v))
		} else if name == attrPath {
			c.values = append(c.values, unescape(v)) // cleaning would change a part of a path
		} else {
			c.values = append(c.values, v)
		}
	}
	c.networks = newNetworks(found)
	if len(c.values) > fewValues && single {
		c.set = make(map[string]bool, len(c.values))
		for _, v := range c.values {
			c.set[v] = true
		}
	}
	return c
}

// mostEntries is the maximum number of index entries for one condition.
const mostEntries = 1 << 20

// exact reports whether the index can look the condition's values up, if the rule has the given number of places.
func (c *Condition) exact(places int) bool {
	return c.kind == OneOf && len(c.networks) == 0 && c.wildcards == nil && len(c.values)*max(1, places) <= mostEntries
}

// holdsOfWildcard is holds for a condition on a wildcard. If a path can be read in several ways, the
// wildcard may have several texts. If all is true, each text must meet the condition; otherwise one must.
func (c *Condition) holdsOfWildcard(r Request, all bool) bool {
	found, holds := false, all
	c.wildcards.values(r, c.wildcard, func(v string) bool {
		found = true
		holds = c.holdsOf(v, true)
		return holds == all
	})
	if !found {
		return c.holdsOf("", false)
	}
	return holds
}

// holds reports whether a request meets the condition.
func (c *Condition) holds(r Request) bool {
	v, ok := r.Attribute(c.name)
	if c.kind == OneOf || c.kind == NoneOf || c.name != attrIP { // parts of addresses are compared as written
		v = Spelt(c.name, v)
	}
	return c.holdsOf(v, ok)
}

// holdsUncleaned is holds for a server that decodes paths but does not clean them.
func (c *Condition) holdsUncleaned(r Request) bool {
	v, ok := r.Attribute(c.name)
	return c.holdsOf(unescape(v), ok)
}

// holdsOf is holds for a value in the spelling for comparisons.
func (c *Condition) holdsOf(v string, ok bool) bool {
	switch c.kind {
	case OneOf:
		return ok && c.among(v)
	case NoneOf:
		return !ok || !c.among(v)
	case Absent:
		return !ok || v == ""
	case BeginsWith:
		return ok && slices.ContainsFunc(c.values, func(part string) bool { return strings.HasPrefix(v, part) })
	case EndsWith:
		return ok && slices.ContainsFunc(c.values, func(part string) bool { return strings.HasSuffix(v, part) })
	case NoneBegin:
		return !ok || !slices.ContainsFunc(c.values, func(part string) bool { return strings.HasPrefix(v, part) })
	}
	return !ok || !slices.ContainsFunc(c.values, func(part string) bool { return strings.HasSuffix(v, part) })
}

// Spelt returns an attribute's value in the spelling for comparisons: a host in lower case, a path decoded and cleaned.
func Spelt(attribute, v string) string {
	switch attribute {
	case attrHost:
		return strings.ToLower(v)
	case attrIP:
		return address(v)
	case attrPath:
		return plainPath(v)
	}
	return v
}

// address returns an address in the spelling for comparisons. An IPv4 address in IPv6 becomes the
// IPv4 address, and zones, ports and brackets are removed. Any other text is returned unchanged.
func address(v string) string {
	if !strings.ContainsAny(v, ": ") {
		return v // IPv4 has only one spelling
	}
	if addr := clientaddr.Parse(strings.TrimSpace(v)); addr.IsValid() {
		return textOf(addr, v)
	}
	return v
}

// textOf returns an address's text. If the text equals v, as in most cases, textOf allocates nothing.
func textOf(addr netip.Addr, v string) string {
	var memory [64]byte
	if text := addr.AppendTo(memory[:0]); string(text) != v {
		return string(text)
	}
	return v
}

// Client returns the client that a program's ip stands for, in one spelling. It cuts
// an IPv6 address to its /64, as [httplimit.RemoteIP] does. For one client's network,
// for example a /64, it returns this client. Any other text is returned unchanged.
func Client(v string) string {
	if !strings.ContainsAny(v, ":/ ") {
		return v
	}
	text := strings.TrimSpace(v)
	addr := clientaddr.Parse(text)
	if network, err := netip.ParsePrefix(text); err == nil && network.Bits() >= clientBits(network.Addr()) {
		addr = network.Addr()
	}
	if client, err := keyfunc.Network(addr, 0); err == nil {
		return textOf(client, v)
	}
	return v
}

// clientBits returns how many bits a network must have at least to be one client's.
func clientBits(addr netip.Addr) int {
	if addr.Is4() {
		return 32
	}
	return 64
}

// among reports whether v, in the spelling for comparisons, is one of the values or
// in one of the networks. An address is also among them if its client is: requests'
// addresses are cut to their /64, so rules name a client by its /64's first address.
func (c *Condition) among(v string) bool {
	if c.has(v) {
		return true
	}
	if c.name != attrIP {
		return false
	}
	client := Client(v)
	return client != v && c.has(client)
}

func (c *Condition) has(v string) bool {
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
	return c.networks.contain(addr.Unmap().WithZone(""))
}
