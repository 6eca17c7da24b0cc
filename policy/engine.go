package policy

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/policy/internal/joined"
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
	Name   string            // its case does not matter
	Key    []string          // the attributes of its keys
	Limit  ratelimit.Limit   // with the rule's Name
	Others []ratelimit.Limit // the limits of plans and overrides
	Set    []Budget          // all budgets of the set, without their Set; nil if a single limit is checked
}

// budget returns the part of the rule that an engine receives.
func (c *rule) budget() Budget {
	return Budget{Name: c.Name, Key: c.Key, Limit: c.limit, Others: c.others()}
}

// checkLimit returns an error if the engine's store cannot count a limit of a rule.
func (e Engine) checkLimit(b Budget, limit ratelimit.Limit) error {
	b.Limit, b.Others, b.Set = limit.Named(b.Name), nil, nil
	_, err := e(b, nil)
	return err
}

// open makes the rules of a valid set ready, on limiters of the engine. It changes nothing. Before returns the limiter of a rule in the set
// before. An error is an [*Error].
func (e Engine) open(whole []Rule, before func(id string) ratelimit.Limiter[string]) ([]*rule, *decider, error) {
	rules, budgets := make([]*rule, len(whole)), make([]Budget, len(whole))
	for i := range whole {
		rules[i] = newRule(&whole[i])
		budgets[i] = rules[i].budget()
	}
	limiters := make([]ratelimit.Limiter[string], len(rules))
	for i, r := range rules {
		b := budgets[i]
		b.Set = budgets
		l, err := e(b, before(r.id))
		if err == nil && optional.IsNil(l) {
			err = errors.New("the engine returned no limiter")
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
		if isTable {
			rules[i] = t.ruleOf(r)
		}
		limiters[i], rules[i].countable = l, func(limit ratelimit.Limit) error {
			if isTable && t.counts(limit) {
				return nil
			}
			return e.checkLimit(b, limit)
		}
	}
	d, err := newDecider(rules, limiters)
	if err != nil {
		return nil, nil, &Error{Err: err}
	}
	return rules, d, nil
}

// refusals returns the errors for which an engine refuses a valid set: about single limits, or else about the rules together.
func (s *Set) refusals(e Engine) (all []*Error) {
	if e == nil {
		e = Memory(nil)
	}
	whole := s.Complete()
	for i := range whole {
		c := newRule(&whole[i])
		b := c.budget()
		check := func(field string, limit ratelimit.Limit) {
			if len(all) < maxProblems {
				if err := e.checkLimit(b, limit); err != nil {
					all = append(all, c.wrong(i, field, err))
				}
			}
		}
		check("limit", c.limit)
		for _, plan := range slices.Sorted(maps.Keys(c.plans)) {
			check("plans."+plan, *c.plans[plan])
		}
		for j, o := range c.Overrides {
			check(fmt.Sprintf("overrides[%d]", j), *c.overrides[joined.Key(o.Key)])
		}
	}
	if len(all) > 0 {
		return all
	}
	var together *Error
	if _, _, err := e.open(whole, func(string) ratelimit.Limiter[string] { return nil }); errors.As(err, &together) {
		together.Field = "rules"
		all = append(all, together)
	}
	return all
}
