package policy

import (
	"context"
	"slices"
	"strings"

	"github.com/weir-go/ratelimit"
)

// Engine holds the budgets of rules: in memory ([Memory]), or in a store that several
// processes share (module policyredis). Give each [Policies] an engine of its own.
type Engine interface {
	// Open returns what decides under a set of rules. The budgets of a rule stay for as
	// long as its name, whatever the case, is among the rules of each Open; those of a
	// rule that is gone are freed. With an error nothing has changed. What an earlier
	// Open returned may be in use for a while yet. Open is not called concurrently. If
	// there are no rules, the Decider may be nil: it is not asked.
	Open(rules []Budget) (Decider, error)
}

// Budget is what an engine needs to know of a rule.
type Budget struct {
	// Name is the rule's name.
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
	// Tell reports that somebody wants to know what the rule says: see [Charges.Tell]. It is
	// always set.
	Tell bool
}

// ID returns the identity of the rule's budgets: its name in lower case.
func (b Budget) ID() string { return strings.ToLower(b.Name) }

// ValueIn returns what an attribute is in one of the rule's keys: that of a [Charge]. It reports false if the
// key has no such attribute.
func (b Budget) ValueIn(key, attribute string) (value string, ok bool) {
	return valueIn(key, len(b.Key), slices.Index(b.Key, attribute))
}

// Fixed reports whether every charge brings the same limit.
func (b Budget) Fixed() bool { return len(b.Others) == 0 }

// Decider charges all that a request asks for, or nothing. It is safe for concurrent use. Its
// Allow and its Take charge the same.
type Decider = ratelimit.Reserver[*Charges]

// Peeker is what a [Decider] may have besides: it says what Take would answer to some charges, or if they
// are bare, what their rules would say to the cost, whatever they charge by themselves and whether
// they are shadows or not. It charges nothing.
type Peeker interface {
	Peek(c *Charges, cost int) (ratelimit.Decision, error)
}

// Keeper is what a [Decider] may have besides: it changes what has been spent, whatever the limits
// allow.
type Keeper interface {
	// Adjust charges delta to the budgets of some charges, or forgives it if it is negative:
	// see [ratelimit.Layered.Adjust]. If the charges are bare, no rule is left out.
	Adjust(ctx context.Context, c *Charges, delta int) error
	// Reset forgets what the budgets of some charges have spent: see [ratelimit.Keyed.Reset].
	Reset(ctx context.Context, c *Charges) error
}
