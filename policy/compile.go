package policy

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/policy/internal/limits"
	"github.com/weir-go/ratelimit/policy/internal/shares"
)

// budget returns the rule's part for an engine.
func (c *rule) budget() Budget {
	b := Budget{Name: c.budgets(), Key: c.Key, Limit: c.limit, Others: c.others(), Share: c.Share}
	if c.Share > 0 {
		b.Weight = func(string) int { return c.Share } // used while the rule has no pool
	}
	return b
}

// open prepares the rules of a valid set on limiters of the engine, and changes nothing.
// before returns a rule's limiter in the previous set, and its pool. An error is an [*Error].
func (e Engine) open(set *Set, before func(id string) (ratelimit.Limiter[string], *shares.Pool)) ([]*rule, *decider, error) {
	whole := set.complete()
	rules, budgets := make([]*rule, len(whole)), make([]Budget, len(whole))
	for i := range whole {
		rules[i] = newRule(&whole[i], set.Lists)
		budgets[i] = rules[i].budget()
	}
	limiters := make([]ratelimit.Limiter[string], len(rules))
	stacked := make([]ratelimit.Limiter[string], len(rules)) // the limiters of one stack
	for i, r := range rules {
		b := budgets[i]
		b.Set = budgets
		l, pool, err := e.limiterFor(r, b, before)
		stacked[i] = l
		if pool != nil {
			stacked[i], err = e.idle(b)
		}
		t, isTable := l.(*table)
		checked := map[ratelimit.Limit]bool{b.Limit: true}
		for k := 0; k < len(b.Others) && err == nil; k++ {
			if limit := b.Others[k]; !checked[limit] && !(isTable && t.counts(limit)) {
				checked[limit], err = true, e.checkLimit(b, limit)
			}
		}
		if err != nil {
			return nil, nil, &Error{Rule: r.Name, Err: err}
		}
		switch {
		case isTable:
			rules[i] = ruleOf(r, t.processes)
		case pool != nil:
			if m, ok := pool.Limiter.(*memoryPool); ok {
				rules[i] = ruleOf(r, m.processes)
			}
		}
		limiters[i], rules[i].pool, rules[i].countable = l, pool, func(limit ratelimit.Limit) error {
			if isTable && t.counts(limit) {
				return nil
			}
			return e.checkLimit(b, limit)
		}
	}
	d, err := newDecider(rules, limiters, stacked)
	if err != nil {
		return nil, nil, &Error{Err: err}
	}
	return rules, d, nil
}

// limiterFor returns the engine's limiter for a rule, and the pool of a rule with Share.
func (e Engine) limiterFor(r *rule, b Budget, before func(id string) (ratelimit.Limiter[string], *shares.Pool)) (ratelimit.Limiter[string], *shares.Pool, error) {
	last, shared := before(r.id)
	if r.Share == 0 {
		if shared != nil {
			last = nil
		}
		l, err := e(b, last)
		if err == nil && optional.IsNil(l) {
			err = optional.Nil("the limiter that the engine returned")
		}
		return l, nil, err
	}
	p := shares.New(r.terms)
	if last = nil; shared != nil {
		p, last = shared.Again(), shared.Limiter
	}
	b.Weight = p.Weight
	var err error
	if p.Limiter, err = e.sharerFor(b, last); err != nil {
		return nil, nil, err
	}
	return p.Limiter, p, nil
}

// refusals returns an engine's errors about a valid set. It returns the
// errors of single limits or, if there are none, of the rules together.
func (s *Set) refusals(e Engine) (all []*Error) {
	if e == nil {
		e = Memory(nil)
	}
	whole := s.complete()
	for i := range whole {
		c := newRule(&whole[i], s.Lists)
		b := c.budget()
		check := func(field string, limit ratelimit.Limit) {
			if len(all) < maxProblems {
				if err := e.checkLimit(b, limit); err != nil {
					all = append(all, c.wrong(i, field, err))
				}
			}
		}
		if c.Share == 0 {
			check("limit", c.limit)
		} else if _, err := e.sharerFor(b, nil); err != nil && len(all) < maxProblems {
			field := "limit"
			if errors.Is(err, errors.ErrUnsupported) {
				field = "share"
			}
			all = append(all, c.wrong(i, field, err))
		}
		for _, plan := range slices.Sorted(maps.Keys(c.plans)) {
			check("plans."+plan, *c.plans[plan])
		}
		for j, o := range c.Overrides {
			if o.Share == 0 {
				check(fmt.Sprintf("overrides[%d]", j), c.grace.Enforced(o.Limit.Named(c.Name)))
			}
		}
	}
	if len(all) > 0 {
		return all
	}
	var together *Error
	if _, _, err := e.open(s, func(string) (ratelimit.Limiter[string], *shares.Pool) { return nil, nil }); errors.As(err, &together) {
		together.Field = "rules"
		all = append(all, together)
	}
	return all
}

// ruleOf returns the rule for one of several processes, with its share of the limits.
func ruleOf(whole *rule, processes int) *rule {
	if processes <= 1 || whole.Allow {
		return whole
	}
	of := func(limit ratelimit.Limit) ratelimit.Limit { return limits.ShareOf(limit, processes) }
	r := *whole.Rule
	r.Limit, r.Plans, r.Overrides = of(r.Limit), maps.Clone(r.Plans), slices.Clone(r.Overrides)
	for plan, limit := range r.Plans {
		r.Plans[plan] = of(limit)
	}
	for k := range r.Overrides {
		if r.Overrides[k].Share == 0 {
			r.Overrides[k].Limit = of(r.Overrides[k].Limit)
		}
	}
	part := newRule(&r, whole.lists)
	part.whole, part.part, part.terms = whole.whole, of, whole.terms
	return part
}
