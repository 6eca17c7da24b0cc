package policy

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"
)

// batch is how many rows one transaction writes.
const batch = 200

// Flush writes what waits. An error says why some of it could not be written; those rows wait
// for the next attempt. A row that the database refuses while it takes others is dropped and
// counted. If a connection is lost while a transaction commits, its rows may count twice.
func (a *AuditLog) Flush(ctx context.Context) error {
	a.writing.Lock()
	defer a.writing.Unlock()
	rows := a.take()
	for len(rows) > 0 {
		n := min(batch, len(rows))
		if err := a.write(ctx, rows[:n]); err != nil {
			a.giveBack(rows)
			a.report(ctx, err)
			return err
		}
		rows = rows[n:]
	}
	a.report(ctx, nil)
	return nil
}

// take takes out what waits, in the order of its keys: two processes that write the same rows
// lock them in one order.
func (a *AuditLog) take() []*violation {
	a.mu.Lock()
	defer a.mu.Unlock()
	rows := make([]*violation, 0, len(a.pending))
	for _, v := range a.pending {
		rows = append(rows, v)
	}
	clear(a.pending)
	slices.SortFunc(rows, func(v, w *violation) int {
		return cmp.Or(cmp.Compare(v.rule, w.rule), cmp.Compare(v.key, w.key), cmp.Compare(v.minute, w.minute))
	})
	return rows
}

// giveBack lets rows wait again.
func (a *AuditLog) giveBack(rows []*violation) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, v := range rows {
		if !v.written {
			a.mergeLocked(v)
		}
	}
}

// report takes note of how an attempt has ended.
func (a *AuditLog) report(ctx context.Context, err error) {
	a.mu.Lock()
	a.stats.LastError = err
	quiet := err == nil || ctx.Err() != nil || time.Since(a.logged) < time.Second
	if !quiet {
		a.logged = time.Now()
	}
	dropped, waiting := a.stats.Dropped, len(a.pending)
	a.mu.Unlock()
	if !quiet {
		a.opts.Logger.Warn("policy: denials could not be written", slog.Any("err", err),
			slog.Int("waiting", waiting), slog.Uint64("dropped", dropped))
	}
}

// write writes rows in one transaction. If that fails although the database answers, one of
// them may be to blame: then each is written by itself.
func (a *AuditLog) write(ctx context.Context, rows []*violation) error {
	err := a.insert(ctx, rows)
	if err == nil {
		a.wrote(rows)
		return nil
	}
	if len(rows) == 1 || a.ping(ctx) != nil {
		return err
	}
	return a.writeSingly(ctx, rows, err)
}

// writeSingly writes rows one by one. It returns the error of the whole, and leaves all rows
// to be tried again, if no row is taken: then it is not a row's fault.
func (a *AuditLog) writeSingly(ctx context.Context, rows []*violation, whole error) error {
	var good, bad []*violation
	for _, v := range rows {
		if err := a.insert(ctx, []*violation{v}); err == nil {
			good = append(good, v)
		} else if bad = append(bad, v); len(good) == 0 && len(bad) == 10 || a.ping(ctx) != nil {
			break
		}
	}
	a.wrote(good)
	if len(good) == 0 || len(good)+len(bad) < len(rows) {
		return whole
	}
	a.drop(bad)
	return nil
}

func (a *AuditLog) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, a.opts.Timeout)
	defer cancel()
	return a.db.PingContext(ctx)
}

func (a *AuditLog) wrote(rows []*violation) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, v := range rows {
		v.written = true
		a.stats.Written += uint64(v.count)
	}
}

func (a *AuditLog) drop(rows []*violation) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, v := range rows {
		a.stats.Dropped += uint64(v.count)
	}
}

// insert adds rows to the table, or counts up those that are there, all or none.
func (a *AuditLog) insert(ctx context.Context, rows []*violation) error {
	ctx, cancel := context.WithTimeout(ctx, a.opts.Timeout)
	defer cancel()
	tx, err := a.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("policy: audit: %w", err)
	}
	if err := insertAll(ctx, tx, upsert(a.opts.Dialect), rows); err != nil {
		return fmt.Errorf("policy: audit: %w", errors.Join(err, ignoreDone(tx.Rollback())))
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("policy: audit: %w", err)
	}
	return nil
}

// ignoreDone leaves out what says no more than that a transaction has ended already.
func ignoreDone(err error) error {
	if errors.Is(err, sql.ErrTxDone) {
		return nil
	}
	return err
}

func insertAll(ctx context.Context, tx *sql.Tx, statement string, rows []*violation) error {
	st, err := tx.PrepareContext(ctx, statement)
	if err != nil {
		return err
	}
	defer st.Close()
	for _, v := range rows {
		_, err := st.ExecContext(ctx, v.rule, v.key, time.Unix(v.minute, 0).UTC(), v.user, v.route, v.ip, v.cost, v.remaining,
			v.retryAfter.Seconds(), v.degraded, v.firstAt.UTC(), v.lastAt.UTC(), v.count)
		if err != nil {
			return err
		}
	}
	return nil
}

// upsert returns the statement that inserts a row or counts it up.
func upsert(d Dialect) string {
	key, user := d.quote("key"), d.quote("user")
	s := `INSERT INTO rate_limit_violation (rule, ` + key + `, minute, ` + user + `, route, ip, cost, remaining, retry_after,
		degraded, first_at, last_at, count) VALUES (` + d.placeholders(13) + `) `
	of := func(column string) string { return column + ` = excluded.` + column + `, ` }
	total := `count = rate_limit_violation.count + excluded.count`
	if d == MySQL {
		s += `ON DUPLICATE KEY UPDATE `
		of = func(column string) string { return column + ` = VALUES(` + column + `), ` }
		total = `count = count + VALUES(count)`
	} else {
		s += `ON CONFLICT (rule, ` + key + `, minute) DO UPDATE SET `
	}
	for _, column := range []string{user, "route", "ip", "cost", "remaining", "retry_after", "degraded", "last_at"} {
		s += of(column)
	}
	return s + total
}
