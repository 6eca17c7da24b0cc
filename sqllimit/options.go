package sqllimit

import (
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/optional"
)

// Options configure [New]. Nil means the zero Options. Its functions are called concurrently.
type Options struct {
	// Dialect is the database's SQL dialect. It defaults to [PostgreSQL].
	Dialect Dialect

	// Table is the table's name: letters, digits and underscores, with the schema's name and a point before it if need be. It defaults to "rate_limit".
	Table string

	// Name is the beginning of a row's key, before a colon. Limiters with the same Name and Table share their
	// budgets. It has at most 200 bytes and no colon. It defaults to the limit's Name; one of the two is required.
	Name string

	// LimitFor returns a key's limit. It is called for each decision. The zero Limit means the
	// limit from New or SetLimit, and a limit without a name gets that limit's name. Concurrent
	// decisions on a key share a call, and its result. If nil, all keys have New's limit.
	LimitFor func(key string) ratelimit.Limit

	// Timeout bounds one call, including the wait for a connection. It
	// defaults to 1 s. If negative, only the context bounds a call.
	Timeout time.Duration

	// OnDecision is called after each Allow, Take, Reserve and Wait, on the caller's goroutine. If nil, nothing is called.
	OnDecision func(ratelimit.Event[string])
}

const (
	defaultTable   = "rate_limit"
	defaultTimeout = time.Second

	maxName = 200
	maxKey  = 1024

	// maxLog bounds Rate.Units of a sliding log and of units in use, because a key's row contains all its spendings.
	maxLog = 10_000
)

// tableName matches the permitted names of tables. They are not quoted in statements.
var tableName = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]*\.)?[A-Za-z_][A-Za-z0-9_]*$`)

// complete fills in the defaults, and returns the first fault.
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
	if db == nil {
		return optional.Nil("sqllimit: New: db")
	}
	if err := optional.Constant("sqllimit: Options.Dialect", o.Dialect, dialects-1, "PostgreSQL or MySQL"); err != nil {
		return err
	}
	switch {
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
