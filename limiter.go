package ratelimit

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit/internal/keys"
	"github.com/weir-go/ratelimit/internal/lastlimit"
	"github.com/weir-go/ratelimit/internal/lookup"
	"github.com/weir-go/ratelimit/internal/meter"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/internal/reports"
)

// Keyed is the limiter in memory: one budget for each key. Make one with [New].
// It starts no goroutine and needs no closing. The zero Keyed's methods panic.
//
// A decision on a known key does not allocate, if the key's type is [net/netip.Addr] or
// has no pointers except in strings. When a key is inserted, its strings are copied,
// except in interfaces. In a bubble of testing/synctest, make the limiter inside.
type Keyed[K comparable] struct {
	clock      Clock
	generation atomic.Pointer[generation]
	refreshed  atomic.Uint64 // how often Refresh was called for single keys
	keys       *table[K]
	limitFor   func(K) Limit
	lookups    *lookup.Calls[K, *plan] // calls of limitFor; nil without one
	onDecision func(Event[K])

	// fastKeys is the map of accounts if all keys can be compared, because their type holds
	// no interfaces. Otherwise it is nil, and each key is checked before it is looked up.
	fastKeys *keys.Map[K, account]

	waiting waitingRoom

	ofRequests atomic.Bool // a layer has a Limit function, which gives requests limits of their own
}

var _ Reserver[string] = (*Keyed[string])(nil)

// New returns a limiter that holds each key to the limit. Nil options mean the defaults. If the limit is invalid, the error
// wraps [ErrInvalidLimit]; if an option is invalid, the error names the option and the figure.
func New[K comparable](limit Limit, opts *Options[K]) (*Keyed[K], error) {
	var o Options[K]
	if opts != nil {
		o = *opts
	}
	if o.MaxKeys == 0 {
		o.MaxKeys = defaultMaxKeys
	}
	if err := o.validate(); err != nil {
		return nil, err
	}
	if o.Clock == nil {
		o.Clock = systemClock{}
	}
	dates := &calendars{clock: o.Clock}
	table := newTable(&o, dates)
	g, err := firstGeneration(limit, table.dirtyList(), dates)
	if err != nil {
		return nil, err
	}
	l := &Keyed[K]{
		clock:      o.Clock,
		keys:       table,
		limitFor:   o.LimitFor,
		onDecision: o.OnDecision,
		waiting:    waitingRoom{max: int64(o.MaxWaiting)},
	}
	if o.LimitFor != nil {
		l.lookups = lookup.New[K, *plan](o.MaxKeys)
	}
	if !keys.HoldInterfaces[K]() {
		l.fastKeys = table.accounts
	}
	l.generation.Store(g)
	return l, nil
}

// Must returns the limiter, or panics if there is an error. Use it for limits
// written in the program. It accepts the results of any limiter's constructor.
func Must[L any](l L, err error) L {
	if err != nil {
		panic(err)
	}
	return l
}

// Allow spends cost of the key's budget and reports true, or spends nothing and reports
// false. An error counts as false. [Keyed.Take] also returns a leaky bucket's delay.
func (l *Keyed[K]) Allow(key K, cost int) bool {
	// decide begins with the same lines: a function for them would cost as much as they do.
	var e *entry[K]
	if m := l.fastKeys; m != nil {
		e = m.Candidate(key)
	}
	if e == nil || l.onDecision != nil {
		return l.allowSlow(key, cost, unread)
	}
	a := &e.Value
	now := reading(l.clock)
	a.mu.Lock()
	p := a.plan
	if p == nil || e.Key != key || p.seq != l.generation.Load().seq {
		a.mu.Unlock()
		return l.allowSlow(key, cost, now)
	}
	if !p.ordinary(cost) {
		a.mu.Unlock()
		return cost == 0 // a cost below 0 or above the capacity changes nothing
	}
	now = max(now, a.last)
	a.last = now
	ok := p.Allow(&a.State, now, int64(cost))
	a.use.decided(ok)
	a.mu.Unlock()
	return ok
}

// allowSlow is Allow for untracked keys, for changed limits, and for limiters with OnDecision.
func (l *Keyed[K]) allowSlow(key K, cost int, now int64) bool {
	var d Decision
	if l.onDecision == nil {
		_, _, _ = l.decideSlow(key, cost, request{queue: takeRequest.queue, brief: true}, now, &d)
	} else {
		d, _ = l.Take(context.Background(), key, cost)
	}
	return d.Allowed
}

// Take spends cost of the key's budget, or nothing, and returns how much is left and when to retry.
// A denial is no error: see [Decision.RetryAfter]. The error wraps [ErrExceedsLimit] if the cost
// can never be allowed, [ErrNegativeCost], [ErrInvalidKey], [ErrInvalidLimit] if LimitFor returned
// such a limit, or [ErrTableFull]. Under [Concurrent] every cost above 0 is an error: call Reserve.
func (l *Keyed[K]) Take(ctx context.Context, key K, cost int) (d Decision, err error) {
	// decide and Allow begin with the same lines: a function for them would cost as much as they do.
	var e *entry[K]
	if m := l.fastKeys; m != nil {
		e = m.Candidate(key)
	}
	if e == nil || l.onDecision != nil {
		return l.takeSlow(ctx, key, cost)
	}
	a := &e.Value
	now := reading(l.clock)
	a.mu.Lock()
	p := a.plan
	if p == nil || e.Key != key || p.seq != l.generation.Load().seq || !p.ordinary(cost) {
		a.mu.Unlock()
		_, _, err = l.decideSlow(key, cost, takeRequest, now, &d)
		return d, err
	}
	m := a.at(now)
	if !p.Simple(&a.State) {
		a.decide(m, int64(cost), takeRequest, &d)
		a.unlock(p, m, &d)
		return d, nil
	}
	a.last = m.Now
	var at, remaining, debt, regained, next int64
	if p.Bucket() {
		var owed meter.Owed
		at, owed = p.SpendBucket(&a.State, m.Now, int64(cost))
		a.use.decided(at == m.Now)
		a.mu.Unlock() // the division below needs no lock
		remaining, debt, regained, next = p.StandingOf(owed, m.Now)
	} else {
		at = p.Spend(&a.State, m.Now, int64(cost))
		a.use.decided(at == m.Now)
		s := a.State
		if s.OnHeap() {
			remaining, debt, regained = p.Standing(s, m.Now)
			next = p.next(&s, m.Now, remaining)
			a.mu.Unlock()
		} else {
			a.mu.Unlock() // the divisions below use a copy, and need no lock
			remaining, debt, regained = p.Standing(s, m.Now)
			next = p.next(&s, m.Now, remaining)
		}
	}
	d.Limit = p.limit
	if d.Allowed = at == m.Now; !d.Allowed {
		d.RetryAfter = between(m.Reading, at)
	}
	d.stands(m, remaining, debt, regained, next)
	return d, nil
}

// takeSlow is Take for new keys, for keys of unchecked types, and for limiters with OnDecision.
func (l *Keyed[K]) takeSlow(ctx context.Context, key K, cost int) (d Decision, err error) {
	var a *account
	a, _, err = l.decide(key, cost, takeRequest, &d)
	if l.onDecision != nil {
		l.report(ctx, key, cost, d, a != nil && d.Allowed, err)
	}
	return d, err
}

// decide decides, and fills in d. If an account was charged, it returns the account and the accepted offer.
func (l *Keyed[K]) decide(key K, cost int, q request, d *Decision) (a *account, o meter.Offer, err error) {
	var e *entry[K]
	if m := l.fastKeys; m != nil {
		e = m.Candidate(key)
	}
	if e == nil {
		return l.decideSlow(key, cost, q, unread, d)
	}
	a = &e.Value
	now := reading(l.clock)
	a.mu.Lock()
	p := a.plan
	if p == nil || e.Key != key || p.seq != l.generation.Load().seq || !p.ordinary(cost) && !(q.ends && p.fits(cost)) {
		a.mu.Unlock()
		return l.decideSlow(key, cost, q, now, d)
	}
	m := a.at(now)
	if q.turn == nil {
		o = a.decide(m, int64(cost), q, d)
	} else {
		o = a.decideTurn(l.clock, &l.waiting, m, int64(cost), q, d)
	}
	a.unlock(p, m, d)
	return a, o, nil
}

// decideSlow is decide for new keys, for changed limits, and if the cost is 0, negative
// or above the capacity. If the clock has been read, it decides at that reading.
func (l *Keyed[K]) decideSlow(key K, cost int, q request, now int64, d *Decision) (*account, meter.Offer, error) {
	if q.brief && cost < 0 {
		l.requireInit()
		return nil, meter.Offer{}, errDiscarded
	}
	if err := l.check(key, cost); err != nil {
		return nil, meter.Offer{}, err
	}
	for {
		refreshed := l.refreshed.Load() // before the call to LimitFor: see Keyed.Refresh
		p, err := l.planOfKey(key)
		if err == nil {
			err = p.endless(cost, &q)
		}
		if err != nil {
			if p != nil {
				d.Limit = p.limit
			}
			return nil, meter.Offer{}, err
		}
		if cost == 0 || int64(cost) > p.capacity || !p.tracks() {
			return nil, meter.Offer{}, l.decideUncharged(key, p, cost, q, now, refreshed, d)
		}
		a, first, created, err := l.keys.acquire(key, p, l.clock, false)
		if err != nil {
			d.Limit = p.limit
			return nil, meter.Offer{}, err
		}
		if created {
			now = first
		} else {
			now = l.reading(now)
			a.adopt(p, now)
		}
		if p = a.plan; int64(cost) > p.capacity || p.holds() && !q.ends {
			a.mu.Unlock()
			continue // the limit has changed in the meantime
		}
		m := a.at(now)
		var o meter.Offer
		if q.turn == nil {
			o = a.decide(m, int64(cost), q, d)
		} else {
			o = a.decideTurn(l.clock, &l.waiting, m, int64(cost), q, d)
		}
		if l.refreshed.Load() != refreshed {
			a.markStale()
		}
		a.unlock(p, m, d)
		l.adopted(key, p)
		return a, o, nil
	}
}

// decideUncharged decides if nothing is to be charged: the cost is 0 or above the capacity, or the limit counts nothing.
func (l *Keyed[K]) decideUncharged(key K, p *plan, cost int, q request, now int64, refreshed uint64, d *Decision) error {
	l.look(key, p, 0, takeRequest, now, d)
	if l.refreshed.Load() != refreshed {
		l.markStale(key)
	}
	switch d.Allowed = int64(cost) <= p.capacity; {
	case d.Allowed:
		return nil
	case q.brief:
		return errDiscarded
	}
	return p.exceeds(int64(cost))
}

// unread stands for a clock not read yet.
const unread = math.MinInt64

// reading returns now, or reads the clock if now is unread: a decision reads the clock once.
func (l *Keyed[K]) reading(now int64) int64 {
	if now == unread {
		return reading(l.clock)
	}
	return now
}

// look fills in the key's decision on a cost under the plan. It spends nothing.
func (l *Keyed[K]) look(key K, p *plan, cost int64, q request, now int64, d *Decision) {
	if !p.tracks() {
		d.Allowed, d.Limit, d.Remaining = true, p.limit, p.limit.Capacity()
		return
	}
	e := l.keys.accounts.Candidate(key)
	if now = l.reading(now); e != nil {
		a := l.keys.lockEntry(e, key)
		if a == nil {
			a = l.keys.lockFound(key)
		}
		if a != nil {
			a.look(p, now, cost, q, d)
			a.mu.Unlock()
			return
		}
	}
	u := l.keys.unseen(key)
	at, s := u.begin(p, now, q.peek)
	p.answer(s, meter.Moment{Reading: now, Now: at}, cost, d)
}

// Peek returns Take's decision without taking. Remaining and ResetAfter are as before the charge.
// It changes nothing. The errors are Take's, without [ErrTableFull]. Between [Keyed.SetLimit] and
// the key's next decision, its times hold for this instant only. The context is not used.
func (l *Keyed[K]) Peek(_ context.Context, key K, cost int) (d Decision, err error) {
	if err = l.check(key, cost); err != nil {
		return d, err
	}
	p, err := l.planOfKey(key)
	if err != nil {
		return d, err
	}
	return l.peek(key, p, cost)
}

// peek is Peek under a plan.
func (l *Keyed[K]) peek(key K, p *plan, cost int) (d Decision, err error) {
	if int64(cost) > p.capacity {
		err, cost = p.exceeds(int64(cost)), 0
	}
	l.look(key, p, int64(cost), peekRequest, unread, &d)
	d.Allowed = d.Allowed && err == nil
	return d, err
}

func init() {
	lastlimit.Of = func(keyed any, key string) any {
		t := keyed.(*Keyed[string]).table()
		a := t.lockFound(key)
		if a == nil {
			return nil
		}
		defer a.mu.Unlock()
		return a.plan.limit
	}
}

// Adjust corrects a key's spending. A positive delta is charged, also above the capacity: the excess
// becomes a debt, limited to the amount regained in 100 years. A negative delta is a grant: it refunds up
// to -delta units of spending. Under [Unlimited] and [Blocked] it does nothing. The errors wrap
// [ErrInvalidKey], [ErrInvalidLimit] or [ErrTableFull]; then nothing has changed. The context is not used.
func (l *Keyed[K]) Adjust(_ context.Context, key K, delta int) error {
	return l.debit(key, int64(delta), nil)
}

// debit is Adjust for any number of units.
func (l *Keyed[K]) debit(key K, delta int64, f *followed) error {
	if err := l.check(key, 0); err != nil {
		return err
	}
	refreshed := l.refreshed.Load()
	p, err := l.planOfKey(key)
	if err != nil {
		return err
	}
	return l.adjust(key, p, delta, refreshed, f)
}

// adjust is Adjust under a plan. refreshed is the value of l.refreshed at the plan's
// look-up. f receives the change unless it is nil: it is the request that follows the key.
func (l *Keyed[K]) adjust(key K, p *plan, delta int64, refreshed uint64, f *followed) error {
	if delta == 0 || !p.tracks() {
		return nil
	}
	if delta < 0 && !l.keys.knows(key, p, l.clock) {
		f.unspent()
		return nil
	}
	a, now, created, err := l.keys.acquire(key, p, l.clock, false)
	if err != nil {
		return err
	}
	defer a.mu.Unlock()
	if !created {
		now = reading(l.clock)
		if !p.ofRequest() && !l.isOfRequest(a.plan) { // only a decision puts a key under a request's limit, or ends that
			a.adopt(p, now)
		}
	}
	at := max(now, a.last)
	before := f.before(a, at)
	a.adjust(at, delta)
	f.after(a, at, before)
	if delta < 0 {
		l.keys.forgetPast(key)
	}
	if l.refreshed.Load() != refreshed {
		a.markStale()
	}
	return nil
}

// Reset forgets the key and its spending. The key's waiters keep their order, and share the fresh budget
// first. Open reservations lose their effect. The context is not used. The error wraps [ErrInvalidKey].
func (l *Keyed[K]) Reset(_ context.Context, key K) error {
	err := l.check(key, 0)
	if err != nil {
		return err
	}
	if l.lookups != nil {
		l.lookups.Drop(key)
	}
	if line := l.keys.forget(key); line != nil {
		_ = keyHome[K]{l, key}.renew(line) // if this fails, the line's first call tries again, and returns the error
	}
	return err
}

// Sweep drops the keys that are fresh and have been idle for [Options.IdleTTL], and returns how many.
func (l *Keyed[K]) Sweep() int { return l.table().sweep(l.clock) }

// Stats returns the counts. Each is exact, but they are not all read at one instant.
func (l *Keyed[K]) Stats() Stats {
	t := l.table()
	s := Stats{
		Keys:             int(t.count.Load()),
		Waiting:          int(l.waiting.n.Load()),
		Expired:          t.expired.Load(),
		Evicted:          t.evicted.Load(),
		EvictedThrottled: t.evictedThrottled.Load(),
		Refused:          t.refused.Load(),
	}
	if m := t.memory; m != nil {
		s.Recalled, s.Overflowed = m.recalled.Load(), m.overflowed.Load()
	}
	return s
}

// requireInit panics if New has not made the Keyed.
func (l *Keyed[K]) requireInit() {
	if l != nil && l.keys != nil {
		return
	}
	if _, single := any(*new(K)).(struct{}); single {
		panic(optional.Zero("ratelimit", "Single", "NewSingle"))
	}
	panic(optional.Zero("ratelimit", "Keyed", "New"))
}

func (l *Keyed[K]) table() *table[K] {
	l.requireInit()
	return l.keys
}

// Reserve is like [Keyed.Take], but may book budget up to maxDelay ahead. With 0, or if maxDelay is
// negative, it succeeds only if the work can begin now. Delay is how long to wait before the work begins.
// Later callers queue behind it, unless a changed limit leaves room before it. On a leaky bucket Delay is
// the time in the queue. RetryAfter is for the same maxDelay. Nothing is booked more than 100 years ahead.
//
// Settle the reservation when the real cost is known, or cancel it. A cost of 0 is allowed and charges nothing; Settle then
// charges the actual cost as [Keyed.Adjust] does. The reservation is never nil. The errors are the same as Take's.
func (l *Keyed[K]) Reserve(ctx context.Context, key K, cost int, maxDelay time.Duration) (*Reservation, error) {
	x := &keyedReservation[K]{l: l, key: key}
	r := &x.Reservation
	r.local = x
	q := reserveRequest(maxDelay, keepFor(ctx))
	q.ends = true
	var err error
	var o meter.Offer
	x.a, o, err = l.decide(key, cost, q, &r.Decision)
	x.sp = spendingOf(o, int64(cost), q.keep)
	if r.Allowed && r.Limit.Algorithm == AlgorithmConcurrent {
		r.hold = r.Limit.Rate.Per
	}
	if r.Delay > 0 {
		x.sp.number = meter.Arrival()
	}
	r.booked()
	if l.onDecision != nil {
		l.report(ctx, key, cost, r.Decision, x.a != nil && r.Allowed, err)
	}
	return r, err
}

// report calls OnDecision, which must be set.
func (l *Keyed[K]) report(ctx context.Context, key K, cost int, d Decision, spent bool, err error) {
	reports.Send(ctx, l.onDecision, Event[K]{Key: key, Cost: cost, Decision: d, Spent: spent, Err: err})
}

// check returns an error if the key or the cost is invalid under any limit.
func (l *Keyed[K]) check(key K, cost int) error {
	l.requireInit()
	if cost < 0 {
		return negativeCostError(cost)
	}
	if l.fastKeys == nil && !keys.CanCompare(key) {
		return fmt.Errorf("%w: %T cannot be compared", ErrInvalidKey, key)
	}
	if key != key {
		return fmt.Errorf("%w: a %T that does not equal itself", ErrInvalidKey, key)
	}
	return nil
}

func (l *Keyed[K]) limits() []Limit {
	l.requireInit()
	if l.limitFor != nil {
		return []Limit{{}}
	}
	return []Limit{l.generation.Load().def.limit}
}

// Describe returns the limit from New or SetLimit, or the zero Limit
// if [Options.LimitFor] gives each key its own. BooksAhead is true.
func (l *Keyed[K]) Describe() Description {
	limits := l.limits()
	return Description{Limits: limits, BooksAhead: true, Holds: limits[0].Algorithm == AlgorithmConcurrent}
}
