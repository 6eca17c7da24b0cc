package policy

import (
	"errors"
	"fmt"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy/internal/shares"
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
// New, Update and [Check] call it from many goroutines: for each rule, for each further limit of the rule, and
// for the limits in attributes of [Rule.LimitFrom]. So they learn whether the store can count that limit. A
// call changes nothing, since the set may be refused. Before is the limiter of the rule with that name in the
// previous set, or nil. If a limiter holds its spending itself, the engine must return it again, and it must be
// a [ratelimit.Describer]: the rule may have another limit now. An engine may serve several [Policies] at once.
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

// checkLimit returns an error if the engine's store cannot count a limit of a rule.
func (e Engine) checkLimit(b Budget, limit ratelimit.Limit) error {
	b.Limit, b.Others, b.Share, b.Weight, b.Set = limit.Named(b.Limit.Name), nil, 0, nil, nil
	_, err := e(b, nil)
	return err
}

// sharerFor returns the engine's limiter for a rule with Share. Before is the limiter of the rule in the set before, if its keys shared one.
func (e Engine) sharerFor(b Budget, before ratelimit.Limiter[string]) (shares.Limiter, error) {
	l, err := e(b, before)
	if err != nil {
		return nil, err
	}
	s, ok := l.(shares.Limiter)
	if !ok || !ratelimit.Describe(l).Shared {
		return nil, fmt.Errorf("the engine returned a %T, whose keys do not share one limit, as those of Memory and policyredis do: %w", l, errors.ErrUnsupported)
	}
	return s, nil
}

// idle returns the limiter that stands in the stack for a rule with Share. Its keys without a weight are blocked or unlimited.
func (e Engine) idle(b Budget) (ratelimit.Limiter[string], error) {
	b.Limit, b.Others, b.Share, b.Weight = ratelimit.Unlimited().Named(b.Limit.Name), nil, 0, nil
	return e(b, nil)
}
