package policy

import (
	"embed"
	"fmt"
)

// Dialect is a database's way of writing SQL.
type Dialect uint8

// The dialects that are known. The zero Dialect is PostgreSQL.
const (
	PostgreSQL Dialect = iota
	MySQL
	SQLite

	dialects = iota
)

var dialectNames = [dialects]string{"postgresql", "mysql", "sqlite"}

// String returns the dialect's name in lower case.
func (d Dialect) String() string {
	if d >= dialects {
		return fmt.Sprintf("dialect(%d)", uint8(d))
	}
	return dialectNames[d]
}

func (d Dialect) check() error {
	if d >= dialects {
		return fmt.Errorf("policy: Dialect is %d, want PostgreSQL, MySQL or SQLite", uint8(d))
	}
	return nil
}

//go:embed migrations/*.sql
var migrations embed.FS

// Migration returns the statements that make the tables of [SQL] and [Audit], "" for a
// dialect that does not exist. They are run once, by whatever runs your migrations.
func (d Dialect) Migration() string {
	text, err := migrations.ReadFile("migrations/" + d.String() + ".sql")
	if err != nil {
		return ""
	}
	return string(text)
}

// quote returns a name that may be a word of the language.
func (d Dialect) quote(name string) string {
	if d == MySQL {
		return "`" + name + "`"
	}
	return `"` + name + `"`
}

// place returns the i-th place for an argument, from 1.
func (d Dialect) place(i int) string {
	if d == PostgreSQL {
		return fmt.Sprintf("$%d", i)
	}
	return "?"
}
