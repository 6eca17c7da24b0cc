package policy

import (
	"strings"

	"github.com/weir-go/ratelimit"
)

// Engine holds the budgets of rules: [Memory], or one of module policyredis. Each [Policies] needs its own.
//
// Its limiters charge all that a request asks for, or nothing, in Allow as in Take, before they return. They may be a
// [ratelimit.Peeker], [ratelimit.Adjuster] and [ratelimit.Resetter] too, and list keys for [Policies.Each]:
//
//	Each(ctx context.Context, rule int, limitFor func(key string) ratelimit.Limit, visit func(key string, d ratelimit.Decision) bool) error
//
// One that cannot count every limit has a method that refuses what [Rule.LimitFrom] must not bring:
//
//	CheckLimit(limit ratelimit.Limit) error
type Engine interface {
	// Open returns the limiter of a set of rules, maybe nil without rules. Names that stay keep their budgets; other budgets are
	// freed. An error changes nothing. Earlier limiters may still be in use. It is not called concurrently.
	Open(rules []Budget) (ratelimit.Reserver[*Charges], error)
}

// Budget is what an engine knows of a rule.
type Budget struct {
	Name     string            // its case does not matter
	Key      []string          // the attributes of its keys; it must not be changed
	Limit    ratelimit.Limit   // with the rule's Name
	Others   []ratelimit.Limit // those of plans and overrides
	AnyLimit bool              // a charge may bring any limit: see [Rule.LimitFrom]
	OwnCost  bool              // the rule has a cost of its own
	Shadow   bool              // the rule never denies
}

func (b Budget) id() string { return strings.ToLower(b.Name) }

// fixed reports whether every charge brings the same limit.
func (b Budget) fixed() bool { return len(b.Others) == 0 && !b.AnyLimit }
