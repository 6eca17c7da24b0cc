// Package sqltext handles differences between databases in the statements of packages sqlsource and audit.
package sqltext

import (
	"fmt"

	"github.com/weir-go/ratelimit/internal/optional"
)

// The databases, with the numbers of package sqlsource's dialects.
const (
	PostgreSQL = iota
	MySQL
	SQLite

	count = iota
)

// Check returns an error for an unknown dialect in the option with the given name.
func Check(name string, dialect uint8) error {
	return optional.Constant(name, dialect, count-1, "PostgreSQL, MySQL or SQLite")
}

// Quote quotes a column's name, because the name may be a keyword.
func Quote(dialect uint8, name string) string {
	if dialect == MySQL {
		return "`" + name + "`"
	}
	return `"` + name + `"`
}

// Place returns the i-th argument's placeholder, counted from 1.
func Place(dialect uint8, i int) string {
	if dialect == PostgreSQL {
		return fmt.Sprintf("$%d", i)
	}
	return "?"
}
