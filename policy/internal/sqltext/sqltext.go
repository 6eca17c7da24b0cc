// Package sqltext handles differences between databases in the statements of packages sqlsource and audit.
package sqltext

import "fmt"

// The databases, with the numbers of package sqlsource's dialects.
const (
	PostgreSQL = iota
	MySQL
	SQLite

	count = iota
)

// Check returns an error for an unknown dialect.
func Check(dialect uint8) error {
	if dialect >= count {
		return fmt.Errorf("policy: Dialect is %d, want PostgreSQL, MySQL or SQLite", dialect)
	}
	return nil
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
