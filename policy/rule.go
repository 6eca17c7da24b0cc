package policy

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-go/ratelimit"
)

// rule is a [Rule] made ready to be asked.
type rule struct {
	*Rule
	limit      ratelimit.Limit // with the rule's name
	plans      map[string]*ratelimit.Limit
	overrides  map[string]*ratelimit.Limit // by the joined key
	patterns   []pattern
	conditions []condition
}

// condition is an attribute that has to have one of some values.
type condition struct {
	name   string
	values Values
}

// newRule makes a rule ready. It is valid.
func newRule(r *Rule) *rule {
	c := &rule{
		Rule:      r,
		limit:     r.Limit.Named(r.Name),
		plans:     make(map[string]*ratelimit.Limit, len(r.Plans)),
		overrides: make(map[string]*ratelimit.Limit, len(r.Overrides)),
	}
	for plan, limit := range r.Plans {
		named := limit.Named(r.Name)
		c.plans[plan] = &named
	}
	for _, o := range r.Overrides {
		named := o.Limit.Named(r.Name)
		c.overrides[joined(o.Key)] = &named
	}
	for _, route := range r.Match.Route {
		p, err := parsePattern(route)
		if err != nil {
			panic("policy: a rule that has not been validated: " + err.Error())
		}
		c.patterns = append(c.patterns, p)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Match.Attributes)) {
		c.conditions = append(c.conditions, condition{name, r.Match.Attributes[name]})
	}
	return c
}

// others returns the limits of plans and overrides.
func (c *rule) others() (limits []ratelimit.Limit) {
	for _, l := range c.plans {
		limits = append(limits, *l)
	}
	for _, l := range c.overrides {
		limits = append(limits, *l)
	}
	return limits
}

// holds reports whether a request has all attributes that the rule asks for.
func (c *rule) holds(r Request) bool {
	for _, cond := range c.conditions {
		if v, ok := r.Attribute(cond.name); !ok || !slices.Contains(cond.values, v) {
			return false
		}
	}
	return true
}

// charge fills in what the rule asks of a request: which key, how much, and under which
// limit. applies is false if the rule is optional and the request lacks something.
func (c *rule) charge(r Request, cost int, ch *Charge) (applies bool, err error) {
	ch.Key, ch.Plan, err = c.key(r)
	if err == nil {
		ch.Cost, err = c.cost(r, cost)
	}
	if err != nil {
		if missing(err) && c.Optional {
			return false, nil
		}
		return false, fmt.Errorf("rule %q: %w", c.Name, err)
	}
	ch.Limit = c.limitOf(ch.Key, ch.Plan)
	return true, nil
}

// key returns the request's key, and its plan if the rule knows that.
func (c *rule) key(r Request) (key, plan string, err error) {
	switch len(c.Key) {
	case 0:
	case 1:
		key, err = needed(r, c.Key[0])
	default:
		values := make([]string, len(c.Key))
		for i, name := range c.Key {
			if values[i], err = needed(r, name); err != nil {
				return "", "", err
			}
		}
		key = joined(values)
	}
	if len(c.plans) > 0 {
		plan, _ = r.Attribute(AttrPlan)
		if _, ok := c.plans[plan]; !ok {
			plan = ""
		}
	}
	return key, plan, err
}

// limitOf returns the limit of a key on a plan: its override, the plan's, or the rule's.
func (c *rule) limitOf(key, plan string) *ratelimit.Limit {
	if len(c.overrides) > 0 {
		if l, ok := c.overrides[key]; ok {
			return l
		}
	}
	if plan != "" {
		return c.plans[plan]
	}
	return &c.limit
}

// cost returns what the rule charges where the caller's cost is cost.
func (c *rule) cost(r Request, cost int) (int, error) {
	switch {
	case cost == 0 || c.Cost.IsZero():
		return cost, nil
	case c.Cost.Number > 0:
		return c.Cost.Number, nil
	}
	text, err := needed(r, c.Cost.Attribute)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%w: %q is not a whole number of at least 0", ErrMalformed, c.Cost.Attribute)
	}
	return n, nil
}

// needed returns an attribute that the rule cannot do without.
func needed(r Request, name string) (string, error) {
	v, ok := r.Attribute(name)
	switch {
	case !ok || v == "":
		return "", fmt.Errorf("%w: %q", ErrMissing, name)
	case len(v) > maxText:
		return "", fmt.Errorf("%w: %q has %d bytes, want at most %d", ErrMalformed, name, len(v), maxText)
	}
	return v, nil
}

// joined returns one key for several values, such that no two lists of values share one.
// A single value is its own key.
func joined(values []string) string {
	switch len(values) {
	case 0:
		return ""
	case 1:
		return values[0]
	}
	var b strings.Builder
	for _, v := range values {
		b.WriteString(strconv.Itoa(len(v)))
		b.WriteByte(':')
		b.WriteString(v)
	}
	return b.String()
}
