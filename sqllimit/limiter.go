package sqllimit

import (
	"context"
	"database/sql"
	"fmt"
	"hash/maphash"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/held"
	"github.com/weir-go/ratelimit/internal/lookup"
	"github.com/weir-go/ratelimit/internal/meter"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/internal/outcome"
	"github.com/weir-go/ratelimit/internal/reports"
	"github.com/weir-go/ratelimit/internal/tentative"
	"github.com/weir-go/ratelimit/internal/turns"
	"github.com/weir-go/ratelimit/internal/wait"
)

// Limiter holds each key to a limit. Make one with [New]. It is safe for concurrent use and needs no closing. The zero
// Limiter cannot be used.
type Limiter struct {
	store      store
	space      string // its rows' keys begin with it
	limitFor   func(string) ratelimit.Limit
	lookups    *lookup.Calls[string, ratelimit.Limit] // calls of limitFor
	timeout    time.Duration                          // if negative, there is none
	onDecision func(ratelimit.Event[string])
	plan       atomic.Pointer[plan] // the plan of New's or SetLimit's limit

	mu    sync.Mutex       // guards the fields below, and the operations of lines
	lines map[string]*line // the keys' lines with waiting operations

	waiting  turns.Lines[string]    // this process's waiting callers
	bookings turns.Bookings[string] // its reservations' bookings

	contended contended
	sweeper   sweeper
	tentative *tentative.Process
}

var (
	_ ratelimit.Reserver[string] = (*Limiter)(nil)
	_ ratelimit.Waiter[string]   = (*Limiter)(nil)
	_ ratelimit.Peeker[string]   = (*Limiter)(nil)
	_ ratelimit.Adjuster[string] = (*Limiter)(nil)
	_ ratelimit.Resetter[string] = (*Limiter)(nil)
	_ ratelimit.Describer        = (*Limiter)(nil)
)

// New returns a limiter. It does not connect. The error names an invalid option, or wraps [ratelimit.ErrInvalidLimit]:
// windows must be whole microseconds long, and a sliding log has at most 10,000 units.
//
// Decisions on different keys use one connection each: bound them with [sql.DB.SetMaxOpenConns].
func New(db *sql.DB, limit ratelimit.Limit, opts *Options) (*Limiter, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if err := o.complete(db, limit); err != nil {
		return nil, err
	}
	p, err := newPlan(limit)
	if err != nil {
		return nil, err
	}
	l := &Limiter{store: store{db, o.Dialect, o.Table, o.Dialect.statements(o.Table), new(atomic.Bool)}, space: o.Name + ":",
		limitFor: o.LimitFor, lookups: lookup.New[string, ratelimit.Limit](0), timeout: o.Timeout, onDecision: o.OnDecision, lines: make(map[string]*line)}
	l.contended.seed = maphash.MakeSeed()
	l.tentative = tentative.New(pulse{l})
	l.plan.Store(p)
	return l, nil
}

// check panics for the zero Limiter.
func (l *Limiter) check() {
	if l == nil || l.lines == nil {
		panic(optional.Zero("sqllimit", "Limiter", "New"))
	}
}

// planFor returns a key's plan.
func (l *Limiter) planFor(key string) (*plan, error) {
	l.check()
	if limit, own := lookup.Own(l.lookups, key, l.limitFor); own {
		return l.planOf(limit, "LimitFor")
	}
	return l.plan.Load(), nil
}

// planOf returns a limit's plan. name is the function or field with the limit.
func (l *Limiter) planOf(limit ratelimit.Limit, name string) (*plan, error) {
	p := l.plan.Load()
	if limit.Name == "" {
		limit.Name = p.limit.Name
	}
	if limit == p.limit {
		return p, nil
	}
	p, err := newPlan(limit)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	p.since.Store(always) // it is not known since when the limit holds for the key
	return p, nil
}

// checked returns the context and the key's plan. It returns an error
// if the context has ended, or the key does not fit into a row.
func (l *Limiter) checked(ctx context.Context, key string) (context.Context, *plan, error) {
	ctx = wait.OrBackground(ctx)
	if err := ctx.Err(); err != nil {
		l.check()
		return ctx, nil, ended(err, false)
	}
	p, err := l.planFor(key)
	if err == nil {
		err = checkKey(key)
	}
	return ctx, p, err
}

// checkKey returns an error if a key is too long for a row.
func checkKey(key string) error {
	if len(key) <= maxKey {
		return nil
	}
	return fmt.Errorf("sqllimit: %w: it has %d bytes, want at most %d", ratelimit.ErrInvalidKey, len(key), maxKey)
}

// decide decides on a cost. It returns the operation for a settlement, or nil if the database was not called.
func (l *Limiter) decide(ctx context.Context, key string, cost int, o *operation) (ratelimit.Decision, *operation, error) {
	var d ratelimit.Decision
	ctx, p, err := l.checked(ctx, key)
	if p != nil {
		d.Limit = p.limit
	}
	if err == nil {
		err = p.check(cost)
	}
	if err == nil && !o.peek && (o.keep == meter.Final || o.undone) {
		err = p.endless(cost)
	}
	if err != nil {
		return d, nil, err
	}
	if !p.tracks() {
		d.Allowed, d.Remaining = true, p.limit.Capacity()
		return d, nil, nil
	}
	o.do, o.plan, o.cost, o.peek = (*account).take, p, int64(cost), o.peek || cost == 0
	if err = l.run(ctx, key, o); err == nil && !o.peek && l.frees(ctx, key, o) {
		o = &operation{pending: pending{undone: o.undone}, do: o.do, plan: p, cost: o.cost, ahead: o.ahead, keep: o.keep,
			instead: o.instead, behind: o.behind, between: o.between, from: o.from, far: o.far}
		err = l.run(ctx, key, o)
	}
	if err != nil {
		return d, o, err
	}
	return o.decision, o, nil
}

// behind adds the time for this process's waiting callers without bookings to a denial's RetryAfter.
func (l *Limiter) behind(d *ratelimit.Decision, key string, cost int, err error) {
	if err == nil && !d.Allowed {
		d.RetryAfter = max(d.RetryAfter, l.waiting.Expected(key, cost))
	}
}

func (l *Limiter) report(ctx context.Context, key string, cost int, d ratelimit.Decision, err error) {
	if l.onDecision != nil {
		tracks := d.Limit.Algorithm != ratelimit.AlgorithmUnlimited && d.Limit.Algorithm != ratelimit.AlgorithmBlocked
		reports.Send(ctx, l.onDecision, ratelimit.Event[string]{Key: key, Cost: cost, Decision: d,
			Spent: d.Allowed && err == nil && cost > 0 && tracks, Err: err})
	}
}

// Allow is Take without details. An error counts as false. A cost of 0 is allowed without a call to the database.
func (l *Limiter) Allow(key string, cost int) bool {
	if cost != 0 {
		d, _ := l.Take(context.Background(), key, cost)
		return d.Allowed
	}
	var d ratelimit.Decision
	_, p, err := l.checked(context.Background(), key)
	if err == nil {
		d.Allowed, d.Limit = true, p.limit
	}
	l.report(context.Background(), key, 0, d, err)
	return d.Allowed
}

// Take spends cost of the key's budget, or nothing, and returns the remaining budget and the time until a retry. A denial
// is not an error. The error wraps [ratelimit.ErrExceedsLimit], [ratelimit.ErrNegativeCost] or
// [ratelimit.ErrInvalidLimit] as in package ratelimit, or [ratelimit.ErrInvalidKey] for a key above 1,024 bytes. It wraps
// [ratelimit.ErrUnavailable] if the database could not decide, and also [ratelimit.ErrUnanswered] if the cost may have
// been charged. It may be the context's error. A refused password, database or permission is ErrUnavailable, and the text
// names what to check. A missing table or primary key and a damaged row are none of these: the error names the table.
func (l *Limiter) Take(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	d, _, err := l.decide(ctx, key, cost, &operation{ahead: math.MaxInt64})
	l.behind(&d, key, cost, err)
	l.report(ctx, key, cost, d, err)
	return d, err
}

// Peek returns Take's decision, with the present Remaining and ResetAfter. It fails as Take does.
func (l *Limiter) Peek(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	d, _, err := l.decide(ctx, key, cost, &operation{ahead: math.MaxInt64, peek: true})
	l.behind(&d, key, cost, err)
	return d, err
}

// Reserve is Take for work from now or up to maxDelay later, with a charge that can be corrected: see
// [ratelimit.Keyed.Reserve]. A settlement takes one decision within [Options.Timeout], and none if the real cost
// equals the reserved one. If it fails, the reserved cost stays charged. The reservation is never nil. Under a token
// bucket, a key keeps up to 16 open reservations apart. Above this number, the two with the most similar refunds
// count as one, with the lower refund. A waiting reservation moves up when there is room before its booking: at once
// after this process settles, grants, resets or changes the limit, and within a second after another process does.
func (l *Limiter) Reserve(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	keep := meter.Open
	if optional.IsPassing(ctx) {
		keep = meter.Booked
	}
	var first *units
	made := false
	res, err := outcome.Booked(ctx, &l.bookings, key, cost, max(0, maxDelay), outcome.Booker{
		Book: func(ctx context.Context, ahead time.Duration, instead any) (outcome.Made, error) {
			m, u, err := l.book(ctx, key, cost, ahead, keep, instead)
			if !made {
				first, made = u, true
			}
			return m, err
		},
		Check: func() error {
			p, err := l.planFor(key)
			if err == nil {
				err = p.check(cost)
			}
			return outcome.Never(err)
		},
	})
	l.report(ctx, key, cost, res.Decision, err)
	u := first
	if u == nil {
		return res, err
	}
	held.Extend(res, u.plan.limit.Rate.Per, func(ctx context.Context) error {
		if err := ctx.Err(); err != nil {
			return ended(err, false)
		}
		o := new(operation)
		u.put(o, l.latest(key, u.plan), (*account).extend)
		return u.extended(l.run(ctx, key, o))
	})
	return res, err
}

// book reserves. If a booking is given, it is replaced. It also returns the units in use.
func (l *Limiter) book(ctx context.Context, key string, cost int, ahead time.Duration, keep meter.Keep, instead any) (outcome.Made, *units, error) {
	old, _ := instead.(*booking)
	d, o, err := l.decide(ctx, key, cost, &operation{ahead: int64(ahead) / 1000, keep: keep, instead: old, behind: old == nil && l.bookings.Waiting(key)})
	made := outcome.Made{Decision: d, Settle: l.settler(key, cost, o)}
	if err != nil || o == nil {
		return made, nil, err
	}
	made.Life, made.Ref = o.life(), &booking{o.spending, o.mark, o.changes}
	u := unitsOf(o)
	if u != nil {
		made.Settle = func(int) error { return l.release(key, u) }
	}
	return made, u, nil
}

// life returns a number that changes when the key is reset; 0 if it is unknown.
func (o *operation) life() uint64 {
	if !o.lives {
		return 0
	}
	return 1<<32 | uint64(o.mark)
}

// release gives units in use back.
func (l *Limiter) release(key string, u *units) error {
	o := new(operation)
	u.put(o, l.latest(key, u.plan), (*account).release)
	err := l.run(context.Background(), key, o)
	l.waiting.Moved(key)
	return err
}

// settler returns a function to settle an operation, or nil if the database was not called.
func (l *Limiter) settler(key string, cost int, spent *operation) func(actual int) error {
	if spent == nil {
		return nil
	}
	return func(actual int) error {
		if actual == cost {
			return nil
		}
		p := l.latest(key, spent.plan)
		if cost == 0 && p.meter.Holds() {
			return nil
		}
		o := &operation{plan: p, do: (*account).settle, actual: int64(actual), spending: spent.spending, mark: spent.mark, changes: spent.changes}
		if cost == 0 {
			o.do = (*account).correct
		}
		err := l.run(context.Background(), key, o)
		l.waiting.Moved(key)
		return err
	}
}

// latest returns a key's present plan, or p if the present plan counts nothing.
func (l *Limiter) latest(key string, p *plan) *plan {
	if now, err := l.planFor(key); err == nil && now.tracks() {
		return now
	}
	return p
}

// Wait books its instant with one decision, sleeps until then, and returns nil: see [ratelimit.Keyed.Wait]. This
// process's callers for one key are served in the order of their arrival, even if their costs differ. The first few
// have bookings in the database, up to a second ahead, and the others wait in this process: they follow a refund, a
// grant, Reset, SetLimit, and leaving callers. Processes take turns. If the context ends first, Wait gives the
// booking back, within [Options.Timeout], and returns the context's error. If this fails, the error is joined, and
// the cost stays charged. If the context ends while the booking is written, Wait goes on for up to 50 ms to give the
// booking back. Then the error wraps [ratelimit.ErrUnanswered], and the booking goes to the next caller, or back.
func (l *Limiter) Wait(ctx context.Context, key string, cost int) error {
	d, err := l.wait(wait.OrBackground(ctx), key, cost)
	if err == nil && d.Limit == (ratelimit.Limit{}) { // without a call the decision has no limit
		if p, failed := l.planFor(key); failed == nil {
			d.Limit = p.limit
		}
	}
	l.report(ctx, key, cost, d, err)
	return err
}

func (l *Limiter) wait(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	l.check()
	if _, err := wait.Left(ctx); err != nil {
		return ratelimit.Decision{}, ended(err, false)
	}
	return outcome.InLine(ctx, &l.waiting, key, cost, func(q turns.Request) (outcome.Made, error) {
		d, o, far, err := l.bookAhead(ctx, key, q)
		if u, left := err.(*unfinished); left {
			return outcome.Made{Decision: d}, &outcome.Unfinished{Err: u.error, Made: func() (outcome.Made, error) {
				<-o.done
				err := o.err
				if err == nil && !o.decision.Allowed && o.ahead < int64(q.Ahead)/1000 {
					err = u.error // nobody makes the second decision
				}
				return l.booked(key, q.Cost, o.decision, o, nil, err)
			}}
		}
		return l.booked(key, q.Cost, d, o, far, err)
	})
}

// booked returns what an operation of Wait has booked.
func (l *Limiter) booked(key string, cost int, d ratelimit.Decision, o *operation, far *tentative.Booking, err error) (outcome.Made, error) {
	made := outcome.Made{Decision: d}
	if err == nil && o != nil {
		made.Life, made.At, made.Ref = o.life(), o.spending.At, &booking{o.spending, o.mark, o.changes}
	}
	if err == nil && d.Allowed && cost > 0 {
		settle := l.settler(key, cost, o)
		if made.Settle = settle; far != nil {
			made.Confirm = far.Confirm
			made.Settle = func(actual int) error { return far.Settle(actual, settle) }
		}
	}
	return made, err
}

// Adjust adjusts a key's spending: see [ratelimit.Keyed.Adjust]. It fails as Take does.
func (l *Limiter) Adjust(ctx context.Context, key string, delta int) error {
	ctx, p, err := l.checked(ctx, key)
	if err != nil || delta == 0 || !p.tracks() {
		return err
	}
	err = l.run(ctx, key, &operation{plan: p, do: (*account).correct, actual: int64(delta)})
	l.waiting.Moved(key)
	if err == nil && delta < 0 {
		l.bookings.Moved(key)
	}
	return err
}

// Reset forgets the key and its spending. Earlier reservations no longer have an effect. It fails as Take does.
func (l *Limiter) Reset(ctx context.Context, key string) error {
	l.check()
	ctx = wait.OrBackground(ctx)
	if err := ctx.Err(); err != nil {
		return ended(err, false)
	}
	if err := checkKey(key); err != nil {
		return err
	}
	inner, end := ctx, func() {}
	if l.timeout >= 0 {
		inner, end = context.WithTimeout(ctx, l.timeout)
	}
	defer end()
	conn, _, err := l.store.connected(inner, []byte(l.space+key))
	if err == nil {
		defer conn.Close()
		defer l.bookings.Moved(key)
		defer l.waiting.Changed(func(k string) bool { return k == key })
		_, err = conn.ExecContext(inner, l.store.sql.reset, []byte(l.space+key), []byte{version, flagReset}, resetStays)
		if err == nil {
			return nil
		}
	}
	sent := conn != nil && !notDone(err)
	if cause := outcome.EndOf(ctx); cause != nil {
		return ended(cause, sent)
	}
	return l.store.classify(err, sent)
}

// resetStays is how long a row records its key's reset, in µs. During
// this time, reservations from before the reset are recognized as ended.
const resetStays = int64(time.Hour / time.Microsecond)

// SetLimit replaces New's limit, in this process, and writes nothing. Spending stays spent. A key is under the new
// limit from the limiter's next decision on, or from its own last change if later. An invalid limit is refused.
func (l *Limiter) SetLimit(limit ratelimit.Limit) error {
	l.check()
	p, err := newPlan(limit)
	if err != nil {
		return err
	}
	if old := l.plan.Load(); old.text == p.text {
		p.since.Store(old.since.Load())
	}
	l.plan.Store(p)
	l.waiting.Changed(func(string) bool { return true })
	l.bookings.Changed()
	return nil
}

// Describe returns the limit from New or SetLimit, or the zero Limit
// if [Options.LimitFor] gives each key its own. BooksAhead is true.
func (l *Limiter) Describe() ratelimit.Description {
	l.check()
	d := ratelimit.Description{Limits: []ratelimit.Limit{{}}, BooksAhead: true}
	if l.limitFor == nil {
		d.Limits[0] = l.plan.Load().limit
		d.Holds = d.Limits[0].Algorithm == ratelimit.AlgorithmConcurrent
	}
	return d
}
