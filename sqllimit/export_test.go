package sqllimit

import (
	"database/sql"
	"sync"
)

// OpenFake returns a database in memory for examples.
func OpenFake(now func() int64) *sql.DB {
	f := &fakeDB{sql: PostgreSQL.statements(defaultTable), now: now, rows: map[string]row{}, locked: map[string]*fakeConn{}}
	f.freed = sync.NewCond(&f.mu)
	return sql.OpenDB(f)
}
