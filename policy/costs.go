package policy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/follow"
	"github.com/weir-go/ratelimit/internal/held"
	"github.com/weir-go/ratelimit/policy/internal/match"
)

// costing is a [Cost], prepared for decisions.
type costing struct {
	Cost
	weight needed // the attribute that holds it
}

func costingOf(c Cost) costing {
	prepared := costing{Cost: c}
	if c.Attribute != "" {
		prepared.weight = needCost(c.Attribute)
	}
	return prepared
}

// of returns the charge if the caller's cost is cost, and whether it is fixed: not the caller's.
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

// number returns the attribute of a request, which holds a cost.
func (n *needed) number(r Request) (int, error) {
	text, err := n.in(r)
	if err != nil {
		return 0, err
	}
	units, err := strconv.Atoi(text)
	if err != nil || units < 0 {
		return 0, n.wrong("is not a whole number of at least 0")
	}
	return units, nil
}

// prices are the costs of [Rule.Costs], prepared for decisions.
type prices struct {
	all   []costing
	rules []*match.Rule // of the costs, that match by one reading of a path, and behind them those that match by all readings
	index *match.Index
}

// pricesOf returns the prices of a valid rule, nil if it has none.
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

var priceMemories = sync.Pool{New: func() any { return new(match.Memory) }}

// cost returns the charge if the caller's cost is cost: of the first price that matches, else of the rule. A client cannot choose a lower
// one by a path that is read in several ways: the highest counts of the prices that match by one reading, up to the first that matches by all.
func (c *rule) cost(r Request, cost int) (n int, fixed bool, err error) {
	if c.prices == nil {
		return c.base.of(r, cost)
	}
	memory, _ := priceMemories.Get().(*match.Memory)
	defer priceMemories.Put(memory)
	found := c.prices.index.Candidates(r, memory)
	known := false
	add := func(p *costing) error {
		m, own, err := p.of(r, cost)
		if err != nil {
			return err
		}
		if !known || m > n {
			n, fixed, known = m, own, true
		}
		return nil
	}
	for _, i := range found {
		if i >= len(c.prices.all) {
			break
		}
		if !c.prices.rules[i].Holds(r) {
			continue
		}
		if err := add(&c.prices.all[i]); err != nil {
			return 0, false, err
		}
		if k := i + len(c.prices.all); slices.Contains(found, k) && c.prices.rules[k].Holds(r) {
			return n, fixed, nil
		}
	}
	return n, fixed, add(&c.base)
}

// settles reports whether the rule's charge does not simply settle at the argument of Settle, or at its cost.
func (c *rule) settles() bool { return c.Actual != "" || c.prices != nil }

// real returns the real cost of a rule's charge, for a reservation that is settled.
func (c *charges) real(r *rule, ch *charge) int {
	ch.Real = c.given
	if ch.Fixed {
		ch.Real = ch.Cost
	}
	if r.Actual == "" {
		return ch.Real
	}
	n, err := r.actual.number(c.request)
	switch {
	case err == nil:
		ch.Real = n
	case missing(err) && (r.Optional || !ch.Fixed):
	default:
		ch.Real = ch.Cost
		c.failed = append(c.failed, fmt.Errorf("policy: rule %q: actual: %w", r.Name, err))
	}
	return ch.Real
}

// settledBy returns a reservation whose charges settle each by its own rule.
func (d *decider) settledBy(c *charges, inner *ratelimit.Reservation) *ratelimit.Reservation {
	if inner == nil || !inner.Allowed || !slices.ContainsFunc(c.List, func(ch charge) bool { return d.rules[ch.Rule].settles() }) {
		return inner
	}
	return settledAs(inner, func(actual int) error {
		c.given = actual
		err := inner.Settle(actual)
		return errors.Join(append([]error{err}, c.failed...)...)
	})
}

// settledAs returns a reservation of the charges of another, which it settles by a function.
func settledAs(inner *ratelimit.Reservation, settle func(actual int) error) *ratelimit.Reservation {
	res := ratelimit.NewReservation(inner.Decision, settle)
	held.Follow(res, func(ctx context.Context, r *ratelimit.Reservation) error { return r.Extend(ctx) }, inner)
	if inner.Delay > 0 {
		follow.Wait(res, inner.Wait)
	}
	return res
}
