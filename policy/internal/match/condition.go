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
	values   []string // without networks
	set      map[string]bool
	networks networks // of "ip"

	wildcards *Wildcards // if it is on one of these, else nil
	wildcard  string     // the name of it
}

// Of returns the condition on a wildcard of some patterns, in place of an attribute.
func (c Condition) Of(w *Wildcards, wildcard string) Condition {
	c.wildcards, c.wildcard = w, wildcard
	return c
}

// Kind is the way in which a value is compared.
type Kind uint8

// The kinds of conditions. If the attribute is "ip", a network among the values of OneOf and NoneOf stands for
// the addresses in it. An address and a host are the same however they are spelt: see [Spelt].
const (
	OneOf      Kind = iota // the value is one of the given values
	NoneOf                 // it is none of them, or the request does not have the attribute
	BeginsWith             // it begins with one of them
	EndsWith               // it ends with one of them
	Absent                 // the request does not have the attribute, or it is empty
	NoneBegin              // it begins with none of them, or the request does not have the attribute
	NoneEnd                // it ends with none of them, or the request does not have the attribute
)

// fewValues is how many values are compared one by one.
const fewValues = 8

// NewCondition returns a condition on a named attribute. [Absent] takes no values.
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
			c.values = append(c.values, unescape(v)) // a part of a path cannot be cleaned
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

// mostEntries is the maximum number of entries that one condition has in the index.
const mostEntries = 1 << 20

// exact reports whether a request that holds is found by one of the values, in each of so many places: the index looks for them.
func (c *Condition) exact(places int) bool {
	return c.kind == OneOf && len(c.networks) == 0 && c.wildcards == nil && len(c.values)*max(1, places) <= mostEntries
}

// holdsOfWildcard is holds for a condition on a wildcard. A path that can be read in several ways may give the wildcard
// several texts. If all, the condition must hold for each of them, and otherwise for one.
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
	if c.kind == OneOf || c.kind == NoneOf || c.name != attrIP { // parts of addresses are compared as they are written
		v = Spelt(c.name, v)
	}
	return c.holdsOf(v, ok)
}

// holdsUncleaned is holds for the path as a server sees it that decodes paths and does not clean them.
func (c *Condition) holdsUncleaned(r Request) bool {
	v, ok := r.Attribute(c.name)
	return c.holdsOf(unescape(v), ok)
}

// holdsOf is holds for the value of a request, in the spelling that others are compared by.
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

// Spelt returns the one spelling of an attribute's value that others are compared by. Hosts are in lower case, and paths
// are decoded and cleaned.
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

// address returns the one spelling of an address that others are compared by: an IPv4 address in IPv6 is the IPv4 address, and
// zones, ports and brackets play no part. A text that is no address is returned unchanged.
func address(v string) string {
	if !strings.ContainsAny(v, ": ") {
		return v // IPv4 has one spelling
	}
	if addr := clientaddr.Parse(strings.TrimSpace(v)); addr.IsValid() {
		return textOf(addr, v)
	}
	return v
}

// textOf returns the text of an address. It allocates nothing if that is v, as it mostly is.
func textOf(addr netip.Addr, v string) string {
	var memory [64]byte
	if text := addr.AppendTo(memory[:0]); string(text) != v {
		return string(text)
	}
	return v
}

// Client returns the one spelling of the client that a program's ip belongs to, cut as [httplimit.RemoteIP] cuts the addresses of requests:
// an IPv6 address to its /64. A network of a client, such as a /64, is the client. Another text is returned unchanged.
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

// clientBits returns the least number of bits of a network that is one client's.
func clientBits(addr netip.Addr) int {
	if addr.Is4() {
		return 32
	}
	return 64
}

// among reports whether v, spelt as the values are, is one of them or in one of the networks. An address is, too, if its client is: rules
// name a client by the first address of its /64, as the addresses of requests are cut.
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
