package redislimit

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/held"
	"github.com/weir-go/ratelimit/internal/lookup"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/internal/outcome"
	"github.com/weir-go/ratelimit/internal/reports"
	"github.com/weir-go/ratelimit/internal/tentative"
	"github.com/weir-go/ratelimit/internal/turns"
	"github.com/weir-go/ratelimit/internal/wait"
)

// Limiter keeps one budget for each key in Redis. Processes with the same Redis, Prefix and Name share it. Make one with [New].
// It is safe for concurrent use and needs no closing. The client stays the caller's. The zero Limiter cannot be used.
type Limiter struct {
	store      *store
	space      namespace
	limitFor   func(string) ratelimit.Limit
	lookups    *lookup.Calls[string, ratelimit.Limit] // calls of limitFor
	onDecision func(ratelimit.Event[string])
	maxLog     int
	plan       atomic.Pointer[plan]   // the plan of New's or SetLimit's limit
	leases     *leases                // nil without Options.MaxBatch
	lines      turns.Lines[string]    // this process's waiting callers
	bookings   turns.Bookings[string] // its reservations' bookings
}

var _ ratelimit.Reserver[string] = (*Limiter)(nil)

// New returns a limiter that holds each key to the limit. It does not connect. The error wraps
// [ratelimit.ErrInvalidLimit] if the limit is invalid or cannot be counted exactly at 1 µs: its figures must
// be at most 2^52, and the Per of windows and logs whole microseconds. Otherwise it names the invalid option.
func New(client redis.UniversalClient, limit ratelimit.Limit, opts *Options) (*Limiter, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if err := o.complete(client, &limit); err != nil {
		return nil, err
	}
	space, err := newNamespace(o.Prefix, o.Name, o.Slot)
	if err != nil {
		return nil, err
	}
	p, err := newPlan(limit, o.MaxLog)
	if err != nil {
		return nil, err
	}
	l := &Limiter{store: newStore(client, o.Timeout, o.Batch, o.DeclareKeys, o.Hooks), space: space, limitFor: o.LimitFor,
		lookups: lookup.New[string, ratelimit.Limit](0), onDecision: o.OnDecision, maxLog: o.MaxLog}
	l.store.tentative = tentative.New(pulse{l.store, space.begin + "%{beats}"})
	l.use(p)
	if o.MaxBatch > 0 {
		if l.leases, err = newLeases(l, o.MaxBatch); err == nil && o.LimitFor == nil {
			err = l.countable(p)
		}
	}
	if err != nil {
		return nil, err
	}
	return l, nil
}

// countable returns an error if a plan cannot be counted with the limiter's options.
func (l *Limiter) countable(p *plan) error {
	if text := p.unleasable(); l.leases != nil && text != "" {
		return fmt.Errorf("redislimit: %w: %s", ratelimit.ErrInvalidLimit, text)
	}
	return nil
}

// Allow is Take without details. An error counts as false. A cost of 0 is allowed without a call to Redis. On a leaky bucket
// use Take or Wait: the work may have to be delayed.
func (l *Limiter) Allow(key string, cost int) bool {
	if cost == 0 {
		return l.allowNothing(key)
	}
	d, _ := l.Take(context.Background(), key, cost)
	return d.Allowed
}

// allowNothing is Allow with a cost of 0.
func (l *Limiter) allowNothing(key string) bool {
	var d ratelimit.Decision
	p, err := l.planFor(key)
	if err == nil {
		d.Allowed, d.Limit = true, p.limit
	}
	l.report(context.Background(), key, 0, d, err)
	return d.Allowed
}

// Take spends cost of the key's budget, or nothing, and returns how much is left and when to retry. It takes no longer
// than [Options.Timeout] or the context.
//
// A denial is not an error. The error wraps [ratelimit.ErrExceedsLimit], [ratelimit.ErrNegativeCost]
// or [ratelimit.ErrInvalidLimit] if nothing was sent. It wraps [ratelimit.ErrUnavailable] if Redis
// could not decide, and also [ratelimit.ErrUnanswered] if the cost may have been charged.
func (l *Limiter) Take(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	if l.leases != nil {
		d, err := l.leases.take(ctx, leaseKey{key: key}, cost)
		l.report(ctx, key, cost, d, err)
		return d, err
	}
	r := new(request)
	d, err := l.decide(ctx, r, key, cost, math.MaxInt64, opTake)
	l.behind(&d, key, cost, err)
	l.report(ctx, key, cost, d, err)
	return d, err
}

// Peek returns Take's decision. Remaining and ResetAfter are the present ones. It writes nothing. Errors are as for Take.
func (l *Limiter) Peek(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	r := new(request)
	d, err := l.decide(ctx, r, key, cost, math.MaxInt64, opPeek)
	l.behind(&d, key, cost, err)
	return d, err
}

// Reserve is Take, but may book up to maxDelay ahead: see [ratelimit.Keyed.Reserve]. If the key
// already has 1,024 bookings ahead, or 2,000 in a sliding log, the error wraps [ratelimit.ErrLimited].
//
// Under a token bucket, a key keeps up to 16 open reservations apart. Above this number, the two with the most
// similar refunds count as one, with the lower refund. They survive when the limit's figures change, as in memory.
//
// A waiting reservation moves up when there is room before its booking: at once after this process
// settles, grants, resets or changes the limit, and within a second after another process does.
//
// Settle takes one round trip, within [Options.Timeout], and none if the real cost equals the reserved one. If it fails, the
// reserved cost stays charged. The reservation is never nil.
func (l *Limiter) Reserve(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	if l.leases != nil {
		res, err := l.leases.reserve(ctx, leaseKey{key: key}, cost, maxDelay)
		l.report(ctx, key, cost, res.Decision, err)
		return res, err
	}
	var first *request
	res, err := outcome.Booked(ctx, &l.bookings, key, cost, max(0, maxDelay), outcome.Booker{
		Book: func(ctx context.Context, ahead time.Duration, instead any) (outcome.Made, error) {
			r := new(request)
			if first == nil {
				first = r
			}
			return l.book(ctx, r, key, cost, ahead, instead)
		},
		Check: func() error {
			_, err := l.planOfCost(key, cost)
			return outcome.Never(err)
		},
	})
	l.report(ctx, key, cost, res.Decision, err)
	if res.Allowed && cost > 0 {
		if u := first.inUse(); u != nil {
			held.Extend(res, u.hold, u.extend)
		}
	}
	return res, err
}

// book reserves. If a booking is given, it is replaced.
func (l *Limiter) book(ctx context.Context, r *request, key string, cost int, ahead time.Duration, instead any) (outcome.Made, error) {
	r.instead, _ = instead.(*settlement)
	r.behind = r.instead == nil && l.bookings.Waiting(key)
	d, err := l.decide(ctx, r, key, cost, ahead, reserveOp(ctx))
	made := outcome.Made{Decision: d, Settle: l.settlerOf(r, key, cost), Life: r.life()}
	if err == nil && len(r.charges) > 0 {
		item := r.settlementOf(&r.charges[0])
		made.Ref = &item
	}
	return made, err
}

// life returns a number that changes when the key is reset; 0 if it is unknown.
func (r *request) life() uint64 {
	if len(r.charges) == 0 || r.reading == 0 {
		return 0
	}
	return generations | uint64(r.charges[0].gen)
}

// settlerOf returns a function to settle a reservation, or nil if nothing was sent.
func (l *Limiter) settlerOf(r *request, key string, cost int) func(actual int) error {
	settle := r.settlerFor(cost)
	if settle == nil {
		return nil
	}
	return func(actual int) error {
		err := settle(actual)
		l.lines.Moved(key)
		return err
	}
}

// reserveOp returns a Reserve's operation.
func reserveOp(ctx context.Context) byte {
	if optional.IsPassing(ctx) {
		return opKeep
	}
	return opOpen
}

// behind adds the time for this process's waiting callers without bookings to a denial's RetryAfter.
func (l *Limiter) behind(d *ratelimit.Decision, key string, cost int, err error) {
	if err == nil && !d.Allowed {
		d.RetryAfter = max(d.RetryAfter, l.lines.Expected(key, cost))
	}
}

func (l *Limiter) report(ctx context.Context, key string, cost int, d ratelimit.Decision, err error) {
	if l.onDecision != nil {
		reports.Send(ctx, l.onDecision, ratelimit.Event[string]{Key: key, Cost: cost, Decision: d,
			Spent: d.Allowed && err == nil && cost > 0 && tracks(d.Limit), Err: err})
	}
}

func tracks(l ratelimit.Limit) bool { return kinds[l.Algorithm] != 0 }

// check panics for the zero Limiter.
func (l *Limiter) check() {
	if l == nil || l.store == nil {
		panic(optional.Zero("redislimit", "Limiter", "New"))
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

// planOfLayer returns the plan for a request's limit, or for the key's own.
func (l *Limiter) planOfLayer(key string, ofRequest ratelimit.Limit) (*plan, error) {
	if ofRequest == (ratelimit.Limit{}) {
		return l.planFor(key)
	}
	return l.planOf(ofRequest, "Layer.Limit")
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
	p, err := newPlan(limit, l.maxLog)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	p.since.Store(always) // it is not known since when the limit holds for the key
	return p, nil
}

// decide decides on one key.
func (l *Limiter) decide(ctx context.Context, r *request, key string, cost int, ahead time.Duration, op byte) (d ratelimit.Decision, err error) {
	ctx = wait.OrBackground(ctx)
	if err = ctx.Err(); err != nil {
		return d, ended(err, false)
	}
	p, err := l.planOfCost(key, cost)
	if p != nil {
		d.Limit = p.limit
	}
	if err == nil && op == opTake {
		err = p.endless(cost)
	}
	if err != nil {
		return d, err
	}
	return l.decideUnder(ctx, r, p, key, cost, ahead, op)
}

// decideUnder decides on one key under a plan. The cost is within its capacity.
func (l *Limiter) decideUnder(ctx context.Context, r *request, p *plan, key string, cost int, ahead time.Duration, op byte) (d ratelimit.Decision, err error) {
	d.Limit = p.limit
	if p.kind == 0 {
		d.Allowed, d.Remaining = true, p.limit.Capacity()
		return d, nil
	}
	if cost == 0 {
		op = opPeek
	}
	r.one(l, l.space.key(key), p, int64(cost), ahead, op)
	return r.decided(op, d, r.run(ctx, op))
}

// decided completes the decision on a single key. It returns the call's error, or of a lack of room for bookings.
func (r *request) decided(op byte, d ratelimit.Decision, err error) (ratelimit.Decision, error) {
	if err == nil {
		r.conclude(op, &d)
		if c := &r.charges[0]; c.place > 0 {
			err = c.full(r.reading)
		}
	}
	return d, err
}

// planOfCost returns a key's plan. If the plan can never allow the cost, it also returns an error.
func (l *Limiter) planOfCost(key string, cost int) (*plan, error) {
	if cost < 0 {
		return nil, fmt.Errorf("%w: %d", ratelimit.ErrNegativeCost, cost)
	}
	p, err := l.planFor(key)
	if err != nil {
		return nil, err
	}
	return p, p.check(int64(cost))
}

// Adjust corrects a key's spending: see [ratelimit.Keyed.Adjust]. A debt is at most 2^52. A delta of 0 does nothing. Errors are
// as for Take.
func (l *Limiter) Adjust(ctx context.Context, key string, delta int) error {
	ctx = wait.OrBackground(ctx)
	if err := ctx.Err(); err != nil {
		return ended(err, false)
	}
	p, err := l.planFor(key)
	if err != nil || delta == 0 || p.kind == 0 {
		return err
	}
	_, err = l.store.adjust(ctx, []string{l.space.key(key)}, false, correction{plan: p, delta: int64(delta)})
	l.lines.Moved(key)
	if err == nil && delta < 0 {
		l.bookings.Moved(key)
	}
	return err
}

// Reset makes the key fresh. Earlier reservations no longer have an effect. Errors are as for Take.
func (l *Limiter) Reset(ctx context.Context, key string) error {
	l.check()
	ctx = wait.OrBackground(ctx)
	_, err := l.store.eval(ctx, &call{script: l.store.scripts.reset, keys: []string{l.space.key(key)}})
	l.lines.Changed(func(k string) bool { return k == key })
	l.bookings.Moved(key)
	return err
}

// SetLimit replaces New's limit, in this process, from the next decision on. It
// makes no call. Spending stays. An invalid limit is refused and changes nothing.
func (l *Limiter) SetLimit(limit ratelimit.Limit) error {
	l.check()
	p, err := newPlan(limit, l.maxLog)
	if err == nil {
		err = l.countable(p)
	}
	if err != nil {
		return err
	}
	old := l.plan.Load()
	if old.sameFigures(p) {
		p.since.Store(old.since.Load())
	}
	if p.former = old.former; old.dates != nil {
		p.former = old.dates
	}
	l.use(p)
	l.lines.Changed(func(string) bool { return true })
	l.bookings.Changed()
	return nil
}

// use applies a plan to all keys without another one.
func (l *Limiter) use(p *plan) {
	if l.limitFor == nil {
		p.current = &l.plan
	}
	l.plan.Store(p)
}

func (l *Limiter) limits() []ratelimit.Limit {
	l.check()
	if l.limitFor != nil {
		return []ratelimit.Limit{{}}
	}
	return []ratelimit.Limit{l.plan.Load().limit}
}

// Describe returns the limit from New or SetLimit, or the zero Limit if
// [Options.LimitFor] gives each key its own. BooksAhead is true, unless keys are leased.
func (l *Limiter) Describe() ratelimit.Description {
	limits := l.limits()
	return ratelimit.Description{Limits: limits, BooksAhead: l.leases == nil, Holds: limits[0].Algorithm == ratelimit.AlgorithmConcurrent}
}

// one makes the request a decision on a single charge. It uses the limiter's store, unless the request has one.
func (r *request) one(l *Limiter, key string, p *plan, cost int64, ahead time.Duration, op byte) {
	if r.store == nil {
		r.store = l.store
	}
	r.oneKey[0] = key
	r.oneCharge[0] = charge{plan: p, cost: cost, shares: 1}
	if p.kind == kindHeld {
		r.oneCharge[0].owner = newOwner()
	}
	r.keys, r.charges = r.oneKey[:], r.oneCharge[:]
	if p.kind == kindLeaky || op == opKeep || op == opOpen || op == opBetween {
		r.charges[0].ahead = p.clampAhead(ahead)
		r.charges[0].instead, r.charges[0].behind = r.instead, r.behind
	}
}
