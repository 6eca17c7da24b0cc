package policy

import (
	"errors"
	"fmt"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy/internal/shares"
)

// Engine returns the limiter for a rule's budgets. [Memory] is one. Package policysql has one for
// budgets in a database, and module policyredis one for Redis. An engine on another store is a function:
//
//	func(b policy.Budget, _ ratelimit.Limiter[string]) (ratelimit.Limiter[string], error) {
//		return sqllimit.New(db, b.Limit, &sqllimit.Options{Name: b.Name})
//	}
//
// The limiters of a set's rules must have one store. It decides on them together: see [ratelimit.Joinable]. If
// a set has one rule, it may have any limiter. A decision may have another limit than the limiter's own, and
// then contains it. A limiter may implement [ratelimit.Peeker], [ratelimit.Adjuster] and [ratelimit.Resetter].
// For [Policies.Each] it may have an Each as sqllimit's have, and for [Policies.Flush] a Flush as lease's have.
//
// New, Update and [Check] call the engine from many goroutines: for each rule, for each further limit, and for limits
// in [Rule.LimitFrom] attributes. So they find out whether the store can count the limit. A call must change nothing,
// because the set may be refused. before is the limiter of the same rule, by name, in the previous set, or nil. If a
// limiter holds its spending itself, the engine must return the same one again, and it must be a [ratelimit.Describer],
// because the rule may have another limit now. An engine may serve several [Policies] at the same time.
type Engine func(b Budget, before ratelimit.Limiter[string]) (ratelimit.Limiter[string], error)

// Budget is what an engine receives for a rule. The engine must not change it.
type Budget struct {
	Name   string            // the budgets' name: the rule's Budget, or else its Name; case is ignored
	Key    []string          // its keys' attributes
	Limit  ratelimit.Limit   // has the rule's Name
	Others []ratelimit.Limit // the limits of plans and overrides

	// If Share is positive, all keys share Limit, and Share is the weight of keys without their own weight. The
	// limiter must come from package fair or redislimit.NewFair, or be another Reserver with a SetLimit whose
	// Describe reports Shared. The limiter calls Weight. An engine without such limiters returns an error. If before
	// is not nil, the engine must return it, even if its limit differs: SetLimit is called when the set is in force.
	Share  int
	Weight func(key string) int // returns a key's weight during a call for it; nil if Share is 0

	Set []Budget // the set's budgets, without their own Set; nil if a single limit is checked
}

// checkLimit returns an error if the engine's store cannot count a limit of a rule.
func (e Engine) checkLimit(b Budget, limit ratelimit.Limit) error {
	b.Limit, b.Others, b.Share, b.Weight, b.Set = limit.Named(b.Limit.Name), nil, 0, nil, nil
	_, err := e(b, nil)
	return err
}

// sharerFor returns the engine's limiter for a rule with Share. before is the
// limiter of the rule in the previous set if its keys shared a limit there.
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

// idle returns the limiter of a rule with Share for the stack. It
// decides only on keys without a weight: they are blocked or unlimited.
func (e Engine) idle(b Budget) (ratelimit.Limiter[string], error) {
	b.Limit, b.Others, b.Share, b.Weight = ratelimit.Unlimited().Named(b.Limit.Name), nil, 0, nil
	return e(b, nil)
}
