package policy

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy/internal/joined"
	"github.com/weir-go/ratelimit/policy/internal/limits"
	"github.com/weir-go/ratelimit/policy/internal/match"
	"github.com/weir-go/ratelimit/policy/internal/shares"
)

// rule is a [Rule], prepared for decisions.
type rule struct {
	*Rule
	lists     lists                                 // the set's lists
	id        string                                // the budgets' id
	limit     ratelimit.Limit                       // the rule's denying limit, with its name and Grace; the limits below have them, too
	whole     ratelimit.Limit                       // the file's limit; above limit in a stand-in with a share of it
	part      func(ratelimit.Limit) ratelimit.Limit // returns the share of a limit in such a stand-in; otherwise nil
	plans     map[string]*ratelimit.Limit
	overrides map[string][]override      // by the key's joined values
	wall      func() time.Time           // the clock for From and Until
	planOf    map[ratelimit.Limit]string // each limit's plan, including plans' limits in earlier sets
	match     match.Rule                 // selects the rule's requests

	pool  *shares.Pool  // its keys' common limit; nil if Share is 0
	terms *shares.Terms // the weights of the keys under the common limit

	thresholds []int                       // Notify's percentages, in order
	given      *limits.Cache               // LimitFrom's limits; nil if there is none
	countable  func(ratelimit.Limit) error // the engine's check of a limit
	badLimits  *atomic.Uint64

	unknownPlans *atomic.Uint64 // nil if there are no plans and shares

	parts   []needed // its key's attributes
	plain   bool     // whether the key is one uncut attribute
	pricing pricing  // its cost
	actual  needed   // the attribute with its real cost
	ownCost bool     // whether the rule has its own cost, at least for some requests
	varies  bool     // whether some keys have another limit than the rule's
	moved   bool     // whether earlier sets had another limit
	grace   limits.Grace
	dated   bool // whether it is in force only for a time
}

// newRule prepares a valid rule.
func newRule(r *Rule, named lists) *rule {
	c := &rule{
		Rule:      r,
		lists:     named,
		id:        strings.ToLower(r.budgets()),
		limit:     r.Limit.Named(r.Name),
		plans:     make(map[string]*ratelimit.Limit, len(r.Plans)),
		overrides: make(map[string][]override, len(r.Overrides)),
		wall:      time.Now,
		dated:     !r.span().always(),
		ownCost:   r.Cost.own() || len(r.Costs) > 0,
		varies:    len(r.Plans)+len(r.Overrides) > 0 || r.LimitFrom != "",
	}
	if r.Grace != "" {
		percent, _ := percentOf(r.Grace)
		c.grace = limits.Grace(percent)
	}
	c.limit = c.grace.Enforced(c.limit)
	if r.LimitFrom != "" {
		c.given = limits.NewCache()
	}
	if r.Allow {
		c.limit = ratelimit.Unlimited().Named(r.Name)
	}
	routes := patternsOf(named.of(r.Match.Route))
	for _, name := range r.Key {
		attribute, cut := ipBits(name)
		c.parts = append(c.parts, need(attribute, cut).of(routes))
	}
	c.pricing = pricingOf(r, named, routes)
	c.plain = len(c.parts) == 1 && c.parts[0].cut == (cut{})
	if r.Actual != "" {
		c.actual = needCost(r.Actual)
	}
	for plan, limit := range r.Plans {
		named := c.grace.Enforced(limit.Named(r.Name))
		c.plans[plan] = &named
	}
	c.addOverrides()
	c.thresholds = thresholdsOf(r)
	c.match = matchOf(r, named, routes)
	c.whole = c.grace.Shown(c.limit)
	if r.Share > 0 {
		c.terms = &shares.Terms{Limit: c.whole, Keys: c.weights(), Plans: r.Shares, Rest: r.Share}
	}
	return c
}

// eachOverride calls f for each override with its key in the file. If
// requests spell the key differently, it calls f for that spelling, too.
func (r *Rule) eachOverride(f func(key string, o *Override)) {
	written := make(map[string]bool, len(r.Overrides))
	for i := range r.Overrides {
		key := joined.Key(r.Overrides[i].Key)
		written[key] = true
		f(key, &r.Overrides[i])
	}
	for i := range r.Overrides {
		if key := r.spelt(r.Overrides[i]); !written[key] {
			f(key, &r.Overrides[i])
		}
	}
}

// addOverrides adds the limits of single keys.
func (c *rule) addOverrides() {
	c.eachOverride(func(key string, o *Override) {
		if o.Share == 0 {
			limit := c.grace.Enforced(o.Limit.Named(c.Name))
			c.overrides[key] = append(c.overrides[key], override{&limit, o.span()})
		}
	})
}

// weights returns the weights of single keys. If a key has several, the first counts.
func (r *Rule) weights() map[string]int {
	all := map[string]int{}
	r.eachOverride(func(key string, o *Override) {
		if all[key] == 0 && o.Share > 0 {
			all[key] = o.Share
		}
	})
	return all
}

// spelt returns an override's key in the spelling of [HTTP].
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
func (c *rule) others() (all []ratelimit.Limit) {
	for _, plan := range slices.Sorted(maps.Keys(c.plans)) {
		all = append(all, *c.plans[plan])
	}
	for _, o := range c.Overrides {
		if o.Share == 0 {
			all = append(all, c.grace.Enforced(o.Limit.Named(c.Name)))
		}
	}
	return all
}

// charge fills in the rule's charge for a request: the key, the cost, and the limit. All other fields
// of ch must be zero. If the rule is optional and the request lacks an attribute, it reports false.
func (c *rule) charge(r Request, cost int, ch *charge) (applies bool, err error) {
	if c.plain {
		ch.Key, err = c.parts[0].in(r)
	} else if len(c.parts) > 0 {
		ch.Key, err = c.key(r)
	}
	if ch.Cost = cost; err == nil && c.ownCost {
		ch.Cost, ch.Fixed, err = c.pricing.of(r, cost)
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

// key returns the request's key: all its attributes.
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

// limitOf returns a key's limit: its override's, the one in LimitFrom's attribute, the request's
// plan's, or otherwise the rule's. If the limit is a plan's, it also returns the plan.
func (c *rule) limitOf(r Request, key string) (limit *ratelimit.Limit, plan string) {
	if l := c.overrideOf(key); l != nil {
		return l, ""
	}
	if c.given != nil {
		if text, ok := r.Attribute(c.LimitFrom); ok && text != "" {
			l := c.given.Get(text, c.givenLimit)
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

// countPlan counts a request's plan as unknown if the rule does not have it.
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

// maxPlanLimits is the maximum number of known limits for one rule's plans, including earlier sets' plans.
const maxPlanLimits = 10_000

// succeeds copies the limits of the rule's plans in earlier sets from the rule in the last set, if it had one.
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

// limitAfter returns a key's limit, given the limit of its last decision.
// If the last limit was a plan's, limitAfter also returns the plan.
func (c *rule) limitAfter(key string, last ratelimit.Limit) (ratelimit.Limit, string) {
	name, known := "", last.Named("") == c.limit.Named("")
	if !known {
		name, known = c.planOf[last.Named("")]
	}
	limit, holds := c.limitOf(plan(name), key)
	if c.given != nil && !known && c.overrideOf(key) == nil {
		return last.Named(c.Name), "" // the limit came from the attribute
	}
	return *limit, holds
}

// ValuesOf splits a key's text, as in [Denials] and [Decision], into the values of
// the rule's Key attributes. It returns fewer values if the text is not such a key.
func ValuesOf(key string, attributes int) []string { return joined.Values(key, attributes) }

// givenLimit reads LimitFrom's attribute. It is a limit, or a number of units to which it scales the rule's limit.
func (c *rule) givenLimit(text string) (l ratelimit.Limit, err error) {
	if units, failed := strconv.Atoi(text); failed == nil {
		l, err = limits.Scaled(c.whole, units, text)
	} else {
		l, err = ratelimit.ParseLimit(text)
	}
	if err != nil {
		return l, err
	}
	l = l.Named(c.Name)
	if err = l.Validate(); err == nil {
		err = c.countable(c.grace.Enforced(l))
	}
	if err == nil && c.part != nil {
		l = c.part(l)
	}
	return c.grace.Enforced(l), err
}

// thresholdsOf returns the percentages of a valid rule, in order.
func thresholdsOf(r *Rule) (all []int) {
	for _, text := range r.Notify {
		percent, err := percentOf(text)
		if err != nil {
			panic("policy: a rule that has not been validated: " + err.Error())
		}
		all = append(all, percent)
	}
	slices.Sort(all)
	return all
}

// share puts a charge under the common limit of the rule's keys, if there is one.
func (c *rule) share(r Request, ch *charge) {
	if c.pool == nil || !limits.Counts(*ch.Limit) {
		return
	}
	ch.Tariff, _ = r.Attribute(attrPlan)
	var ofPlan bool
	if ch.Weight, ofPlan = c.terms.Of(ch.Key, ch.Tariff); ofPlan {
		ch.Plan = ch.Tariff
	}
}

// overrideOf returns the limit of a key's override in force, or nil if
// none is. An override with a time takes precedence over one without.
func (c *rule) overrideOf(key string) (limit *ratelimit.Limit) {
	var at time.Time
	for _, o := range c.overrides[key] {
		if o.always() {
			limit = o.limit
			continue
		}
		if at.IsZero() {
			at = c.wall()
		}
		if o.holds(at) {
			return o.limit
		}
	}
	return limit
}
