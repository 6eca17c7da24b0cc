package sqllimit

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"sync/atomic"
)

// store is a table in a database.
type store struct {
	db      *sql.DB
	dialect Dialect
	table   string
	sql     statements

	// statementLog is set once MySQL has refused to write at READ COMMITTED, as it does if binlog_format is STATEMENT.
	// From then on transactions run at REPEATABLE READ. All writes here are conditional, so they are exact at both levels.
	statementLog *atomic.Bool
}

// querier is a connection or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// With these settings and tables no decision is possible.
var (
	errSeveral    = errors.New("one key has several rows: the table lacks its primary key")
	errAutocommit = errors.New("the connection's autocommit is 0, want 1: decisions would never be committed")
	errLost       = errors.New("a row cannot be found by the key that it was inserted with: the column key is shorter than Schema's")
)

// hopeless reports whether an error persists until a setting or the table changes.
func hopeless(err error) bool {
	return errors.Is(err, errSeveral) || errors.Is(err, errAutocommit) || errors.Is(err, errLost) || errors.Is(err, errForeign)
}

// scan reads a query's one row, and reports whether there was one.
func scan(ctx context.Context, q querier, query string, key []byte, dest ...any) (bool, error) {
	rows, err := q.QueryContext(ctx, query, key)
	if err != nil {
		return false, err
	}
	defer rows.Close()
	if !rows.Next() {
		return false, rows.Err()
	}
	if err = rows.Scan(dest...); err != nil {
		return false, err
	}
	if rows.Next() {
		return false, errSeveral
	}
	return true, rows.Err()
}

// read reads a key's row, without a lock.
func (s *store) read(ctx context.Context, q querier, key []byte) (r row, err error) {
	var reading, at, expires sql.NullInt64
	found, err := scan(ctx, q, s.sql.read, key, &reading, &at, &r.state, &expires)
	if found && err == nil && !reading.Valid {
		err = errAutocommit
	}
	r.reading, r.found, r.at, r.expires = reading.Int64, at.Valid, at.Int64, expires.Int64
	return r, err
}

// readLocked reads a key's row, and locks it until the transaction ends. It locks nothing if there is no row.
func (s *store) readLocked(ctx context.Context, tx *sql.Tx, key []byte) (r row, err error) {
	r.found, err = scan(ctx, tx, s.sql.lock, key, &r.reading, &r.at, &r.state, &r.expires)
	if err != nil || r.found {
		return r, err
	}
	return s.read(ctx, tx, key)
}

// write replaces a row, and reports whether the row was still as it had been read.
func (s *store) write(ctx context.Context, q querier, key []byte, old, next row) (bool, error) {
	var result sql.Result
	var err error
	if old.found {
		result, err = q.ExecContext(ctx, s.sql.update, next.at, next.state, next.expires, key, old.at, old.state)
	} else {
		result, err = q.ExecContext(ctx, s.sql.insert, key, next.at, next.state, next.expires)
	}
	switch {
	case !old.found && mysqlCode(err) == duplicateKey:
		return false, nil // another process was first
	case err != nil:
		return false, err
	}
	n, err := result.RowsAffected()
	return n > 0, err
}

// writeWith replaces a row, and inserts others if it does: by one statement, or else in a transaction. It reports whether the row was still as
// it had been read. With an error, sent reports whether the changes may have been made.
func (s *store) writeWith(ctx context.Context, conn *sql.Conn, key []byte, old, next row, others []keyRow) (ok, sent bool, err error) {
	switch {
	case len(others) == 0:
		ok, err = s.write(ctx, conn, key, old, next)
		return ok, err != nil && !notDone(err), err
	case len(others) == 1 && old.found && s.sql.both != "":
		o := &others[0]
		result, err := conn.ExecContext(ctx, s.sql.both, next.at, next.state, next.expires, key, old.at, old.state, o.key, o.at, o.state, o.expires)
		if err != nil {
			return false, !notDone(err), err
		}
		n, err := result.RowsAffected()
		return n > 0, err != nil, err
	}
	sent, err = s.transact(ctx, conn.BeginTx, func(tx *sql.Tx) error {
		switch ok, err := s.write(ctx, tx, key, old, next); {
		case err != nil:
			return err
		case !ok:
			return errAgain
		}
		return s.insert(ctx, tx, others)
	})
	if err == errAgain {
		return false, false, nil
	}
	return err == nil, sent, err
}

// insert inserts rows. No other process inserts them.
func (s *store) insert(ctx context.Context, tx *sql.Tx, rows []keyRow) (err error) {
	for i := range rows {
		_, failed := s.write(ctx, tx, rows[i].key, row{}, rows[i].row)
		err = errors.Join(err, failed)
	}
	return err
}

// stale is how many pooled connections may prove to be broken at their first use, for example after a restart of the server.
const stale = 3

// connected takes a connection, and reads a key's row on it.
func (s *store) connected(ctx context.Context, key []byte) (conn *sql.Conn, r row, err error) {
	for tries := 0; ; tries++ {
		if conn, err = s.db.Conn(ctx); err != nil {
			return nil, r, err
		}
		if r, err = s.read(ctx, conn, key); err == nil {
			return conn, r, nil
		}
		broken := sqlState(err) == "" && !hopeless(err)
		if broken { // its driver may consider it usable
			_ = conn.Raw(func(any) error { return driver.ErrBadConn })
		}
		_ = conn.Close()
		if !broken || tries == stale || ctx.Err() != nil {
			return nil, r, err
		}
	}
}

// transact runs f in a transaction, and commits it unless f fails. With
// an error, sent reports whether the commit may have taken effect.
func (s *store) transact(ctx context.Context, begin func(context.Context, *sql.TxOptions) (*sql.Tx, error), f func(tx *sql.Tx) error) (sent bool, err error) {
	isolation := sql.LevelReadCommitted
	if s.statementLog.Load() {
		isolation = sql.LevelRepeatableRead
	}
	tx, err := begin(ctx, &sql.TxOptions{Isolation: isolation})
	if err != nil {
		return false, err
	}
	if err = f(tx); err != nil {
		_ = tx.Rollback()
		if mysqlCode(err) == statementLogged && isolation == sql.LevelReadCommitted {
			s.statementLog.Store(true)
			return s.transact(ctx, begin, f)
		}
		return false, err
	}
	if err = tx.Commit(); err != nil {
		return !notDone(err) && !errors.Is(err, sql.ErrTxDone), err
	}
	return false, nil
}
