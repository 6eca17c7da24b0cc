package sqllimit

import (
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/weir-go/ratelimit"
)

// Options are optional settings of [New]. Nil and the zero Options mean the defaults, but Name
// is required if the limit has no name. Functions in it are called concurrently, under no lock.
type Options struct {
	// Dialect is the database's. If zero, [PostgreSQL].
	Dialect Dialect

	// Table is the table of budgets: letters, digits and underscores, and at most one
	// point behind the name of a schema. If empty, "rate_limit". See [Schema].
	Table string

	// Name names the budgets in the table: a row's key begins with it and a colon. Limiters of
	// one Name and Table share their budgets, whatever their limits. If empty, the limit's Name.
	// It has at most 200 bytes and no colon.
	Name string

	// LimitFor returns the limit of a key; the zero Limit means New's or SetLimit's. A
	// limit without a name gets the name of that one. It is called for each decision.
	// If it returns an invalid limit, the key is denied with
	// [ratelimit.ErrInvalidLimit]. If nil, all keys have New's limit.
	LimitFor func(key string) ratelimit.Limit

	// Timeout bounds one call, beside its context: waiting for a connection and all round
	// trips together. If zero, 1 s; below zero there is no bound but the context's.
	Timeout time.Duration

	// OnDecision is called after each Allow, Take, Reserve and Wait, with what was
	// decided, in the caller's goroutine. It is not called by Peek. If nil, nothing is.
	OnDecision func(ratelimit.Event[string])
}

const (
	defaultTable   = "rate_limit"
	defaultTimeout = time.Second

	maxName = 200
	maxKey  = 1024

	// maxLog bounds Rate.Units of a sliding log, whose spendings are all in the key's row.
	maxLog = 10_000
)

// tableName is what a table may be called. It is not quoted in statements.
var tableName = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]*\.)?[A-Za-z_][A-Za-z0-9_]*$`)

// complete fills in the defaults, and returns what is wrong.
func (o *Options) complete(db *sql.DB, limit ratelimit.Limit) error {
	if o.Table == "" {
		o.Table = defaultTable
	}
	if o.Name == "" {
		o.Name = limit.Name
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	switch {
	case db == nil:
		return errors.New("sqllimit: the database is nil")
	case o.Dialect >= dialects:
		return fmt.Errorf("sqllimit: Options.Dialect is %d, want a constant of this package", o.Dialect)
	case !tableName.MatchString(o.Table):
		return fmt.Errorf("sqllimit: Options.Table is %q, want letters, digits and underscores, and at most one point", o.Table)
	case o.Name == "":
		return errors.New("sqllimit: Options.Name and the limit's Name are both empty: one of them names the budgets in the table")
	case strings.Contains(o.Name, ":"):
		return fmt.Errorf("sqllimit: Options.Name is %q, want no colon in it: one separates it from the key", o.Name)
	case len(o.Name) > maxName:
		return fmt.Errorf("sqllimit: Options.Name has %d bytes, want at most %d", len(o.Name), maxName)
	}
	return nil
}
