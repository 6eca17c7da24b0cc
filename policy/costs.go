package policy

import (
	"slices"
	"sync"

	"github.com/weir-go/ratelimit/policy/internal/match"
)

// costing is a [Cost], prepared for decisions.
type costing struct {
	Cost
	weight needed // the attribute with the cost
}

func costingOf(c Cost) costing {
	prepared := costing{Cost: c}
	if c.Attribute != "" {
		prepared.weight = needCost(c.Attribute)
	}
	return prepared
}

// of returns the cost to charge, given the caller's cost. fixed reports whether it is the rule's own.
func (c *costing) of(r Request, cost int) (n int, fixed bool, err error) {
	switch {
	case !c.own():
		return cost, false, nil
	case cost == 0:
		return 0, true, nil
	case c.Number > 0:
		return c.Number, true, nil
	}
	n, err = c.weight.number(r)
	return n, true, err
}

// prices are the costs of [Rule.Costs], prepared for decisions.
type prices struct {
	all []costing
	// the costs' conditions: first for any reading of the path, and then for all readings
	rules []*match.Rule
	index *match.Index
}

// pricesOf returns the prices of a valid rule, or nil if it has none.
func pricesOf(r *Rule, named lists, routes []match.Pattern) *prices {
	if len(r.Costs) == 0 {
		return nil
	}
	p := new(prices)
	for i := range r.Costs {
		own, cost := routes, costingOf(r.Costs[i].alone())
		if m := r.Costs[i].Match; len(m.Route) > 0 {
			own = patternsOf(named.of(m.Route))
		}
		cost.weight = cost.weight.of(own)
		m := matchOf(&Rule{Match: *r.Costs[i].Match}, named, own)
		p.all, p.rules = append(p.all, cost), append(p.rules, &m)
	}
	for _, m := range slices.Clone(p.rules) {
		certain := *m
		certain.Exempts = true
		p.rules = append(p.rules, &certain)
	}
	p.index = match.New(p.rules)
	return p
}

// pricing is a rule's cost, and its costs for some requests.
type pricing struct {
	base   costing // used if no price matches
	prices *prices // nil if there are none
}

// pricingOf returns the pricing of a valid rule. Its costs may use routes' wildcards.
func pricingOf(r *Rule, named lists, routes []match.Pattern) pricing {
	p := pricing{costingOf(r.Cost), pricesOf(r, named, routes)}
	p.base.weight = p.base.weight.of(routes)
	return p
}

var priceMemories = sync.Pool{New: func() any { return new(match.Memory) }}

// of returns the cost to charge, given the caller's cost. It is the first matching price, or otherwise the rule's
// cost. If servers may read the path in several ways, prices may match only some readings. Then the cost is the
// highest of the matching prices up to the first that matches every reading. So a client cannot choose a lower price.
func (p *pricing) of(r Request, cost int) (n int, fixed bool, err error) {
	if p.prices == nil {
		return p.base.of(r, cost)
	}
	memory, _ := priceMemories.Get().(*match.Memory)
	defer priceMemories.Put(memory)
	found := p.prices.index.Candidates(r, memory)
	known := false
	add := func(c *costing) error {
		m, own, err := c.of(r, cost)
		if err != nil {
			return err
		}
		if !known || m > n {
			n, fixed, known = m, own, true
		}
		return nil
	}
	for _, i := range found {
		if i >= len(p.prices.all) {
			break
		}
		if !p.prices.rules[i].Holds(r) {
			continue
		}
		if err := add(&p.prices.all[i]); err != nil {
			return 0, false, err
		}
		if k := i + len(p.prices.all); slices.Contains(found, k) && p.prices.rules[k].Holds(r) {
			return n, fixed, nil
		}
	}
	return n, fixed, add(&p.base)
}
