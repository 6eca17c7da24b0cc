// Package policysql keeps package policy's budgets in a PostgreSQL or MySQL database:
// a fleet shares them, and a monthly quota survives a deploy, without Redis.
//
//	policies, err := policy.New(set, &policy.Options{Engine: policysql.New(db, nil)})
//
// One transaction decides all rules for a request, all or nothing. See package sqllimit for the table and its promises.
package policysql

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/sqllimit"
)

// defaultName is the default prefix of budgets' names in the table.
const defaultName = "policy"

// New returns an engine whose budgets are rows of [sqllimit.Schema]'s table. Nil options are the zero Options; their
// functions are called concurrently. A budget's name is Options.Name, a point and the rule's name; the case of the
// rule's name does not matter. Options.Name defaults to "policy". Processes with common budgets need the same Name
// and Table. Options.LimitFor must be nil, because rules have plans, overrides and limit_from instead. OnDecision
// receives each rule's decision, with its key. No connection is used before the first decision. [policy.New] and
// [policy.Check] report a nil db, wrong options, a limit that sqllimit cannot count, and a rule with Share.
//
// The rows of a removed rule are swept once they are fresh. If the rule comes back before that, its spending still counts.
func New(db *sql.DB, opts *sqllimit.Options) policy.Engine {
	var o sqllimit.Options
	if opts != nil {
		o = *opts
	}
	if o.Name == "" {
		o.Name = defaultName
	}
	return func(b policy.Budget, _ ratelimit.Limiter[string]) (ratelimit.Limiter[string], error) {
		if o.LimitFor != nil {
			return nil, errors.New("policysql: Options.LimitFor is not nil: the limits of keys are in the rules, as plans, overrides or limit_from")
		}
		if b.Share > 0 {
			return nil, fmt.Errorf("policysql: share is %d: the keys of a rule cannot share a limit in a database: %w; use policy.Memory, or policyredis for a fleet", b.Share, errors.ErrUnsupported)
		}
		o := o
		o.Name += "." + strings.ToLower(b.Name)
		return sqllimit.New(db, b.Limit, &o)
	}
}
