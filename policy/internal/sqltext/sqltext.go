// Package sqltext has the differences between databases that the statements of packages sqlsource and audit meet.
package sqltext

import "fmt"

// The databases, by the numbers of package sqlsource's dialects.
const (
	PostgreSQL = iota
	MySQL
	SQLite

	count = iota
)

// Check returns an error for a dialect that does not exist.
func Check(dialect uint8) error {
	if dialect >= count {
		return fmt.Errorf("policy: Dialect is %d, want PostgreSQL, MySQL or SQLite", dialect)
	}
	return nil
}

// Quote returns a name that may be a word of the language.
func Quote(dialect uint8, name string) string {
	if dialect == MySQL {
		return "`" + name + "`"
	}
	return `"` + name + `"`
}

// Place returns the i-th place for an argument, from 1.
func Place(dialect uint8, i int) string {
	if dialect == PostgreSQL {
		return fmt.Sprintf("$%d", i)
	}
	return "?"
}
