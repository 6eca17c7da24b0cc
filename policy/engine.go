package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy/internal/joined"
)

// Engine holds the budgets of rules: [Memory], or one of module policyredis. Each [Policies] needs its own.
//
// Its limiters make all charges of a request, or none, in Allow as in Take, before they return. They may be a
// [ratelimit.Peeker], [ratelimit.Adjuster] and [ratelimit.Resetter] too, and list keys for [Policies.Each]:
//
//	Each(ctx context.Context, rule int, limitFor func(key string) ratelimit.Limit, visit func(key string, d ratelimit.Decision) bool) error
//
// An engine that cannot count every limit has two methods. The first one refuses limits of [Rule.LimitFrom]. The second one returns the
// error that Open would return, changes nothing, and may be called at any time: see [Check].
//
//	CheckLimit(limit ratelimit.Limit) error
//	Check(rules []Budget) error
type Engine interface {
	// Open returns the limiter of a set of rules, which may be nil if there are none. Names that stay keep their budgets; other budgets are
	// freed. An error changes nothing. Earlier limiters may still be in use. It is not called concurrently.
	Open(rules []Budget) (ratelimit.Reserver[*Charges], error)
}

// Budget is the part of a rule that an engine receives.
type Budget struct {
	Name     string            // its case does not matter
	Key      []string          // the attributes of its keys; it must not be changed
	Limit    ratelimit.Limit   // with the rule's Name
	Others   []ratelimit.Limit // the limits of plans and overrides
	AnyLimit bool              // a charge may bring any limit: see [Rule.LimitFrom]
	OwnCost  bool              // the rule has a cost of its own
	Shadow   bool              // the rule never denies
}

func (b Budget) id() string { return strings.ToLower(b.Name) }

// fixed reports whether every charge brings the same limit.
func (b Budget) fixed() bool { return len(b.Others) == 0 && !b.AnyLimit }

// budgetOf returns the part of a rule that an engine receives. The limits have the rule's name.
func budgetOf(r *Rule, limit ratelimit.Limit, others []ratelimit.Limit) Budget {
	return Budget{Name: r.Name, Key: r.Key, Limit: limit, Others: others, AnyLimit: r.LimitFrom != "", OwnCost: r.Cost.own(), Shadow: r.Shadow}
}

// refusals returns the errors for which an engine refuses a valid set: about single limits, or else about the rules together.
func (s *Set) refusals(e Engine) (all []*Error) {
	checker, ok := e.(interface{ Check(rules []Budget) error })
	if !ok {
		return []*Error{{Err: fmt.Errorf("the engine %T has no method Check, so rules cannot be checked against it", e)}}
	}
	rules := shared(e, s.Complete())
	budgets := make([]Budget, len(rules))
	for i := range rules {
		c := newRule(&rules[i])
		budgets[i] = budgetOf(c.Rule, c.limit, c.others())
		check := func(field string, limit ratelimit.Limit) {
			alone := budgets[i]
			alone.Limit, alone.Others = limit, nil
			if err := checker.Check([]Budget{alone}); err != nil && len(all) < maxProblems {
				all = append(all, c.wrong(i, field, err))
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
	if len(all) == 0 {
		if err := checker.Check(budgets); err != nil {
			all = append(all, &Error{Field: "rules", Err: err})
		}
	}
	return all
}
