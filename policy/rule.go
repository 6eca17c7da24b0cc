package policy

import (
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/keyfunc"
	"github.com/weir-go/ratelimit/policy/internal/joined"
	"github.com/weir-go/ratelimit/policy/internal/match"
)

// rule is a [Rule], prepared for decisions.
type rule struct {
	*Rule
	lists     lists                                 // of the set
	id        string                                // of the budget
	limit     ratelimit.Limit                       // with the rule's name; this and the others are those by which it denies: see Grace
	whole     ratelimit.Limit                       // the file's: more than limit in a stand-in that enforces a share of it
	part      func(ratelimit.Limit) ratelimit.Limit // the share of a limit in such a stand-in, else nil
	plans     map[string]*ratelimit.Limit
	overrides map[string][]override      // by the joined key
	wall      func() time.Time           // the time of From and Until
	planOf    map[ratelimit.Limit]string // the plan of a limit, also of limits that plans had in earlier sets
	match     match.Rule                 // which requests it is for

	pool    *pool          // that its keys share, nil without Share
	weights map[string]int // of single keys in it

	thresholds []int                       // the percentages of Notify, in order
	given      *limitCache                 // of LimitFrom, nil without
	countable  func(ratelimit.Limit) error // the engine's check of a limit
	badLimits  *atomic.Uint64

	unknownPlans *atomic.Uint64 // nil without plans and shares

	parts   []needed // the attributes of its key
	plain   bool     // the key is one attribute, and whole
	base    costing  // its cost, where no price matches
	prices  *prices  // its costs of some requests, nil without
	actual  needed   // the attribute that holds its real cost
	ownCost bool     // it has a cost of its own, for some requests at least
	varies  bool     // some keys have another limit
	moved   bool     // earlier sets had another limit
	grace   int      // in percent
	dated   bool     // it is in force for a time
}

// needed is an attribute that a rule cannot do without.
type needed struct {
	attribute string
	cut       cut              // how an address is cut
	hash      bool             // a hash stands for the value, which may be a secret
	wildcards *match.Wildcards // of the rule's routes, if it is one of these, else nil
	missing   error            // the error of a request that lacks it, made beforehand: an optional rule needs it often
	malformed error            // the kind of the error about a value of a wrong form
}

func need(attribute string, c cut) needed {
	return needed{attribute, c, isSecret(attribute), nil, &requestError{keyfunc.ErrNoKey, fmt.Sprintf("the request has no %q", attribute)}, keyfunc.ErrMalformedKey}
}

// needCost is need for a cost. A wrong one is the server's fault, unless the client has sent it.
func needCost(attribute string) needed {
	n := need(attribute, cut{})
	n.hash = false
	if !sentByClient(attribute) {
		n.malformed = keyfunc.ErrMisconfigured
	}
	return n
}

// wrong returns the error about a value of a wrong form.
func (n *needed) wrong(format string, args ...any) error {
	return &requestError{n.malformed, fmt.Sprintf("%q "+format, append([]any{n.attribute}, args...)...)}
}

// newRule makes a rule ready. It is valid.
func newRule(r *Rule, named lists) *rule {
	c := &rule{
		Rule:      r,
		lists:     named,
		id:        strings.ToLower(r.budgets()),
		limit:     r.Limit.Named(r.Name),
		plans:     make(map[string]*ratelimit.Limit, len(r.Plans)),
		overrides: make(map[string][]override, len(r.Overrides)),
		wall:      time.Now,
		base:      costingOf(r.Cost),
		dated:     !r.span().always(),
		ownCost:   r.Cost.own() || len(r.Costs) > 0,
		varies:    len(r.Plans)+len(r.Overrides) > 0 || r.LimitFrom != "",
	}
	if r.Grace != "" {
		c.grace, _ = percentOf(r.Grace)
	}
	c.limit = c.enforced(c.limit)
	if r.LimitFrom != "" {
		c.given = newLimitCache()
	}
	if r.Allow {
		c.limit = ratelimit.Unlimited().Named(r.Name)
	}
	routes := patternsOf(named.of(r.Match.Route))
	for _, name := range r.Key {
		attribute, cut := ipBits(name)
		c.parts = append(c.parts, need(attribute, cut).of(routes))
	}
	c.base.weight = c.base.weight.of(routes)
	c.prices = pricesOf(r, named, routes)
	c.plain = len(c.parts) == 1 && c.parts[0].cut == (cut{})
	if r.Actual != "" {
		c.actual = needCost(r.Actual)
	}
	for plan, limit := range r.Plans {
		named := c.enforced(limit.Named(r.Name))
		c.plans[plan] = &named
	}
	c.addOverrides()
	c.thresholds = thresholdsOf(r)
	c.match = matchOf(r, named, routes)
	c.whole = c.shown(c.limit)
	return c
}

// addOverrides adds the limits and weights of single keys. An address, a host or a path is the same however it is spelt there.
func (c *rule) addOverrides() {
	written := make(map[string]bool, len(c.Overrides))
	for i := range c.Overrides {
		key := joined.Key(c.Overrides[i].Key)
		written[key] = true
		c.addOverride(key, &c.Overrides[i])
	}
	for i := range c.Overrides {
		if key := c.spelt(c.Overrides[i]); !written[key] {
			c.addOverride(key, &c.Overrides[i])
		}
	}
}

func (c *rule) addOverride(key string, o *Override) {
	if o.Share == 0 {
		limit := c.enforced(o.Limit.Named(c.Name))
		c.overrides[key] = append(c.overrides[key], override{&limit, o.span()})
		return
	}
	if c.weights == nil {
		c.weights = map[string]int{}
	}
	if c.weights[key] == 0 {
		c.weights[key] = o.Share
	}
}

// matchOf returns which requests a rule is for. The rule is valid. Routes are those whose wildcards its conditions may be on.
func matchOf(r *Rule, named lists, routes []match.Pattern) match.Rule {
	m := match.Rule{Disabled: r.Disabled, Exempts: r.Allow}
	m.Patterns = patternsOf(named.of(r.Match.Route))
	add := func(kind match.Kind, attribute string, values []string) {
		c := match.NewCondition(kind, attribute, values)
		if name, ok := strings.CutPrefix(attribute, attrWildcard); ok {
			c = c.Of(match.NewWildcards(routes), name)
		}
		m.Conditions = append(m.Conditions, c)
	}
	for _, asked := range []struct {
		kind   match.Kind
		values map[string]Values
	}{{match.OneOf, r.Match.Attributes}, {match.NoneOf, r.Match.Not}, {match.BeginsWith, r.Match.Prefix}, {match.EndsWith, r.Match.Suffix}} {
		for _, name := range slices.Sorted(maps.Keys(asked.values)) {
			kind, attribute := asked.kind, name
			if kind == match.NoneOf {
				kind, attribute = splitNot(name)
			}
			if name == attrRoute && kind == match.NoneOf {
				m.Except = new(match.Tree)
				for _, p := range patternsOf(named.of(asked.values[name])) {
					m.Except.Add(p)
				}
				continue
			}
			add(kind, attribute, named.of(asked.values[name]))
		}
	}
	for _, name := range r.Match.Absent {
		add(match.Absent, name, nil)
	}
	return m
}

// patternsOf reads the patterns of a rule that is valid.
func patternsOf(routes []string) (patterns []match.Pattern) {
	for _, route := range routes {
		p, err := match.ParsePattern(route)
		if err != nil {
			panic("policy: a rule that has not been validated: " + err.Error())
		}
		patterns = append(patterns, p)
	}
	return patterns
}

// spelt returns the key that an override is for, as it is in a request of [HTTP].
func (r *Rule) spelt(o Override) string {
	values := slices.Clone(o.Key)
	for i, name := range r.Key {
		attribute, c := ipBits(name)
		part := need(attribute, c)
		values[i] = part.textOf(match.Spelt(attribute, values[i]))
	}
	return joined.Key(values)
}

// others returns the limits of plans and overrides, always in the same order.
func (c *rule) others() (limits []ratelimit.Limit) {
	for _, plan := range slices.Sorted(maps.Keys(c.plans)) {
		limits = append(limits, *c.plans[plan])
	}
	for _, o := range c.Overrides {
		if o.Share == 0 {
			limits = append(limits, c.enforced(o.Limit.Named(c.Name)))
		}
	}
	return limits
}

// charge fills in the rule's charge for a request: the key, the cost, and the
// limit. All other fields of ch must be zero. It reports false if the rule is optional and
// the request lacks an attribute.
func (c *rule) charge(r Request, cost int, ch *charge) (applies bool, err error) {
	if c.plain {
		ch.Key, err = c.parts[0].in(r)
	} else if len(c.parts) > 0 {
		ch.Key, err = c.key(r)
	}
	if ch.Cost = cost; err == nil && c.ownCost {
		ch.Cost, ch.Fixed, err = c.cost(r, cost)
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
	c.share(r, ch)
	return true, nil
}

// key returns the request's key, of all attributes that it consists of.
func (c *rule) key(r Request) (string, error) {
	values := make([]string, len(c.parts))
	for i := range c.parts {
		part := &c.parts[i]
		v, err := part.in(r)
		if err != nil {
			return "", err
		}
		if part.cut != (cut{}) {
			var ok bool
			if v, ok = part.cut.of(v); !ok {
				return "", part.wrong("is not an IP address")
			}
		}
		values[i] = v
	}
	return joined.Key(values), nil
}

// limitOf returns the limit of a key: from its override, the attribute of LimitFrom, the request's plan, or else the rule; and
// the plan if its limit holds.
func (c *rule) limitOf(r Request, key string) (limit *ratelimit.Limit, plan string) {
	if l := c.overrideOf(key); l != nil {
		return l, ""
	}
	if c.given != nil {
		if text, ok := r.Attribute(c.LimitFrom); ok && text != "" {
			l := c.given.get(text, c.givenLimit)
			if l == nil {
				c.badLimits.Add(1)
				l = &c.limit
			}
			return l, ""
		}
	}
	if len(c.plans) > 0 {
		plan, _ = r.Attribute(attrPlan)
		if l, ok := c.plans[plan]; ok {
			return l, plan
		}
	}
	return &c.limit, ""
}

// countPlan counts the plan of a request if the rule does not know it.
func (c *rule) countPlan(r Request) {
	plan, ok := r.Attribute(attrPlan)
	if !ok || plan == "" {
		return
	}
	_, limit := c.Plans[plan]
	_, share := c.Shares[plan]
	if !limit && !share {
		c.unknownPlans.Add(1)
	}
}

// maxPlanLimits bounds the known limits of one rule's plans, including plans of earlier sets.
const maxPlanLimits = 10_000

// succeeds makes the rule know the limits that its plans had before, by the rule of that name in the last set, if there was one.
func (c *rule) succeeds(last *rule) {
	c.planOf = make(map[ratelimit.Limit]string, len(c.plans))
	if last != nil {
		c.moved = last.moved || last.limit.Named("") != c.limit.Named("")
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

// limitAfter returns the limit of a key whose last decision was under the limit last, and the plan if its limit holds.
func (c *rule) limitAfter(key string, last ratelimit.Limit) (ratelimit.Limit, string) {
	plan, known := "", last.Named("") == c.limit.Named("")
	if !known {
		plan, known = c.planOf[last.Named("")]
	}
	limit, ofPlan := c.limitOf(Subject{Plan: plan}, key)
	if c.given != nil && !known && c.overrideOf(key) == nil {
		return last.Named(c.Name), "" // the limit of its attribute
	}
	return *limit, ofPlan
}

// of returns the attribute as it is in requests for some routes.
func (n needed) of(routes []match.Pattern) needed {
	if strings.HasPrefix(n.attribute, attrWildcard) {
		n.wildcards = match.NewWildcards(routes)
	}
	return n
}

// in returns the attribute of a request.
func (n *needed) in(r Request) (v string, err error) {
	ok := false
	if n.wildcards != nil {
		v, ok = n.wildcards.Value(r, n.attribute[len(attrWildcard):])
	} else {
		v, ok = r.Attribute(n.attribute)
	}
	switch {
	case n.attribute == attrPath:
		v = match.Spelt(attrPath, v)
	case n.attribute == attrIP && n.cut == (cut{}): // else it is cut afterwards
		v = match.Client(v)
	}
	switch {
	case !ok || v == "":
		return "", n.missing
	case n.hash:
		return hashOfSecret(v), nil
	case len(v) > maxText:
		return "", n.wrong("has %d bytes, want at most %d", len(v), maxText)
	}
	return v, nil
}

// hashOfSecret returns the text that stands for a value in a key.
func hashOfSecret(v string) string {
	h := keyfunc.HashOf(v)
	return hex.EncodeToString(h[:])
}

// textOf returns a value of a key, as a person writes it, as it is in the keys of requests. A value that looks like a hash is
// taken for the hash in a listed key.
func (n *needed) textOf(v string) string {
	if n.cut != (cut{}) {
		if network, err := netip.ParsePrefix(v); err == nil {
			return network.String()
		}
		if network, ok := n.cut.of(v); ok {
			return network
		}
	}
	if n.attribute == attrIP && n.cut == (cut{}) {
		return match.Client(v)
	}
	if n.hash && (len(v) != 2*len(keyfunc.Hash{}) || strings.Trim(v, "0123456789abcdef") != "") {
		return hashOfSecret(v)
	}
	return v
}

// ValuesOf returns the values of a key from its text, as found in [Denials] and a [Decision]: one for each attribute of the
// rule's Key, or fewer if the text is no such key.
func ValuesOf(key string, attributes int) []string { return joined.Values(key, attributes) }
