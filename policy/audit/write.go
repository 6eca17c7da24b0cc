package audit

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/weir-go/ratelimit/internal/wait"
	"github.com/weir-go/ratelimit/sqllimit"
)

// batch is how many rows one transaction writes.
const batch = 200

// Flush writes the waiting rows, for at most Timeout. After an error, the remaining rows wait for the next
// attempt. If the database refuses a row twice and accepts another one in between, the row is dropped.
func (a *Log) Flush(parent context.Context) error {
	a.mustBeMade()
	parent = wait.OrBackground(parent)
	ctx, cancel := context.WithTimeout(parent, a.opts.Timeout)
	defer cancel()
	select {
	case a.writing <- struct{}{}:
	default:
		select {
		case a.writing <- struct{}{}:
		case <-ctx.Done():
			return fmt.Errorf("policy/audit: another Flush is under way: %w", ctx.Err())
		}
	}
	rows, err := a.take(), error(nil)
	for len(rows) > 0 && err == nil {
		n := min(batch, len(rows))
		if err = a.write(ctx, rows[:n]); err == nil {
			rows = rows[n:]
		}
	}
	a.giveBack(rows)
	why := cmp.Or(err, a.blamed)
	a.blamed = nil
	a.note(why)
	<-a.writing
	a.report(parent, why)
	return err
}

// take removes the waiting rows from the queue and returns them, sorted by key: so two processes writing
// the same rows lock them in the same order. Refused rows come last, so they do not delay others.
func (a *Log) take() []*violation {
	a.mu.Lock()
	defer a.mu.Unlock()
	rows := make([]*violation, 0, len(a.pending))
	for _, v := range a.pending {
		rows = append(rows, v)
	}
	clear(a.pending)
	a.inFlight = len(rows)
	slices.SortFunc(rows, func(v, w *violation) int {
		return cmp.Or(cmp.Compare(v.refusedAt, w.refusedAt), cmp.Compare(v.Rule, w.Rule), cmp.Compare(v.Key, w.Key), cmp.Compare(v.minute, w.minute))
	})
	return rows
}

// giveBack puts rows that were neither written nor dropped back into the queue. Nothing is in flight afterwards.
func (a *Log) giveBack(rows []*violation) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.inFlight = 0
	for _, v := range rows {
		if !v.done {
			a.mergeLocked(v)
		}
	}
}

// note records an attempt's result. It must be called before the next attempt begins.
func (a *Log) note(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stats.LastError = err
}

// report logs an attempt's result.
func (a *Log) report(ctx context.Context, err error) {
	a.mu.Lock()
	quiet := err == nil || ctx.Err() != nil || time.Since(a.logged) < time.Second
	if !quiet {
		a.logged = time.Now()
	}
	dropped, waiting := a.stats.Dropped, len(a.pending)
	a.mu.Unlock()
	if !quiet {
		a.opts.Logger.Warn("policy: denials could not be written", slog.Any("error", err),
			slog.Int("waiting", waiting), slog.Uint64("dropped", dropped))
	}
}

// write writes rows in one transaction. If the transaction fails although the database
// answers in time, one row may be the cause. Then write writes the rows one by one.
func (a *Log) write(ctx context.Context, rows []*violation) error {
	err := a.insert(ctx, rows)
	if err == nil {
		a.finish(rows, &a.stats.Written)
		return nil
	}
	if len(rows) == 1 || a.lost(ctx) {
		return err
	}
	return a.writeSingly(ctx, rows, err)
}

// hopeless is the number of consecutive refusals after which the rows are not regarded as the cause.
const hopeless = 10

// writeSingly writes rows one by one. It drops a row only if the row is refused, another row is accepted, and
// the row is refused again. The remaining rows wait if the connection is lost, or if the database refuses each
// row from some row on, for example because a disk is full or a table is locked. Then writeSingly returns whole.
func (a *Log) writeSingly(ctx context.Context, rows []*violation, whole error) error {
	var refused []*violation
	var good violation
	for run := 0; len(rows) > 0; rows = rows[1:] {
		v := rows[0]
		err := a.insert(ctx, []*violation{v})
		if err == nil {
			a.finish([]*violation{v}, &a.stats.Written)
			good, run = *v, 0
			continue
		}
		if a.lost(ctx) {
			return whole
		}
		if !a.blame(v, err) {
			refused = append(refused, v)
		}
		if run++; run == hopeless {
			return whole
		}
	}
	if good.Count > 0 && len(refused) > 0 { // check with an empty row whether the database still accepts rows
		good.Count = 0
		if a.insert(ctx, []*violation{&good}) == nil {
			a.taken++
		}
	}
	waiting := false
	for _, v := range refused {
		if v.refusedAt > a.taken {
			waiting = true // no row was accepted since
			continue
		}
		switch err := a.insert(ctx, []*violation{v}); {
		case err == nil:
			a.finish([]*violation{v}, &a.stats.Written)
		case a.lost(ctx):
			return whole
		default:
			a.blame(v, err)
		}
	}
	if waiting {
		return whole
	}
	return nil
}

// blame records that a row was refused. At the second refusal, if another row was accepted in between, it drops the row
// and reports true. It keeps the reason for Flush, because the other rows are written and so nothing else would report it.
func (a *Log) blame(v *violation, err error) bool {
	if v.refusedAt == 0 {
		v.refusedAt = a.taken + 1
		return false
	}
	if v.refusedAt > a.taken {
		return false
	}
	a.finish([]*violation{v}, &a.stats.Dropped)
	a.blamed = err
	return true
}

// lost reports whether no time is left, or the database does not answer.
func (a *Log) lost(ctx context.Context) bool {
	return ctx.Err() != nil || a.db.PingContext(ctx) != nil
}

// finish counts rows as written or as dropped.
func (a *Log) finish(rows []*violation, as *uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, v := range rows {
		v.done = true
		*as += uint64(v.Count)
	}
	a.inFlight -= len(rows)
	a.finished += uint64(len(rows))
	if as == &a.stats.Written {
		a.taken += uint64(len(rows))
	}
}

// insert adds rows to the table, or adds to the counts of existing rows. It writes all rows or none.
func (a *Log) insert(ctx context.Context, rows []*violation) error {
	tx, err := a.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("policy/audit: %w", err)
	}
	if err := insertAll(ctx, tx, a.upsert(), rows); err != nil {
		return fmt.Errorf("policy/audit: %w", errors.Join(err, ignoreDone(tx.Rollback())))
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("policy/audit: %w", err)
	}
	return nil
}

// ignoreDone returns nil if the error reports that the transaction has already ended.
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
		_, err := st.ExecContext(ctx, v.Rule, v.Key, time.Unix(v.minute, 0).UTC(), v.User, v.Route, v.IP, v.Cost, v.Remaining,
			v.RetryAfter.Seconds(), v.Degraded, v.FirstAt.UTC(), v.LastAt.UTC(), v.Count)
		if err != nil {
			return err
		}
	}
	return nil
}

// upsert returns the statement that inserts a row or adds to its count.
func (a *Log) upsert() string {
	key, user := a.quote("key"), a.quote("user")
	places := make([]string, 13)
	for i := range places {
		places[i] = a.place(i + 1)
	}
	s := `INSERT INTO rate_limit_violation (rule, ` + key + `, minute, ` + user + `, route, ip, cost, remaining, retry_after,
		degraded, first_at, last_at, count) VALUES (` + strings.Join(places, ", ") + `) `
	of := func(column string) string { return column + ` = excluded.` + column + `, ` }
	total := `count = rate_limit_violation.count + excluded.count`
	if a.opts.Dialect == sqllimit.MySQL {
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
