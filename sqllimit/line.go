package sqllimit

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/meter"
	"github.com/weir-go/ratelimit/internal/outcome"
	"github.com/weir-go/ratelimit/internal/tentative"
	"github.com/weir-go/ratelimit/internal/turns"
)

// operation is one caller's request on a key. The result may be read once done is closed.
type operation struct {
	pending

	do   func(*account, *operation) error
	plan *plan

	cost, ahead int64
	keep        meter.Keep
	peek        bool
	instead     *booking // the booking to replace, before others; nil if there is none
	behind      bool     // it goes behind all bookings, loose or not
	between     bool     // it may go before bookings, loose or not
	from        int64    // with between: the earliest instant, unless the last booking is earlier
	actual      int64    // in a settlement the real cost; in an adjustment the delta

	decision ratelimit.Decision
	spending meter.Spending // the spending made or settled; mark and changes belong to it
	mark     uint32
	lives    bool // mark is the key's, also after a denial
	changes  uint64
	units    *units // the units to be extended or given back
	follows  bool   // the key's spending before and after is wanted
	followed followed
	stays    bool // in a settlement: the key stays under its limit

	far    string // not "" if a booking far ahead is to be tentative: the number of its record
	record keyRow // of the tentative booking, written together with it; without a key if there is none

	// Of a denied decision:
	reading int64 // the database's clock
	booked  int64 // the time from reading to the key's last booking
}

// booking is a booking in a key's row.
type booking struct {
	spending meter.Spending
	mark     uint32
	changes  uint64
}

// followed is the answer to a correction whose caller follows the key:
// the spending and the sum before and after it, and the key's state then.
type followed struct {
	gone                  bool // the key has no spending, and nothing was corrected
	before                int64
	openBefore, openAfter int64
	after                 ratelimit.Decision
}

// line holds a key's operations for the next decision.
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

// serve carries out a key's operations until there are none left.
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
		l.together(row, k, operations)
		runtime.Gosched() // answered callers may send another operation, and share the next decision
	}
}

// together carries out a key's waiting operations with one read and one write.
func (l *Limiter) together(key []byte, k *line, operations []*operation) {
	b := &batch{l: l, key: key, line: k, operations: operations}
	ctx, end := untilLast(l.timeout, operations)
	defer end()
	err, sent := b.run(ctx)
	if err != nil && errors.Is(err, context.DeadlineExceeded) && l.timeout >= 0 {
		err = fmt.Errorf("%w: %w", late(l.timeout), err)
	}
	for _, o := range b.operations {
		if o.fails(err) {
			o.err = l.store.classify(err, sent && o.changed)
			o.decision = ratelimit.Decision{Limit: o.decision.Limit}
		}
		close(o.done)
	}
}

// batch is one key's operations, written together.
type batch struct {
	l          *Limiter
	key        []byte
	line       *line
	operations []*operation
	timer      *time.Timer // ends the context of a transaction; nil if no operation can join
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
		switch w := b.writeLocked(ctx, conn, old); w.outrun {
		case notOutrun:
			return w.err, w.sent
		case outrunUnseen:
			if lost++; lost == mostLost {
				return errLost, false
			}
		default:
			lost = 0
		}
		if b.l.timeout < 0 && ctx.Err() != nil { // otherwise the next attempt's context may end later
			return ctx.Err(), false
		}
	}
}

// attempt is the result of one attempt to write the operations' changes.
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

// writeOnce writes a row unless it has changed since it was read.
func (b *batch) writeOnce(ctx context.Context, conn *sql.Conn, old, next row, reading int64) attempt {
	ok, sent, err := b.l.store.writeWith(ctx, conn, b.key, old, next, b.records())
	switch {
	case err == nil && ok:
		b.l.written(!old.found, reading)
		return attempt{}
	case err != nil && !conflict(err):
		return attempt{err: err, sent: sent}
	}
	return attempt{outrun: outrunSeen}
}

// writeLocked carries the operations out again, in a transaction with
// the row locked. read is the row as it was read before, without a lock.
func (b *batch) writeLocked(ctx context.Context, conn *sql.Conn, read row) attempt {
	b.recall()
	s := &b.l.store
	ctx, end := b.extend(ctx)
	defer end()
	inserted, busy, reading := false, false, int64(0)
	sent, err := s.transact(ctx, conn.BeginTx, func(tx *sql.Tx) error {
		old, err := s.readLocked(ctx, tx, b.key)
		if err != nil {
			return err
		}
		if old.found { // what changed the row before the joining operations has been read
			b.join()
			busy = !old.equals(read)
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
		if err == nil {
			err = s.insert(ctx, tx, b.records())
		}
		return err
	})
	if busy { // other processes go on to write
		b.l.contended.note(b.key)
	}
	if errors.Is(err, context.Canceled) && context.Cause(ctx) == context.DeadlineExceeded {
		err = context.DeadlineExceeded
	}
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

// extend returns the context of a transaction. It ends when the last caller must have its answer, joining ones included.
func (b *batch) extend(ctx context.Context) (context.Context, func()) {
	if b.l.timeout < 0 { // it ends with the first callers
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	b.timer = time.AfterFunc(b.left(), func() { cancel(context.DeadlineExceeded) })
	return ctx, func() {
		b.timer.Stop()
		cancel(nil)
	}
}

// left returns the time until the last caller must have its answer.
func (b *batch) left() time.Duration {
	return time.Until(b.operations[len(b.operations)-1].expires)
}

// join adds the operations that have come while the batch waited for the lock of its row. If several
// processes wait for the lock, these operations would otherwise wait for the next turn of this process.
func (b *batch) join() {
	if b.timer == nil || !b.timer.Stop() {
		return
	}
	b.l.mu.Lock()
	b.operations = append(b.operations, b.line.operations...)
	b.line.operations = nil
	b.l.mu.Unlock()
	b.timer.Reset(b.left())
}

// mostLost is how often in a row a key may be missing when it is read and present when it
// is inserted. Each time, another process would have to insert and delete it in between.
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
		o.record = keyRow{}
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
		if o.far != "" && o.changed && o.decision.Delay > turns.Horizon {
			o.record = b.l.recordOf(strings.TrimPrefix(string(b.key), b.l.space), o.far, o)
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

// records returns the records of the decided tentative bookings.
func (b *batch) records() (all []keyRow) {
	for _, o := range b.operations {
		if o.record.key != nil {
			all = append(all, o.record)
		}
	}
	return all
}

// recall marks the decisions as unwritten.
func (b *batch) recall() {
	for _, o := range b.operations {
		o.recall()
	}
}

// contended remembers keys written by other processes at the same time. Different keys may share a place.
type contended struct {
	seed maphash.Seed
	last [256]atomic.Int64 // the last time, in ns since start
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

// If a Wait books further than a second ahead, the booking is tentative: see package tentative. Its record is a
// row, and so is each process's last beat. The booking is in the key's row as any other, so other versions of
// this package read it. The rows for records and beats have keys that begin with a colon; no limiter's key does:
//
//	:name:b, process                             at: the last beat; state: version, and as a varint for how long the process may have records
//	:name:r, 16 bytes of the key's hash, number  at: the booked instant; state: version, mark 4, and as varints changes, cost and part
const (
	beatKind   = "b"
	recordKind = "r"
	hashSize   = 16
)

func (l *Limiter) besides(kind string) string { return ":" + l.space + kind }

func (l *Limiter) recordsOf(key string) string {
	sum := sha256.Sum256([]byte(key))
	return l.besides(recordKind) + string(sum[:hashSize])
}

// within returns a context for statements about tentative bookings.
func (l *Limiter) within(ctx context.Context) (context.Context, context.CancelFunc) {
	if l.timeout < 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, l.timeout)
}

// listed returns the rows whose keys have a prefix.
func (l *Limiter) listed(ctx context.Context, prefix string) ([]keyRow, error) {
	end := []byte(prefix)
	for i := len(end) - 1; ; i-- {
		if end[i]++; end[i] != 0 {
			end = end[:i+1]
			break
		}
	}
	return l.store.rows(ctx, l.store.db, l.store.sql.page, []byte(prefix), end)
}

// pulse is where a limiter's processes show their life.
type pulse struct{ l *Limiter }

func (p pulse) Beat(process string, left time.Duration) ([]string, error) {
	l := p.l
	ctx, end := l.within(context.Background())
	defer end()
	stays := (max(0, left) + tentative.Late).Microseconds()
	_, err := l.store.db.ExecContext(ctx, l.store.sql.reset, []byte(l.besides(beatKind)+process), binary.AppendVarint([]byte{version}, stays), stays)
	if err != nil {
		return nil, err
	}
	return p.silent(ctx)
}

func (p pulse) Silent() ([]string, error) {
	ctx, end := p.l.within(context.Background())
	defer end()
	return p.silent(ctx)
}

func (p pulse) End(process string) error {
	_, err := p.l.remove(context.Background(), []byte(p.l.besides(beatKind)+process))
	ctx, end := p.l.within(context.Background())
	defer end()
	return errors.Join(err, p.l.clear(ctx))
}

func (p pulse) silent(ctx context.Context) (silent []string, err error) {
	rows, err := p.l.listed(ctx, p.l.besides(beatKind))
	for _, r := range rows {
		stays, size := binary.Varint(r.state[1:])
		if since := r.reading - r.at; size > 0 && since >= tentative.Holds.Microseconds() && since <= stays {
			silent = append(silent, strings.TrimPrefix(string(r.key), p.l.besides(beatKind)))
		}
	}
	return silent, err
}

// clear deletes ended rows of records and beats.
func (l *Limiter) clear(ctx context.Context) error {
	s := &l.store
	clock, err := s.read(ctx, s.db, []byte(l.besides("")))
	if err != nil {
		return err
	}
	_, err = s.transact(ctx, s.db.BeginTx, func(tx *sql.Tx) error {
		due, err := s.rows(ctx, tx, s.sql.due, clock.reading, []byte(l.besides("")), behind(":"+l.space))
		if err != nil || len(due) == 0 {
			return errors.Join(err, errNothing)
		}
		keys := make([]any, len(due))
		for i := range due {
			keys[i] = due[i].key
		}
		_, err = tx.ExecContext(ctx, s.sql.remove+s.dialect.list(len(keys)), keys...)
		return err
	})
	if err == errNothing {
		return nil
	}
	return err
}

// remove deletes a row of a record or a beat, and reports whether it was there.
func (l *Limiter) remove(ctx context.Context, record []byte) (bool, error) {
	ctx, end := l.within(ctx)
	defer end()
	result, err := l.store.db.ExecContext(ctx, l.store.sql.remove+l.store.dialect.list(1), record)
	if err != nil {
		return false, l.store.classify(err, !notDone(err))
	}
	n, err := result.RowsAffected()
	return n > 0, err
}

// bookAhead books for a waiting caller. A booking further than a second ahead takes another decision, and is tentative.
func (l *Limiter) bookAhead(ctx context.Context, key string, q turns.Request) (d ratelimit.Decision, o *operation, far *tentative.Booking, err error) {
	near := min(q.Ahead, turns.Horizon)
	if p, err := l.planFor(key); err == nil && p.meter.Delays() || q.Cost == 0 {
		near = q.Ahead // what stands in a queue cannot be given back
	}
	book := func(ahead time.Duration, number string) (ratelimit.Decision, *operation, error) {
		old, _ := q.Instead.(*booking)
		return l.decide(ctx, key, q.Cost, &operation{pending: pending{undone: true, goesOn: ahead == near}, ahead: int64(ahead) / 1000, keep: meter.Booked,
			between: q.Between, from: q.After, instead: old, far: number})
	}
	d, o, err = book(near, "")
	rest := q.Ahead - near
	if err != nil || o == nil || d.Allowed || rest <= 0 {
		return d, o, nil, err
	}
	if d.RetryAfter > rest {
		d.RetryAfter -= rest
		return d, o, nil, nil
	}
	far, _ = l.tentative.Begin(ctx, min(rest, 2*d.RetryAfter)+turns.Horizon)
	if err = outcome.EndOf(ctx); err != nil {
		if far != nil {
			far.Drop()
		}
		return d, o, nil, ended(err, false)
	}
	if far == nil { // without a beat the booking is a lasting one
		d, o, err = book(q.Ahead, "")
		return d, o, nil, err
	}
	begun, kept := far, false
	defer func() {
		if !kept {
			begun.Drop()
		}
	}()
	d, o, err = book(q.Ahead, far.Number)
	if kept = o != nil && errors.Is(err, ratelimit.ErrUnanswered); kept {
		begun.Lost(func() error { return l.find(key, begun.Number) })
	}
	if err != nil || o == nil || o.record.key == nil {
		return d, o, nil, err
	}
	record := o.record
	kept = true
	far.Made(time.Now().Add(d.Delay), tentative.Record{
		Confirm: func() (bool, error) { return l.remove(context.Background(), record.key) },
		Cancel: func() error {
			_, err := l.giveBack(context.Background(), key, l.latest(key, o.plan), record)
			l.waiting.Moved(key)
			return err
		},
		Advance: func() {
			if freed, _ := l.free(context.Background(), key, l.tentative.Beaten()); freed {
				l.waiting.Moved(key)
			}
		},
	})
	return d, o, far, nil
}

// recordOf returns a booking's record.
func (l *Limiter) recordOf(key, number string, o *operation) keyRow {
	sp := &o.spending
	state := binary.BigEndian.AppendUint32([]byte{version}, o.mark)
	for _, n := range [...]int64{int64(o.changes), sp.Cost, sp.Part} {
		state = binary.AppendVarint(state, n)
	}
	return keyRow{key: []byte(l.recordsOf(key) + number), row: row{at: sp.At, state: state, expires: sp.At + tentative.Late.Microseconds()}}
}

// find gives back an uncertain booking, if its record is there.
func (l *Limiter) find(key, number string) error {
	p, err := l.planFor(key)
	if err != nil {
		return err
	}
	ctx, end := l.within(context.Background())
	defer end()
	records, err := l.listed(ctx, l.recordsOf(key)+number)
	for _, r := range records {
		_, failed := l.giveBack(ctx, key, p, r)
		err = errors.Join(err, failed)
	}
	l.waiting.Moved(key)
	return err
}

// free gives the tentative bookings of silent processes back. It reports whether there were any.
func (l *Limiter) free(ctx context.Context, key string, silent []string) (any bool, err error) {
	p, err := l.planFor(key)
	if err != nil || !p.tracks() {
		return false, err
	}
	bounded, end := l.within(ctx)
	defer end()
	prefix := l.recordsOf(key)
	records, err := l.listed(bounded, prefix)
	for _, r := range slices.Backward(records) {
		number := strings.TrimPrefix(string(r.key), prefix)
		if len(number) != tentative.NumberSize || number[:tentative.IDSize] == l.tentative.ID || !slices.Contains(silent, number[:tentative.IDSize]) {
			continue
		}
		was, failed := l.giveBack(bounded, key, p, r)
		any, err = any || was, errors.Join(err, failed)
	}
	return any, err
}

// giveBack gives a tentative booking back, if its record is still there. It does not end in between with its caller.
func (l *Limiter) giveBack(ctx context.Context, key string, p *plan, r keyRow) (was bool, err error) {
	b := r.state
	if len(b) < 5 || b[0] != version {
		return false, nil
	}
	mark, figures := binary.BigEndian.Uint32(b[1:]), [3]int64{}
	b = b[5:]
	for i := range figures {
		n, size := binary.Varint(b)
		if size <= 0 {
			return false, nil
		}
		figures[i], b = n, b[size:]
	}
	if err = ctx.Err(); err != nil {
		return false, err
	}
	ctx = context.WithoutCancel(ctx)
	if was, err = l.remove(ctx, r.key); err != nil || !was {
		return false, err
	}
	o := &operation{plan: p, do: (*account).settle, spending: meter.Spending{At: r.at, Cost: figures[1], Part: figures[2]}, mark: mark, changes: uint64(figures[0])}
	return true, l.run(ctx, key, o)
}

// frees reports whether a denied decision is to be made again: the key is booked ahead, and bookings of silent processes were given back.
func (l *Limiter) frees(ctx context.Context, key string, o *operation) bool {
	if o.decision.Allowed || o.cost == 0 || o.booked <= tentative.Near.Microseconds() {
		return false
	}
	silent := l.tentative.Look(key, o.reading)
	if silent == nil {
		return false
	}
	freed, err := l.free(ctx, key, silent)
	if err != nil {
		l.tentative.Unlook(key)
	}
	return freed
}

// frees is frees of a request's denying parts.
func frees(ctx context.Context, parts []*part) (any bool) {
	for _, p := range parts {
		if !p.shadow && p.err == nil {
			any = p.limiter.frees(ctx, strings.TrimPrefix(p.row, p.limiter.space), &p.operation) || any
		}
	}
	return any
}
