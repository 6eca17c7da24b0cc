package policy

import (
	"strings"

	"github.com/weir-go/ratelimit"
)

// Engine holds the budgets of rules: [Memory], or module policyredis. Give each [Policies] its own.
//
// What Open returns charges all that a request asks for, or nothing. Its Allow and its Take charge the same. It may also be a
// [ratelimit.Peeker], a [ratelimit.Adjuster] and a [ratelimit.Resetter], and list keys for [Policies.Each]:
//
//	Each(ctx context.Context, rule int, limitFor func(key string) ratelimit.Limit, visit func(key string, d ratelimit.Decision) bool) error
type Engine interface {
	// Open returns what decides under a set of rules. Budgets stay while the rule's name is among the rules of each Open; those of
	// other names are freed. An error changes nothing. What an earlier Open returned may be in use for a while. Open is
	// not called concurrently. Without rules, the answer may be nil.
	Open(rules []Budget) (ratelimit.Reserver[*Charges], error)
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
}

func (b Budget) id() string { return strings.ToLower(b.Name) }

// fixed reports whether every charge brings the same limit.
func (b Budget) fixed() bool { return len(b.Others) == 0 }
