package sqllimit

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/weir-go/ratelimit/internal/outcome"
)

// queue runs a stack's requests in transactions. Requests for the same key run one after the other. While a transaction on
// a key is under way, the key's requests gather, and share the next one. Other requests have transactions of their own.
//
// A transaction locks its rows one by one, in the order of the bytes of their keys, and writes them in
// that order. So two transactions never wait for each other, even if their layers are in different orders.
type queue struct {
	store   store
	timeout time.Duration // the limiters' shortest timeout; if negative, there is none

	mu      sync.Mutex // guards the fields below
	waiting []*demand
	busy    map[string]bool // the rows of running transactions
}

// demand is one request: a change of several rows, all or nothing. Its results may be read once done is closed.
type demand struct {
	pending

	parts  []*part
	rows   []string // each row once, in order
	change func(rows map[string]*account) error
}

func newDemand(ctx context.Context, parts []*part, change func(map[string]*account) error) *demand {
	d := &demand{parts: parts, change: change, pending: pending{ctx: ctx}}
	for _, p := range parts {
		d.rows = append(d.rows, p.row)
	}
	slices.Sort(d.rows)
	d.rows = slices.Compact(d.rows)
	return d
}

// run carries a demand out.
func (q *queue) run(d *demand) error {
	if err := d.ctx.Err(); err != nil {
		return ended(err, false)
	}
	return d.await(q.timeout, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.waiting = append(q.waiting, d)
		q.begin()
	})
}

// begin starts transactions for the waiting demands whose rows are free. A waiting demand
// keeps its rows from later demands, so it is not overtaken forever. The lock is held.
func (q *queue) begin() {
	if q.busy == nil {
		q.busy = make(map[string]bool)
	}
	claimed := make(map[string]bool)
	var later []*demand
	var groups []*group
	of := make(map[string]*group)
	for _, d := range q.waiting {
		var g *group
		blocked := false
		for _, row := range d.rows {
			switch other := of[row]; {
			case q.busy[row] || claimed[row] || other != nil && g != nil && other != g:
				blocked = true
			case other != nil:
				g = other
			}
		}
		if blocked || g != nil && len(g.demands) == mostTogether {
			for _, row := range d.rows {
				claimed[row] = true
			}
			later = append(later, d)
			continue
		}
		if g == nil {
			g = &group{q: q}
			groups = append(groups, g)
		}
		g.demands = append(g.demands, d)
		for _, row := range d.rows {
			of[row] = g
		}
	}
	q.waiting = later
	for row := range of {
		q.busy[row] = true
	}
	for _, g := range groups {
		go g.serve()
	}
}

// mostTogether is the maximum number of demands in a transaction.
const mostTogether = 128

// group is demands in one transaction.
type group struct {
	q       *queue
	demands []*demand
	rows    []string         // all demands' rows, in order
	parts   map[string]*part // one part for each row
}

// serve carries out the demands, and then begins the next ones.
func (g *group) serve() {
	g.parts = make(map[string]*part)
	for _, d := range g.demands {
		g.rows = append(g.rows, d.rows...)
		for _, p := range d.parts {
			g.parts[p.row] = p
		}
	}
	slices.Sort(g.rows)
	g.rows = slices.Compact(g.rows)
	ctx, end := untilLast(g.q.timeout, g.demands)
	sent, err := g.run(ctx)
	end()
	q := g.q
	if err != nil && errors.Is(err, context.DeadlineExceeded) && q.timeout >= 0 {
		err = fmt.Errorf("%w: %w", late(q.timeout), err)
	}
	for _, d := range g.demands {
		if d.fails(err) {
			d.err = q.store.classify(err, sent && d.changed)
		}
		close(d.done)
	}
	runtime.Gosched() // answered callers may send another demand, and share the next transaction
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, row := range g.rows {
		delete(q.busy, row)
	}
	q.begin()
}

// run carries out the demands in a transaction, and repeats it if another process
// was first. With an error, sent reports whether changes may have been made.
func (g *group) run(ctx context.Context) (sent bool, err error) {
	for lost, broken := 0, 0; ; {
		var t transaction
		sent, err = g.q.store.onConn(ctx, func(conn *sql.Conn) (bool, error) {
			return g.q.store.transact(ctx, conn.BeginTx, func(tx *sql.Tx) error {
				t = transaction{group: g, tx: tx}
				return t.run(ctx)
			})
		})
		switch {
		case err == nil:
			for row, inserted := range t.written {
				g.parts[row].limiter.written(inserted, t.reading)
			}
			return false, nil
		case err == errNothing:
			return false, nil
		case isBroken(err) && !sent && broken < stale && ctx.Err() == nil:
			broken++
		case err != errAgain && !conflict(err):
			return sent, err
		case t.missed:
			if lost++; lost == mostLost {
				return false, errLost
			}
		default:
			lost = 0
		}
		g.recall()
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
	}
}

// recall marks the changes as unwritten.
func (g *group) recall() {
	for _, d := range g.demands {
		d.recall()
	}
}

// transaction is one attempt to carry out a group.
type transaction struct {
	*group
	tx      *sql.Tx
	reading int64
	missed  bool            // a row did not exist, but could not be inserted
	written map[string]bool // rows, and whether they were inserted
}

func (t *transaction) run(ctx context.Context) error {
	found := make([]row, len(t.rows))
	for i, key := range t.rows {
		r, err := t.q.store.lockOrMissing(ctx, t.tx, []byte(key))
		if err != nil {
			return err
		}
		found[i] = r
	}
	t.reading = latest(found)
	accounts := t.open(found, t.reading)
	for _, d := range t.demands {
		if !d.stage.CompareAndSwap(waiting, sent) {
			continue // its caller has left
		}
		before := edits(d, accounts)
		if d.err = d.change(accounts); d.err != nil {
			d.err = t.q.store.classify(d.err, false)
		}
		d.answered, d.after, d.changed = true, before > 0, edits(d, accounts) > before
		if !d.changed {
			d.stage.CompareAndSwap(sent, waiting)
		}
	}
	t.written = make(map[string]bool)
	for _, key := range t.rows {
		a := accounts[key]
		if a == nil || a.edits == 0 {
			continue
		}
		next := a.next()
		if next.equals(a.row) {
			continue
		}
		switch ok, err := t.q.store.write(ctx, t.tx, []byte(key), a.row, next); {
		case err != nil:
			return err
		case !ok:
			t.missed = !a.found
			return errAgain
		}
		t.written[key] = !a.found
	}
	if len(t.written) == 0 {
		return errNothing
	}
	return nil
}

// latest returns the clock's latest reading. All rows are decided on at it.
func latest(rows []row) int64 {
	reading := rows[0].reading
	for _, r := range rows {
		reading = max(reading, r.reading)
	}
	return reading
}

// open returns rows' accounts, at one reading of the clock. A damaged row has no account.
func (g *group) open(found []row, reading int64) map[string]*account {
	accounts := make(map[string]*account, len(found))
	for i, r := range found {
		r.reading = reading
		if a, err := open(r, g.parts[g.rows[i]].plan); err == nil {
			accounts[g.rows[i]] = a
		}
	}
	return accounts
}

// edits counts the changes of a demand's rows.
func edits(d *demand, accounts map[string]*account) (n int) {
	for _, row := range d.rows {
		if a := accounts[row]; a != nil {
			n += a.edits
		}
	}
	return n
}

// lockOrMissing reads a row and locks it, if it exists. If another process inserts the row
// in between, it must not stay unlocked: its update would wait for a lock out of order.
func (s *store) lockOrMissing(ctx context.Context, tx *sql.Tx, key []byte) (r row, err error) {
	for range mostLost {
		r = row{}
		if r.found, err = scan(ctx, tx, s.sql.lock, key, &r.reading, &r.at, &r.state, &r.expires); err != nil || r.found {
			return r, err
		}
		if r, err = s.read(ctx, tx, key); err != nil || !r.found {
			return r, err
		}
	}
	return r, errAgain
}

// look carries out a demand without changes, and without a transaction.
func (q *queue) look(d *demand) error {
	if err := d.ctx.Err(); err != nil {
		return ended(err, false)
	}
	ctx, end := d.ctx, func() {}
	if q.timeout >= 0 {
		ctx, end = context.WithTimeout(ctx, q.timeout)
	}
	defer end()
	g := &group{q: q, rows: d.rows, parts: make(map[string]*part)}
	for _, p := range d.parts {
		g.parts[p.row] = p
	}
	found := make([]row, len(d.rows))
	for i, key := range d.rows {
		conn, r, err := q.store.connected(ctx, []byte(key))
		if err != nil {
			if cause := outcome.EndOf(d.ctx); cause != nil {
				return ended(cause, false)
			}
			if errors.Is(err, context.DeadlineExceeded) && q.timeout >= 0 {
				err = fmt.Errorf("%w: %w", late(q.timeout), err)
			}
			return q.store.classify(err, false)
		}
		_ = conn.Close()
		found[i] = r
	}
	if err := d.change(g.open(found, latest(found))); err != nil {
		return q.store.classify(err, false)
	}
	return nil
}

// isBroken reports whether an error is due to a broken connection.
func isBroken(err error) bool {
	return err != errAgain && err != errNothing && sqlState(err) == "" && !hopeless(err) && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled)
}

// onConn runs f on a connection. If the connection proves to be broken, onConn closes it for good.
func (s *store) onConn(ctx context.Context, f func(conn *sql.Conn) (bool, error)) (sent bool, err error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	if sent, err = f(conn); err != nil && isBroken(err) {
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	}
	return sent, err
}
