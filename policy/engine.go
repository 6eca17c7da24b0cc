package policy

import (
	"strings"

	"github.com/weir-go/ratelimit"
)

// Engine holds the budgets of rules: [Memory], or one of module policyredis. Each [Policies] needs its own.
//
// Its limiters make all charges of a request, or none, in Allow as in Take, before they return. They may be a
// [ratelimit.Peeker], [ratelimit.Adjuster] and [ratelimit.Resetter] too, and list keys for [Policies.Each]:
//
//	Each(ctx context.Context, rule int, limitFor func(key string) ratelimit.Limit, visit func(key string, d ratelimit.Decision) bool) error
//
// An engine that cannot count every limit has a method that refuses limits of [Rule.LimitFrom]:
//
//	CheckLimit(limit ratelimit.Limit) error
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
