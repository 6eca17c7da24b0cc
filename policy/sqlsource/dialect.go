package sqlsource

import (
	"embed"
	"strings"

	"github.com/weir-go/ratelimit/sqllimit"
)

// SQLite is a dialect for rules and package audit. Package sqllimit does not support it.
const SQLite = sqllimit.MySQL + 1

//go:embed migrations/*.sql
var migrations embed.FS

// Migration returns the statements to create the tables for packages sqlsource and audit, or nil
// for an unknown dialect. Run them once, in order: call [database/sql.DB.ExecContext] for each.
func Migration(dialect sqllimit.Dialect) (statements []string) {
	files := [...]string{"postgresql.sql", "mysql.sql", "sqlite.sql"}
	if int(dialect) >= len(files) {
		return nil
	}
	text, err := migrations.ReadFile("migrations/" + files[dialect])
	if err != nil {
		panic(err) // the file is embedded in the program
	}
	for paragraph := range strings.SplitSeq(string(text), "\n\n") {
		if paragraph = strings.TrimSpace(paragraph); strings.Contains(paragraph, ";") && !strings.HasPrefix(paragraph, "--") {
			statements = append(statements, paragraph)
		}
	}
	return statements
}
