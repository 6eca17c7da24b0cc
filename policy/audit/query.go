package audit

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policy/internal/joined"
	"github.com/weir-go/ratelimit/policy/internal/sqltext"
	"github.com/weir-go/ratelimit/policy/sqlsource"
	"github.com/weir-go/ratelimit/sqllimit"
)

// sweepRows is how many rows one statement deletes. It is small: no statement must lock the table for long.
const sweepRows = 1000

// sweep deletes rows older than [Options.Keep].
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
		if time.Since(flushed) >= a.opts.Every { // millions of rows take long to delete, and new rows must not wait for that
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
	case sqllimit.MySQL:
		statement += some
	case sqlsource.SQLite:
		statement += ` WHERE rowid IN (SELECT rowid FROM rate_limit_violation` + some + `)`
	default: // in a partitioned table several rows may share a ctid, so last_at is compared again
		statement += old + ` AND ctid IN (SELECT ctid FROM rate_limit_violation` + some + `)`
	}
	conn, err := a.db.Conn(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	result, err := conn.ExecContext(ctx, statement, before)
	if err == nil && a.opts.Dialect == sqllimit.MySQL { // MySQL's sessions may be without autocommit
		_, err = conn.ExecContext(ctx, `COMMIT`)
	}
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// Filter selects rows for [Log.Query], and can sum them up. The zero Filter selects the latest rows.
type Filter struct {
	// Since and Until bound the instant of a row's last denial: at
	// Since or later, and before Until. A zero instant means no bound.
	Since, Until time.Time
	// Rule is a rule's name. If empty, all rules are selected.
	Rule string
	// Shadows selects only denials by shadow rules. They are written if [Options.Shadows] is set.
	Shadows bool
	// Key has a value for each attribute in the rule's Key, not hashed. If nil, all keys are selected.
	Key []string
	// ByKey returns one sum for each rule and key, and ByRule one for each rule, most denials
	// first. If neither is set, rows are returned, latest first. To set both is an error.
	ByKey, ByRule bool
	// Max is the maximum number of results. It defaults to 1,000.
	Max int
}

// maxResults is the default for Filter.Max.
const maxResults = 1000

// Violation is a row in the table: a key's denials by a rule in one minute. With
// [Filter].ByKey or ByRule it is a sum. Then only Denials is set, and ByRule leaves Key empty.
type Violation struct {
	policy.Denials
	FirstAt, LastAt time.Time
	// from the last denial
	User, Route, IP string
	Cost, Remaining int
	RetryAfter      time.Duration
	Degraded        bool
}

// Query returns the rows selected by the filter, or their sums. Rows still waiting in this process are not included: see
// [Log.Flush]. With MySQL the data source needs parseTime=true to return rows. The error is the filter's or the database's.
func (a *Log) Query(ctx context.Context, f Filter) (all []Violation, err error) {
	a.mustBeMade()
	if f.ByKey && f.ByRule {
		return nil, errors.New("policy/audit: Filter has both ByKey and ByRule")
	}
	if err := optional.NotNegative("policy/audit: Filter.Max", f.Max, "the default"); err != nil {
		return nil, err
	}
	var args []any
	place := func(v any) string {
		args = append(args, v)
		return a.place(len(args))
	}
	var where []string
	if !f.Since.IsZero() {
		where = append(where, `last_at >= `+place(f.Since.UTC()))
	}
	if !f.Until.IsZero() {
		where = append(where, `last_at < `+place(f.Until.UTC()))
	}
	switch {
	case f.Rule != "" && f.Shadows:
		where = append(where, `rule = `+place(shadowPrefix+f.Rule))
	case f.Rule != "":
		where = append(where, `rule = `+place(f.Rule))
	case f.Shadows:
		where = append(where, `rule LIKE '`+shadowPrefix+`%'`)
	}
	key := a.quote("key")
	if f.Key != nil {
		where = append(where, key+` = `+place(a.private(joined.Key(f.Key))))
	}
	from := ` FROM rate_limit_violation`
	if len(where) > 0 {
		from += ` WHERE ` + strings.Join(where, ` AND `)
	}
	limit := ` LIMIT ` + place(cmp.Or(f.Max, maxResults))
	query := `SELECT rule, ` + key + `, count, ` + a.quote("user") + `, route, ip, cost, remaining, retry_after, degraded, first_at, last_at` +
		from + ` ORDER BY last_at DESC` + limit
	switch {
	case f.ByKey:
		query = `SELECT rule, ` + key + `, SUM(count)` + from + ` GROUP BY rule, ` + key + ` ORDER BY SUM(count) DESC, rule, ` + key + limit
	case f.ByRule:
		query = `SELECT rule, '', SUM(count)` + from + ` GROUP BY rule ORDER BY SUM(count) DESC, rule` + limit
	}
	err = a.query(ctx, func(rows *sql.Rows) error {
		var v Violation
		var retry float64
		to := []any{&v.Rule, &v.Key, &v.Count}
		if !f.ByKey && !f.ByRule {
			to = append(to, &v.User, &v.Route, &v.IP, &v.Cost, &v.Remaining, &retry, &v.Degraded, &v.FirstAt, &v.LastAt)
		}
		err := rows.Scan(to...)
		v.Rule, v.Shadow = strings.CutPrefix(v.Rule, shadowPrefix)
		v.RetryAfter = time.Duration(retry * float64(time.Second))
		all = append(all, v)
		return err
	}, query, args...)
	return all, err
}

func (a *Log) query(ctx context.Context, scan func(*sql.Rows) error, query string, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, a.opts.Timeout)
	defer cancel()
	tx, err := a.db.BeginTx(ctx, nil) // without autocommit, a lone query would leave a transaction open
	if err != nil {
		return fmt.Errorf("policy/audit: %w", err)
	}
	defer tx.Rollback() // the transaction only reads
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
