package policy

import (
	"slices"
	"strings"

	"github.com/weir-go/ratelimit"
)

// Engine holds the budgets of rules: [Memory], or module policyredis. Give each [Policies] its own.
type Engine interface {
	// Open returns what decides under a set of rules. Budgets stay while the rule's name is among the rules of each Open; those of
	// other names are freed. An error changes nothing. What an earlier Open returned may be in use for a while. Open is
	// not called concurrently. Without rules, the Decider may be nil.
	Open(rules []Budget) (Decider, error)
}

// Budget is what an engine needs to know of a rule.
type Budget struct {
	// Name is the rule's name. Budgets are those of a name, whatever its case.
	Name string
	// Key names the attributes of which the rule's keys are made. It must not be changed.
	Key []string
	// Limit is the rule's limit, named after the rule. Each charge brings the limit
	// that holds for it, which may be another: a plan's, an override's.
	Limit ratelimit.Limit
	// Others are the limits of plans and overrides. If there are none, every charge brings
	// Limit.
	Others []ratelimit.Limit
	// OwnCost reports that the rule has a cost of its own.
	OwnCost bool
	// Shadow reports that the rule never denies.
	Shadow bool
	// Tell reports that somebody wants to know what the rule says: see [Charges.TellEvent]. It is
	// always set.
	Tell bool
}

func (b Budget) id() string { return strings.ToLower(b.Name) }

// ValueIn returns an attribute of the key of a [Charge], and false if the key has no such attribute.
func (b Budget) ValueIn(key, attribute string) (value string, ok bool) {
	return valueIn(key, len(b.Key), slices.Index(b.Key, attribute))
}

// fixed reports whether every charge brings the same limit.
func (b Budget) fixed() bool { return len(b.Others) == 0 }

// Decider charges all that a request asks for, or nothing. It is safe for concurrent use. Its Allow and its Take charge the
// same. It may have the methods of a [ratelimit.Peeker], [ratelimit.Adjuster] and [ratelimit.Resetter] besides: if the
// charges are bare, they are about budgets, whatever the rules charge by themselves and whether they are shadows. And it may
// have a method that lists keys, for [Policies.Each]:
//
//	Each(ctx context.Context, rule int, limitFor func(key string) ratelimit.Limit, visit func(key string, d ratelimit.Decision) bool) error
type Decider = ratelimit.Reserver[*Charges]
