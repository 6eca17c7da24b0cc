package sqllimit

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"time"
)

// sweeper decides when rows are deleted, and which.
type sweeper struct {
	mu       sync.Mutex // guards the fields below
	running  bool
	began    time.Time // the beginning of lowest's period
	lowest   int64     // the lowest reading of the database's clock since then
	until    int64     // the lowest reading of the whole period before
	known    bool      // there was such a period
	more     bool      // the last query was full, so there may be more rows
	inserted int       // inserted rows since the last sweep
}

// sweepEach is how often a process looks for rows to delete. It deletes a row only if the row had ended
// at every reading during such an interval. So a leap of the clock forward and back deletes nothing.
const sweepEach = 5 * time.Second

// written records a write at a reading of the database's clock. From time to time it
// starts a sweep: more often if many rows were inserted, or if there was more to delete.
func (l *Limiter) written(inserted bool, reading int64) {
	s := &l.sweeper
	s.mu.Lock()
	defer s.mu.Unlock()
	if inserted {
		s.inserted++
	}
	now := time.Now()
	if s.began.IsZero() {
		s.began, s.lowest = now, reading
	}
	s.lowest = min(s.lowest, reading)
	due := now.Sub(s.began) >= sweepEach
	if due {
		s.until, s.known = s.lowest, true
		s.began, s.lowest = now, reading
	}
	if s.running || !s.known || !due && !s.more && s.inserted < sweepRows/2 {
		return
	}
	s.running, s.inserted = true, 0
	go func(until int64) {
		ctx, end := context.WithTimeout(context.Background(), sweepEach)
		defer end()
		n, err := l.sweep(ctx, until)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.running, s.more = false, err == nil && n == sweepRows
	}(s.until)
}

// keyRow is a row with its key.
type keyRow struct {
	key []byte
	row
}

// sweep deletes up to a hundred rows of the limiter's name that had ended at a reading of the
// database's clock. A row must have ended under its own limit, because another process may have charged
// it under a longer one. It must also have ended under the key's limit here, because a changed limit
// counts the old one's spending as far as it is not regained. sweep returns how many rows were due.
func (l *Limiter) sweep(ctx context.Context, until int64) (n int, err error) {
	s := &l.store
	_, err = s.transact(ctx, s.db.BeginTx, func(tx *sql.Tx) error {
		due, err := s.rows(ctx, tx, s.sql.due, until, []byte(l.space), behind(l.space))
		if n = len(due); err != nil || n == 0 {
			return errors.Join(err, errNothing)
		}
		var gone []any
		for _, d := range due {
			d.reading = until
			if ends := l.ends(d); ends <= until {
				gone = append(gone, d.key)
			} else if _, err = tx.ExecContext(ctx, s.sql.postpone, ends, d.key); err != nil {
				return err
			}
		}
		if len(gone) > 0 {
			_, err = tx.ExecContext(ctx, s.sql.remove+s.dialect.list(len(gone)), gone...)
		}
		return err
	})
	return n, err
}

// ends returns the instant when a due row may be deleted. If it is not known, or
// if LimitFor panics, it is a day later: no caller could recover the panic here.
func (l *Limiter) ends(r keyRow) (at int64) {
	unknown := r.reading + mostKept
	defer func() {
		if recover() != nil {
			at = unknown
		}
	}()
	p, err := l.planFor(strings.TrimPrefix(string(r.key), l.space))
	if err != nil {
		return unknown
	}
	a, err := open(r.row, p)
	switch {
	case err != nil:
		return unknown
	case a.plan == nil: // the key was reset
		return r.reading
	}
	ends, err := a.ends(a.plan)
	if err == nil && p.tracks() && p.text != a.plan.text {
		var here int64
		here, err = a.ends(p)
		ends = max(ends, here)
	}
	if err != nil {
		return unknown
	}
	return ends
}

// behind returns the first key after all keys of a space. A space ends with a colon.
func behind(space string) []byte {
	b := []byte(space)
	b[len(b)-1]++
	return b
}

// rows runs a query for rows with their keys.
func (s *store) rows(ctx context.Context, q querier, query string, args ...any) (all []keyRow, err error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		r, reading := keyRow{row: row{found: true}}, sql.NullInt64{}
		if err = rows.Scan(&reading, &r.key, &r.at, &r.state); err != nil {
			return nil, err
		}
		if r.reading = reading.Int64; !reading.Valid {
			return nil, errAutocommit
		}
		all = append(all, r)
	}
	return all, rows.Err()
}
