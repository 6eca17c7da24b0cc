package audit

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policy/internal/joined"
	"github.com/weir-go/ratelimit/policy/internal/sqltext"
	"github.com/weir-go/ratelimit/policy/sqlsource"
)

// sweepRows is the number of rows that one statement deletes, so that none locks the table for long.
const sweepRows = 1000

// sweep deletes the rows that are older than [Options.Keep].
func (a *Log) sweep(ctx context.Context) error {
	if a.opts.Keep < 0 {
		return nil
	}
	flushed := time.Now()
	before := flushed.Add(-a.opts.Keep).UTC()
	for {
		n, err := a.sweepBatch(ctx, before)
		if err != nil {
			return fmt.Errorf("policy/audit: %w", err)
		}
		if n < sweepRows {
			return nil
		}
		if time.Since(flushed) >= a.opts.Every { // to delete millions takes long, and new rows do not wait for it
			_ = a.Flush(ctx)
			flushed = time.Now()
		}
	}
}

func (a *Log) sweepBatch(ctx context.Context, before time.Time) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, a.opts.Timeout)
	defer cancel()
	old := ` WHERE last_at < ` + a.place(1)
	some := fmt.Sprint(old, ` LIMIT `, sweepRows)
	statement := `DELETE FROM rate_limit_violation`
	switch a.opts.Dialect {
	case sqlsource.MySQL:
		statement += some
	case sqlsource.SQLite:
		statement += ` WHERE rowid IN (SELECT rowid FROM rate_limit_violation` + some + `)`
	default: // in a partitioned table, rows of several partitions have one ctid
		statement += old + ` AND ctid IN (SELECT ctid FROM rate_limit_violation` + some + `)`
	}
	conn, err := a.db.Conn(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	result, err := conn.ExecContext(ctx, statement, before)
	if err == nil && a.opts.Dialect == sqlsource.MySQL { // whose sessions may be without autocommit
		_, err = conn.ExecContext(ctx, `COMMIT`)
	}
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// Violation is a row: the denials of a key by a rule in one minute.
type Violation struct {
	policy.Denials
	FirstAt, LastAt time.Time
	// Of the last denial.
	User, Route, IP string
	Cost, Remaining int
	RetryAfter      time.Duration
	Degraded        bool
}

// Limited returns the keys denied since a time, also by shadows, most denials first, n at most.
func (a *Log) Limited(ctx context.Context, since time.Time, n int) ([]policy.Denials, error) {
	key := a.quote("key")
	return a.denials(ctx, `SELECT rule, `+key+`, SUM(count) FROM rate_limit_violation WHERE last_at >= `+a.place(1)+
		` GROUP BY rule, `+key+` ORDER BY SUM(count) DESC, rule, `+key+` LIMIT `+a.place(2), since.UTC(), max(0, n))
}

// Shadowed returns the keys that a shadow rule would have denied since a time, most denials first, n at most. It needs
// [Options.Shadows].
func (a *Log) Shadowed(ctx context.Context, rule string, since time.Time, n int) ([]policy.Denials, error) {
	key := a.quote("key")
	return a.denials(ctx, `SELECT rule, `+key+`, SUM(count) FROM rate_limit_violation WHERE rule = `+a.place(1)+` AND last_at >= `+a.place(2)+
		` GROUP BY rule, `+key+` ORDER BY SUM(count) DESC, `+key+` LIMIT `+a.place(3), shadowPrefix+rule, since.UTC(), max(0, n))
}

// ByRule returns the number of denials of each rule between two times, most denials first.
func (a *Log) ByRule(ctx context.Context, from, to time.Time) ([]policy.Denials, error) {
	return a.denials(ctx, `SELECT rule, '', SUM(count) FROM rate_limit_violation WHERE last_at >= `+a.place(1)+` AND last_at < `+a.place(2)+
		` GROUP BY rule ORDER BY SUM(count) DESC, rule`, from.UTC(), to.UTC())
}

// OfKey returns the rows of a key since a time, latest first, n at most. The key has a value for each attribute of the
// rule's Key, unhashed. With MySQL the data source needs parseTime=true.
func (a *Log) OfKey(ctx context.Context, key []string, since time.Time, n int) (all []Violation, err error) {
	q := a.quote
	err = a.query(ctx, func(rows *sql.Rows) error {
		var v Violation
		var retry float64
		err := rows.Scan(&v.Rule, &v.Key, &v.Count, &v.User, &v.Route, &v.IP, &v.Cost, &v.Remaining, &retry, &v.Degraded, &v.FirstAt, &v.LastAt)
		v.Rule, v.Shadow = strings.CutPrefix(v.Rule, shadowPrefix)
		v.RetryAfter = time.Duration(retry * float64(time.Second))
		all = append(all, v)
		return err
	}, `SELECT rule, `+q("key")+`, count, `+q("user")+`, route, ip, cost, remaining, retry_after, degraded, first_at, last_at
		FROM rate_limit_violation WHERE `+q("key")+` = `+a.place(1)+` AND last_at >= `+a.place(2)+` ORDER BY last_at DESC LIMIT `+a.place(3),
		a.private(joined.Key(key)), since.UTC(), max(0, n))
	return all, err
}

func (a *Log) denials(ctx context.Context, query string, args ...any) (all []policy.Denials, err error) {
	err = a.query(ctx, func(rows *sql.Rows) error {
		var d policy.Denials
		err := rows.Scan(&d.Rule, &d.Key, &d.Count)
		d.Rule, d.Shadow = strings.CutPrefix(d.Rule, shadowPrefix)
		all = append(all, d)
		return err
	}, query, args...)
	return all, err
}

func (a *Log) query(ctx context.Context, scan func(*sql.Rows) error, query string, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, a.opts.Timeout)
	defer cancel()
	tx, err := a.db.BeginTx(ctx, nil) // without autocommit, a query by itself would begin a transaction that never ends
	if err != nil {
		return fmt.Errorf("policy/audit: %w", err)
	}
	defer tx.Rollback() // it has only read
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return fmt.Errorf("policy/audit: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return fmt.Errorf("policy/audit: %w", err)
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("policy/audit: %w", err)
	}
	return nil
}

func (a *Log) quote(name string) string { return sqltext.Quote(uint8(a.opts.Dialect), name) }
func (a *Log) place(i int) string       { return sqltext.Place(uint8(a.opts.Dialect), i) }
