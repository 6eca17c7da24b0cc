package sqllimit

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/maphash"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/meter"
)

// operation is one caller's request on a key. The result may be read once done is closed.
type operation struct {
	pending

	do   func(*account, *operation) error
	plan *plan

	cost, ahead int64
	keep        meter.Keep
	peek        bool
	instead     *booking // the booking that it replaces, before others; nil if there is none
	behind      bool     // it goes behind all bookings, loose or not
	between     bool     // it may go before bookings, loose or not
	from        int64    // but not before this instant, unless the last booking is earlier
	actual      int64    // in a settlement the real cost; in an adjustment the delta

	decision ratelimit.Decision
	spending meter.Spending // the spending, made or settled; with mark and changes
	mark     uint32
	lives    bool // mark is that of the key, also after a denial
	changes  uint64
	units    *units // the units to be extended or given back
	follows  bool   // the spending of the key before and after is wanted
	followed followed
	stays    bool // in a settlement: the key stays under its limit
}

// booking is a booking in a key's row.
type booking struct {
	spending meter.Spending
	mark     uint32
	changes  uint64
}

// followed is the answer to a correction that is followed: the
// spending and the sum before and after it, and the key's state then.
type followed struct {
	gone                  bool // the key has no spending, and nothing was corrected
	before                int64
	openBefore, openAfter int64
	after                 ratelimit.Decision
}

// line holds the operations of a key that wait for the next decision.
type line struct{ operations []*operation }

// run carries out an operation, together with others of the key.
func (l *Limiter) run(ctx context.Context, key string, o *operation) error {
	o.ctx = ctx
	return o.await(l.timeout, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		k := l.lines[key]
		if k == nil {
			k = new(line)
			l.lines[key] = k
			go l.serve(key, k)
		}
		k.operations = append(k.operations, o)
	})
}

// serve carries out the operations of a key until there are none left.
func (l *Limiter) serve(key string, k *line) {
	row := []byte(l.space + key)
	for {
		l.mu.Lock()
		operations := k.operations
		if k.operations = nil; len(operations) == 0 {
			delete(l.lines, key)
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		l.together(row, operations)
		runtime.Gosched() // answered callers may send another operation, and share the next decision
	}
}

// together carries out the waiting operations of a key with one read and one write.
func (l *Limiter) together(key []byte, operations []*operation) {
	b := &batch{l: l, key: key, operations: operations}
	ctx, end := untilLast(l.timeout, operations)
	defer end()
	err, sent := b.run(ctx)
	if err != nil && errors.Is(err, context.DeadlineExceeded) && l.timeout >= 0 {
		err = fmt.Errorf("%w: %w", late(l.timeout), err)
	}
	for _, o := range operations {
		if o.fails(err) {
			o.err = l.store.classify(err, sent && o.changed)
			o.decision = ratelimit.Decision{Limit: o.decision.Limit}
		}
		close(o.done)
	}
}

// batch is the operations of one key that are written together.
type batch struct {
	l          *Limiter
	key        []byte
	operations []*operation
}

// run carries out the operations. If it returns an error, sent reports whether changes may have been made.
func (b *batch) run(ctx context.Context) (err error, sent bool) {
	conn, old, err := b.l.store.connected(ctx, b.key)
	if err != nil {
		return err, false
	}
	defer conn.Close()
	next, reading, err := b.decide(old)
	if err != nil || next == nil {
		return err, false
	}
	if !b.l.contended.lately(b.key) {
		if w := b.writeOnce(ctx, conn, old, *next, reading); w.outrun == notOutrun {
			return w.err, w.sent
		}
		b.l.contended.note(b.key)
	}
	for lost := 0; ; {
		switch w := b.writeLocked(ctx, conn); w.outrun {
		case notOutrun:
			return w.err, w.sent
		case outrunUnseen:
			if lost++; lost == mostLost {
				return errLost, false
			}
		default:
			lost = 0
		}
		if ctx.Err() != nil {
			return ctx.Err(), false
		}
	}
}

// attempt is the result of one attempt to write the changes of the operations.
type attempt struct {
	err    error
	sent   bool   // with an error: changes may have been made
	outrun outrun // how another process was first; then nothing was written, and the operations are carried out again
}

type outrun uint8

const (
	notOutrun    outrun = iota
	outrunSeen          // the row has changed
	outrunUnseen        // the row did not exist, but could not be inserted
)

// writeOnce writes a row unless it has changed since it was read, without a transaction.
func (b *batch) writeOnce(ctx context.Context, conn *sql.Conn, old, next row, reading int64) attempt {
	ok, err := b.l.store.write(ctx, conn, b.key, old, next)
	switch {
	case err == nil && ok:
		b.l.written(!old.found, reading)
		return attempt{}
	case err != nil && !conflict(err):
		return attempt{err: err, sent: !notDone(err)}
	}
	return attempt{outrun: outrunSeen}
}

// writeLocked carries the operations out again, in a transaction that locks the row.
func (b *batch) writeLocked(ctx context.Context, conn *sql.Conn) attempt {
	b.recall()
	s := &b.l.store
	inserted, reading := false, int64(0)
	sent, err := s.transact(ctx, conn.BeginTx, func(tx *sql.Tx) error {
		old, err := s.readLocked(ctx, tx, b.key)
		if err != nil {
			return err
		}
		var next *row
		if next, reading, err = b.decide(old); err != nil {
			return err
		} else if next == nil {
			return errNothing
		}
		inserted = !old.found
		ok, err := s.write(ctx, tx, b.key, old, *next)
		if err == nil && !ok {
			return errAgain
		}
		return err
	})
	switch {
	case err == nil:
		b.l.written(inserted, reading)
		return attempt{}
	case err == errNothing:
		return attempt{}
	case err == errAgain && inserted:
		return attempt{outrun: outrunUnseen}
	case err == errAgain || conflict(err):
		return attempt{outrun: outrunSeen}
	}
	return attempt{err: err, sent: sent}
}

// mostLost is the maximum number of consecutive times that a key may be missing when it is read and
// present when it is inserted. Each time, another process would have to insert and delete it in between.
const mostLost = 20

var (
	errNothing = errors.New("nothing to write")
	errAgain   = errors.New("another process was first")
)

// decide carries out the operations on a row, each after the ones
// before it. It returns the next row, or nil if nothing changes.
func (b *batch) decide(old row) (next *row, reading int64, err error) {
	a, err := open(old, b.operations[0].plan)
	if err != nil {
		return nil, 0, err
	}
	for _, o := range b.operations {
		if o.peek && o.stage.Load() == left || !o.peek && !o.stage.CompareAndSwap(waiting, sent) {
			continue // its caller has left
		}
		before := a.edits
		if o.err = o.do(a, o); o.err != nil {
			o.err = b.l.store.classify(o.err, false)
		}
		o.answered, o.after, o.changed = true, before > 0, a.edits > before
		if !o.changed {
			o.stage.CompareAndSwap(sent, waiting)
		}
	}
	if a.edits == 0 {
		return nil, old.reading, nil
	}
	r := a.next()
	if r.equals(old) { // MySQL would not count an equal row as written, as if there were a conflict
		return nil, old.reading, nil
	}
	return &r, old.reading, nil
}

// recall records that the decisions were not written.
func (b *batch) recall() {
	for _, o := range b.operations {
		o.recall()
	}
}

// contended remembers which keys other processes have written at the same time. Different keys may share a place.
type contended struct {
	seed maphash.Seed
	last [256]atomic.Int64 // the time of that, in ns since start
}

const contendedFor = int64(time.Second)

var start = time.Now()

func (c *contended) place(key []byte) *atomic.Int64 {
	return &c.last[maphash.Bytes(c.seed, key)%uint64(len(c.last))]
}

func (c *contended) note(key []byte) { c.place(key).Store(int64(time.Since(start))) }

func (c *contended) lately(key []byte) bool {
	at := c.place(key).Load()
	return at != 0 && int64(time.Since(start))-at < contendedFor
}
