package policy

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/optional"
)

// Engine returns the limiter that holds a rule's budgets. [Memory] is one, and so are those of package policysql, for budgets in a
// database, and module policyredis. An engine on another store is a function:
//
//	func(b policy.Budget, _ ratelimit.Limiter[string]) (ratelimit.Limiter[string], error) {
//		return sqllimit.New(db, b.Limit, &sqllimit.Options{Name: b.Name})
//	}
//
// The limiters of a set's rules must be of one store, which decides on them together: see [ratelimit.Joinable]. A single rule may have any
// limiter. A decision whose limit is not the limiter's own brings its limit. The limiters may be a [ratelimit.Peeker],
// [ratelimit.Adjuster] and [ratelimit.Resetter], have an Each as sqllimit's have, for [Policies.Each], and a Flush as lease's have, for
// [Policies.Flush].
//
// New, Update and [Check] call it for each rule, and for each limit that the rule may have besides, to know whether the store can count
// that, and for attributes of [Rule.LimitFrom], from many goroutines. A call changes nothing: the set may be refused. Before is the limiter of the rule of that name in the set before, or nil. A limiter
// that holds its spending itself must be returned again, and be a [ratelimit.Describer]: the rule may have another limit now. An engine may serve several [Policies] at once.
type Engine func(b Budget, before ratelimit.Limiter[string]) (ratelimit.Limiter[string], error)

// Budget is the part of a rule that an engine receives. It must not be changed.
type Budget struct {
	Name   string            // of the budgets, the rule's Budget or else its Name; its case does not matter
	Key    []string          // the attributes of its keys
	Limit  ratelimit.Limit   // with the rule's Name
	Others []ratelimit.Limit // the limits of plans and overrides

	// Share, if above 0, is the weight of keys without another: all keys share Limit. The limiter is one of package fair, of
	// redislimit.NewFair, or another Reserver with a SetLimit whose Describe reports Shared. It uses Weight, and an engine without such
	// limiters returns an error. Before is returned again, also if its limit is another: SetLimit is called when the set is in force.
	Share  int
	Weight func(key string) int // the weight of a key during a call for it; nil without Share

	Set []Budget // all budgets of the set, without their Set; nil if a single limit is checked
}

// budget returns the part of the rule that an engine receives.
func (c *rule) budget() Budget {
	b := Budget{Name: c.budgets(), Key: c.Key, Limit: c.limit, Others: c.others(), Share: c.Share}
	if c.Share > 0 {
		b.Weight = func(string) int { return c.Share } // until the rule has a pool
	}
	return b
}

// checkLimit returns an error if the engine's store cannot count a limit of a rule.
func (e Engine) checkLimit(b Budget, limit ratelimit.Limit) error {
	b.Limit, b.Others, b.Share, b.Weight, b.Set = limit.Named(b.Limit.Name), nil, 0, nil, nil
	_, err := e(b, nil)
	return err
}

// open makes the rules of a valid set ready, on limiters of the engine. It changes nothing. Before returns the limiter of a rule in the set
// before, and its pool. An error is an [*Error].
func (e Engine) open(set *Set, before func(id string) (ratelimit.Limiter[string], *pool)) ([]*rule, *decider, error) {
	whole := set.Complete()
	rules, budgets := make([]*rule, len(whole)), make([]Budget, len(whole))
	for i := range whole {
		rules[i] = newRule(&whole[i], set.Lists)
		budgets[i] = rules[i].budget()
	}
	limiters := make([]ratelimit.Limiter[string], len(rules))
	stacked := make([]ratelimit.Limiter[string], len(rules)) // the limiters that one stack decides on
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
			if m, ok := pool.sharer.(*memoryPool); ok {
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
func (e Engine) limiterFor(r *rule, b Budget, before func(id string) (ratelimit.Limiter[string], *pool)) (ratelimit.Limiter[string], *pool, error) {
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
	p := &pool{weigher: newWeigher(r)}
	if last = nil; shared != nil {
		p.weigher, last = shared.weigher, shared.sharer
	}
	b.Weight = p.weigher.weight
	var err error
	if p.sharer, err = e.sharerFor(b, last); err != nil {
		return nil, nil, err
	}
	return p.sharer, p, nil
}

// refusals returns the errors for which an engine refuses a valid set: about single limits, or else about the rules together.
func (s *Set) refusals(e Engine) (all []*Error) {
	if e == nil {
		e = Memory(nil)
	}
	whole := s.Complete()
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
				check(fmt.Sprintf("overrides[%d]", j), c.enforced(o.Limit.Named(c.Name)))
			}
		}
	}
	if len(all) > 0 {
		return all
	}
	var together *Error
	if _, _, err := e.open(s, func(string) (ratelimit.Limiter[string], *pool) { return nil, nil }); errors.As(err, &together) {
		together.Field = "rules"
		all = append(all, together)
	}
	return all
}
