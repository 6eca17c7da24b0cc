package sqlsource

import "embed"

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

// Migration returns the statements that make the tables of packages sqlsource and audit. Run them once.
func (d Dialect) Migration() string {
	files := [...]string{"postgresql.sql", "mysql.sql", "sqlite.sql"}
	if int(d) >= len(files) {
		return ""
	}
	text, err := migrations.ReadFile("migrations/" + files[d])
	if err != nil {
		panic(err) // the file is part of the program
	}
	return string(text)
}
