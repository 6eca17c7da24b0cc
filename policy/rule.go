package policy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/keyfunc"
	"github.com/weir-go/ratelimit/policy/internal/joined"
	"github.com/weir-go/ratelimit/policy/internal/match"
)

// rule is a [Rule] made ready to be asked.
type rule struct {
	*Rule
	id        string          // of the budget
	limit     ratelimit.Limit // with the rule's name
	plans     map[string]*ratelimit.Limit
	overrides map[string]*ratelimit.Limit // by the joined key
	planOf    map[ratelimit.Limit]string  // the plan of a limit, also of limits that plans had in earlier sets
	match     match.Rule                  // which requests it is for

	parts   []needed // the attributes of its key
	plain   bool     // the key is one attribute, and whole
	weight  needed   // the attribute that holds its cost
	ownCost bool     // it has a cost of its own
	varies  bool     // some keys have another limit
}

// needed is an attribute that a rule cannot do without.
type needed struct {
	attribute string
	bits      int   // to which an IPv4 address is cut, 0 if it is not
	missing   error // what to say of a request that lacks it, made beforehand: an optional rule says it often
	malformed error // the kind of the error about a value of a wrong form
}

func need(attribute string, bits int) needed {
	return needed{attribute, bits, &requestError{keyfunc.ErrNoKey, fmt.Sprintf("the request has no %q", attribute)}, keyfunc.ErrMalformedKey}
}

// needCost is need for a cost. A wrong one is the server's fault, unless the client has sent it.
func needCost(attribute string) needed {
	n := need(attribute, 0)
	if !strings.HasPrefix(attribute, attrHeader) {
		n.malformed = keyfunc.ErrMisconfigured
	}
	return n
}

// wrong returns the error about a value of a wrong form.
func (n *needed) wrong(format string, args ...any) error {
	return &requestError{n.malformed, fmt.Sprintf("%q "+format, append([]any{n.attribute}, args...)...)}
}

// newRule makes a rule ready. It is valid.
func newRule(r *Rule) *rule {
	c := &rule{
		Rule:      r,
		id:        Budget{Name: r.Name}.id(),
		limit:     r.Limit.Named(r.Name),
		plans:     make(map[string]*ratelimit.Limit, len(r.Plans)),
		overrides: make(map[string]*ratelimit.Limit, len(r.Overrides)),
		ownCost:   r.Cost.own(),
		varies:    len(r.Plans)+len(r.Overrides) > 0,
	}
	if r.Allow {
		c.limit = ratelimit.Unlimited().Named(r.Name)
	}
	for _, name := range r.Key {
		attribute, bits := ipBits(name)
		c.parts = append(c.parts, need(attribute, bits))
	}
	c.plain = len(c.parts) == 1 && c.parts[0].bits == 0
	if r.Cost.Attribute != "" {
		c.weight = needCost(r.Cost.Attribute)
	}
	for plan, limit := range r.Plans {
		named := limit.Named(r.Name)
		c.plans[plan] = &named
	}
	for _, o := range r.Overrides {
		named := o.Limit.Named(r.Name)
		c.overrides[joined.Key(o.Key)] = &named
	}
	for _, o := range r.Overrides { // an address, a host or a path is the same however it is spelt there
		if key := r.spelt(o); c.overrides[key] == nil {
			c.overrides[key] = c.overrides[joined.Key(o.Key)]
		}
	}
	c.match = matchOf(r)
	return c
}

// matchOf returns which requests a rule is for. The rule is valid.
func matchOf(r *Rule) match.Rule {
	m := match.Rule{Disabled: r.Disabled, Exempts: r.Allow}
	for _, route := range r.Match.Route {
		p, err := match.ParsePattern(route)
		if err != nil {
			panic("policy: a rule that has not been validated: " + err.Error())
		}
		m.Patterns = append(m.Patterns, p)
	}
	for _, asked := range []struct {
		kind   match.Kind
		values map[string]Values
	}{{match.OneOf, r.Match.Attributes}, {match.NoneOf, r.Match.Not}, {match.BeginsWith, r.Match.Prefix}, {match.EndsWith, r.Match.Suffix}} {
		for _, name := range slices.Sorted(maps.Keys(asked.values)) {
			m.Conditions = append(m.Conditions, match.NewCondition(asked.kind, name, asked.values[name]))
		}
	}
	for _, name := range r.Match.Absent {
		m.Conditions = append(m.Conditions, match.NewCondition(match.Absent, name, nil))
	}
	return m
}

// spelt returns the key that an override is for, as it is in a request of [HTTP].
func (r *Rule) spelt(o Override) string {
	values := slices.Clone(o.Key)
	for i, name := range r.Key {
		attribute, _ := ipBits(name)
		values[i] = match.Spelt(attribute, values[i])
	}
	return joined.Key(values)
}

// others returns the limits of plans and overrides, always in the same order.
func (c *rule) others() (limits []ratelimit.Limit) {
	for _, plan := range slices.Sorted(maps.Keys(c.plans)) {
		limits = append(limits, *c.plans[plan])
	}
	for _, o := range c.Overrides {
		limits = append(limits, *c.overrides[joined.Key(o.Key)])
	}
	return limits
}

// charge fills in what the rule asks of a request: which key, how much, and under which
// limit. All other fields of ch must be zero. It reports false if the rule is optional and
// the request lacks an attribute.
func (c *rule) charge(r Request, cost int, ch *Charge) (applies bool, err error) {
	if c.plain {
		ch.Key, err = c.parts[0].of(r)
	} else if len(c.parts) > 0 {
		ch.Key, err = c.key(r)
	}
	if ch.Cost = cost; err == nil && c.ownCost {
		ch.Cost, err = c.cost(r, cost)
	}
	if err != nil {
		if missing(err) && c.Optional {
			return false, nil
		}
		return false, fmt.Errorf("policy: rule %q: %w", c.Name, err)
	}
	if ch.Limit = &c.limit; c.varies {
		ch.Limit, ch.Plan = c.limitOf(r, ch.Key)
	}
	return true, nil
}

// key returns the request's key, of all attributes that it consists of.
func (c *rule) key(r Request) (string, error) {
	values := make([]string, len(c.parts))
	for i := range c.parts {
		part := &c.parts[i]
		v, err := part.of(r)
		if err != nil {
			return "", err
		}
		if part.bits > 0 {
			var ok bool
			if v, ok = cutIP(v, part.bits); !ok {
				return "", part.wrong("is not an IP address")
			}
		}
		values[i] = v
	}
	return joined.Key(values), nil
}

// limitOf returns the limit of a key: its override, that of the request's plan, or the rule's;
// and the plan if its limit holds.
func (c *rule) limitOf(r Request, key string) (limit *ratelimit.Limit, plan string) {
	if l, ok := c.overrides[key]; ok {
		return l, ""
	}
	if len(c.plans) > 0 {
		plan, _ = r.Attribute(attrPlan)
		if l, ok := c.plans[plan]; ok {
			return l, plan
		}
	}
	return &c.limit, ""
}

// maxPlanLimits bounds the limits of plans that are known of one rule, with those of earlier sets.
const maxPlanLimits = 10_000

// succeeds makes the rule know the limits that its plans had before, by the rule of that name in the last set, if there was one.
func (c *rule) succeeds(last *rule) {
	c.planOf = make(map[ratelimit.Limit]string, len(c.plans))
	if last != nil {
		for limit, plan := range last.planOf {
			if len(c.planOf) < maxPlanLimits {
				c.planOf[limit] = plan
			}
		}
	}
	for plan, limit := range c.plans {
		c.planOf[limit.Named("")] = plan
	}
}

// limitAfter returns the limit of a key whose last decision was under the limit last.
func (c *rule) limitAfter(key string, last ratelimit.Limit) ratelimit.Limit {
	plan := ""
	if last.Named("") != c.Limit.Named("") {
		plan = c.planOf[last.Named("")]
	}
	limit, _ := c.limitOf(Subject{Plan: plan}, key)
	return *limit
}

// cost returns what the rule charges where the caller's cost is cost. The rule has a cost of
// its own.
func (c *rule) cost(r Request, cost int) (int, error) {
	switch {
	case cost == 0:
		return 0, nil
	case c.Cost.Number > 0:
		return c.Cost.Number, nil
	}
	text, err := c.weight.of(r)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0, c.weight.wrong("is not a whole number of at least 0")
	}
	return n, nil
}

// of returns the attribute of a request.
func (n *needed) of(r Request) (string, error) {
	v, ok := r.Attribute(n.attribute)
	if n.attribute == attrPath {
		v = match.Spelt(attrPath, v)
	}
	switch {
	case !ok || v == "":
		return "", n.missing
	case len(v) > maxText:
		return "", n.wrong("has %d bytes, want at most %d", len(v), maxText)
	}
	return v, nil
}

// ValuesOf returns the values in a key's text, as [Denials] and a [Decision] have it: one for each attribute of the
// rule's Key, or fewer if it is no such key.
func ValuesOf(key string, attributes int) []string { return joined.Values(key, attributes) }

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
	if rest, ok := strings.CutPrefix(part, attrIP+"/"); ok {
		if n, err := strconv.Atoi(rest); err == nil && 1 <= n && n <= 32 && rest == strconv.Itoa(n) {
			return attrIP, n
		}
	}
	return part, 0
}
