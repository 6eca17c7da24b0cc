package sqlsource

import (
	"embed"
	"strings"
)

// Dialect is a kind of database. The zero Dialect is PostgreSQL. MariaDB is MySQL.
type Dialect uint8

// The dialects.
const (
	PostgreSQL Dialect = iota
	MySQL
	SQLite
)

//go:embed migrations/*.sql
var migrations embed.FS

// Migration returns the statements that create the tables of packages sqlsource and audit, or nil for a dialect that does not
// exist. Run them once, one by one: for each statement, call [database/sql.DB.ExecContext].
func (d Dialect) Migration() (statements []string) {
	files := [...]string{"postgresql.sql", "mysql.sql", "sqlite.sql"}
	if int(d) >= len(files) {
		return nil
	}
	text, err := migrations.ReadFile("migrations/" + files[d])
	if err != nil {
		panic(err) // the file is part of the program
	}
	for paragraph := range strings.SplitSeq(string(text), "\n\n") {
		if paragraph = strings.TrimSpace(paragraph); strings.Contains(paragraph, ";") && !strings.HasPrefix(paragraph, "--") {
			statements = append(statements, paragraph)
		}
	}
	return statements
}
