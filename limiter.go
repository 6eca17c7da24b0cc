// Package ratelimit limits how much each key may spend, in one process: exactly, and in
// bounded memory.
//
//	limiter, err := ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerSecond(10), 20), nil)
//	…
//	if !limiter.Allow("user:42", 1) {
//		// denied
//	}
//
// A [Limit] says how much is allowed, and which algorithm counts it: [TokenBucket], which
// suits most uses, [LeakyBucket], [FixedWindow], [SlidingLog], [SlidingCounter] or [Calendar].
// [New] makes a [Keyed] limiter, which gives each key its own budget.
//
// What to call on it:
//
//   - [Keyed.Allow]: yes or no. Most callers need no more.
//   - [Keyed.Take]: also how much is left, and when to retry. [Keyed.Peek]: the same, without
//     spending.
//   - [Keyed.Wait]: sleeps until the cost is allowed.
//   - [Keyed.Reserve]: charges an estimate, which is settled when the real cost is known.
//   - [Keyed.Adjust], [Keyed.Reset], [Keyed.SetLimit]: correct a key, or change the limit.
//   - [Keyed.All], [Keyed.Saved], [Keyed.Restore]: list the keys, and carry what they have spent
//     over a restart.
//
// [TakeUpTo] takes what there is, and package ban shuts out keys that are denied too often, on any
// limiter.
//
// [All] puts several limits on one request: either all of them are charged, or none.
// Package chain does so for limiters of any kind, [Map] finds the key in a request. Everything
// here is safe for concurrent use unless it says otherwise.
//
// # What the answers mean
//
// A key is fresh when it has its full budget: all that it has spent has been regained.
//
// For all algorithms, to the nanosecond:
//
//   - If nothing else is spent, a denied cost is allowed after RetryAfter, and not 1 ns
//     before. A cost of Remaining is allowed now, and one more is denied. After ResetAfter
//     the key is fresh.
//   - A denial charges nothing. Nor does a Peek, a cost of 0, an error, or a Wait that fails.
//     Only a stack's Wait may leave a charge, if it ends while a leaky bucket delays it: see [Layered.Wait].
//   - Each constructor of a limit states its bound. The bound holds whatever is reserved, settled
//     and cancelled, from any number of goroutines. Only a grant ([Keyed.Adjust] with a
//     negative delta), [Keyed.Reset] and eviction allow more.
//   - What Adjust or Settle charge above the capacity is a debt. It is regained at the
//     rate, or counted in the windows that follow.
//   - Budgets are whole numbers. No rate is rounded.
//
// docs/promises.md in the repository has the exact statements, and why each bound holds.
//
// # Time
//
// A clock that steps back gives no key more to spend: for a key that has seen a later
// reading, time stands still until the clock has caught up. After a jump forward, a key that was
// used stays denied until real time catches up, or until [Keyed.Reset]. The default
// clock is monotonic and does neither.
//
// # Calendars
//
// A [Calendar] is a quota of a calendar's days, weeks or months in a time zone. It finds the boundaries
// of its windows by the wall clock: see [WallClock]. A wall clock that is set forward over a boundary
// begins the next window early. One that is set back prolongs the window that has begun. Neither grants
// a window twice, to a key that is tracked, to one that was dropped when it was fresh, or to one that was saved and restored.
//
// Do not use one where nobody has to be told a date: a [FixedWindow] of a day needs no zone and no wall
// clock, and its keys do not all begin anew at one instant. Do not use one alone to protect a service:
// all of a month may be spent in its first second.
//
// In a testing/synctest bubble, make the limiter inside the bubble that uses it.
//
// # Memory
//
// A limiter tracks at most [Options.MaxKeys] keys and starts no goroutine. Fresh keys that
// have been idle for a minute are dropped as new keys come, which loses nothing.
//
// A full table forgets an old key for each new one: a fresh key if there is one among the
// few that are looked at, else one that was not used lately, and a throttled key (its last
// decision was a denial) last. What a forgotten key had spent is forgotten with it, so a
// client that can invent more keys than MaxKeys can get rid of a denial. With [Options.Remember]
// the limiter remembers what evicted keys have spent, in 16 bytes each: set it where strangers
// choose the keys. Or choose keys that cost something to get, put a second limit on what the
// keys have in common (a network, an account), or let the limiter refuse new keys ([RefuseNew]).
//
// A decision on a known key does not allocate, if the key's type has no pointers other
// than those of strings, or is [net/netip.Addr]. The text of string keys, also in the fields of
// struct keys, is copied when a key is inserted. Strings in interfaces are not copied.
package ratelimit

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/puzpuzpuz/xsync/v4"

	"github.com/weir-go/ratelimit/internal/keys"
	"github.com/weir-go/ratelimit/internal/meter"
)

// Limiter decides whether a key may spend. Callers should depend on this interface:
// the limiter in memory, a stack of layers and a remote limiter all implement it.
// Implementations are safe for concurrent use.
type Limiter[K any] interface {
	// Allow spends cost of key's budget and reports true; or it spends nothing
	// and reports false. On an error it reports false too. A cost of 0 is always allowed.
	Allow(key K, cost int) bool

	// Take is Allow with the details: how much is left, when to retry, what was
	// wrong. The context bounds the I/O of a remote limiter. In memory it is not used.
	Take(ctx context.Context, key K, cost int) (Decision, error)
}

// Reserver is a [Limiter] whose charge can be settled later.
type Reserver[K any] interface {
	Limiter[K]

	// Reserve is Take, but it may book up to maxDelay ahead, and what it has
	// charged can be corrected when the real cost is known. The Reservation is
	// never nil. If it is not Allowed, there is nothing to settle.
	Reserve(ctx context.Context, key K, cost int, maxDelay time.Duration) (*Reservation, error)
}

// Keyed is the limiter in memory: one budget for each key. Make one with [New]. It is
// safe for concurrent use, starts no goroutine and needs no closing. The methods of the
// zero Keyed panic.
type Keyed[K comparable] struct {
	clock      Clock
	generation atomic.Pointer[generation]
	refreshed  atomic.Uint64 // how often single keys were told to ask for their limits again
	keys       *table[K]
	limitFor   func(K) Limit
	onDecision func(Event[K])

	// certain says that New was called and that keys hold no interfaces. Else a key may fail
	// to be comparable, and has to be checked before it is looked up.
	certain bool

	// plain is the keys' map, if certain and if a decision can look a key up in it without
	// more ado, which saves it a call. Else nil.
	plain *xsync.Map[K, *account]
}

var _ Reserver[string] = (*Keyed[string])(nil)

// New returns a limiter that holds each key to the limit. Nil options are the
// defaults. If the limit is invalid, the error wraps [ErrInvalidLimit]; if an option is, it
// names the option and the figure.
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
		certain:    !keys.HoldInterfaces[K](),
	}
	if l.certain {
		l.plain = table.accounts.Plain()
	}
	l.generation.Store(g)
	return l, nil
}

// Must returns the limiter, or panics if there is an error. Use it for limits that
// the program itself contains: Must(New[string](TokenBucket(PerSecond(10), 20), nil)). It
// takes what any constructor of this package returns.
func Must[L any](l L, err error) L {
	if err != nil {
		panic(err)
	}
	return l
}

// Allow spends cost of the key's budget and reports true; or it spends nothing and
// reports false. Most callers should use it. It does not say for how long a leaky bucket
// delays the work; use Take or Wait there.
func (l *Keyed[K]) Allow(key K, cost int) bool {
	// The first lines are also those of decide: a call would cost as much as they do.
	var b *account
	if m := l.plain; m != nil {
		b, _ = m.Load(key)
	} else if l.certain {
		b = l.keys.find(key)
	}
	if b == nil || l.onDecision != nil {
		return l.allowSlow(key, cost)
	}
	b.mu.Lock()
	p := b.plan
	if p == nil || p.seq != l.generation.Load().seq {
		b.mu.Unlock()
		return l.allowSlow(key, cost)
	}
	if !p.ordinary(cost) {
		b.mu.Unlock()
		return cost == 0 // a cost below 0 or above the capacity changes nothing
	}
	now := max(reading(l.clock), b.last)
	b.last = now
	ok := p.Allow(&b.State, now, int64(cost))
	b.use.decided(ok)
	b.mu.Unlock()
	return ok
}

// allowSlow is Allow for new keys, for keys that are not tracked, for changed limits, and where
// OnDecision is to be told.
func (l *Keyed[K]) allowSlow(key K, cost int) bool {
	var d Decision
	if l.onDecision == nil {
		_, _, _ = l.decideSlow(key, cost, request{queue: take.queue, brief: true}, &d)
	} else {
		d, _ = l.Take(context.Background(), key, cost)
	}
	return d.Allowed
}

// Take spends cost of the key's budget, or nothing, and says how much is left and when to
// retry.
//
// The error is nil if the cost was allowed, and also if it was denied for now: then see
// [Decision.RetryAfter]. Else it wraps one of these: [ErrExceedsLimit], if the cost can
// never be allowed; [ErrNegativeCost]; [ErrInvalidKey]; [ErrInvalidLimit], if LimitFor
// returned an invalid limit; [ErrTableFull].
func (l *Keyed[K]) Take(_ context.Context, key K, cost int) (d Decision, err error) {
	var b *account
	b, _, err = l.decide(key, cost, take, &d)
	if l.onDecision != nil {
		l.report(key, cost, d, b != nil && d.Allowed, err)
	}
	return d, err
}

// decide decides, and fills in d. If an account was charged, it returns the account and the
// offer that was accepted.
func (l *Keyed[K]) decide(key K, cost int, q request, d *Decision) (b *account, o meter.Offer, err error) {
	if m := l.plain; m != nil {
		b, _ = m.Load(key)
	} else if l.certain {
		b = l.keys.find(key)
	}
	if b == nil {
		return l.decideSlow(key, cost, q, d)
	}
	b.mu.Lock()
	if p := b.plan; p == nil || p.seq != l.generation.Load().seq || !p.ordinary(cost) {
		b.mu.Unlock()
		return l.decideSlow(key, cost, q, d)
	}
	o = b.decide(reading(l.clock), int64(cost), q, d)
	b.mu.Unlock()
	return b, o, nil
}

// decideSlow is decide for new keys, for changed limits, and for costs that are 0 or
// invalid or above the capacity.
func (l *Keyed[K]) decideSlow(key K, cost int, q request, d *Decision) (*account, meter.Offer, error) {
	if q.brief && cost < 0 {
		l.keys.mustBe()
		return nil, meter.Offer{}, errUntold
	}
	if err := l.check(key, cost); err != nil {
		return nil, meter.Offer{}, err
	}
	for {
		refreshed := l.refreshed.Load() // before LimitFor is asked: see Keyed.Refresh
		p, err := l.planFor(key)
		if err != nil {
			return nil, meter.Offer{}, err
		}
		if never := int64(cost) > p.capacity; never || cost == 0 || !p.tracks() {
			l.look(key, p, 0, take, d)
			switch d.Allowed = !never; {
			case !never:
				d.RetryAfter = 0
			case q.brief:
				err = errUntold
			default:
				err = p.exceeds(int64(cost))
			}
			return nil, meter.Offer{}, err
		}
		b, raw, created, err := l.keys.acquire(key, p, l.clock)
		if err != nil {
			d.Limit = p.limit
			return nil, meter.Offer{}, err
		}
		if !created {
			raw = reading(l.clock)
			b.adopt(p, raw)
		}
		if p = b.plan; int64(cost) > p.capacity {
			b.mu.Unlock()
			continue // the limit has changed in the meantime
		}
		o := b.decide(raw, int64(cost), q, d)
		if l.refreshed.Load() != refreshed {
			b.markStale()
		}
		b.mu.Unlock()
		return b, o, nil
	}
}

// planFor returns the plan of the key's limit. It may call LimitFor.
func (l *Keyed[K]) planFor(key K) (*plan, error) {
	var b *account
	if l.limitFor != nil {
		b = l.keys.find(key)
	}
	return l.planOf(key, b)
}

// planOf is planFor for a key whose account is b, if it has one.
func (l *Keyed[K]) planOf(key K, b *account) (*plan, error) {
	g := l.generation.Load()
	if l.limitFor == nil {
		return g.def, nil
	}
	if b != nil {
		b.mu.Lock()
		p := b.plan
		b.mu.Unlock()
		if p != nil && p.seq == g.seq {
			return p, nil
		}
	}
	p, err := g.plan(l.limitFor(key))
	if err != nil {
		return nil, fmt.Errorf("ratelimit: Options.LimitFor: %w", err)
	}
	return p, nil
}

// given returns the plan for a limit that a request brings along, for a key whose
// account is b, if it has one. The plan of the key's last decision is the likely one:
// then the cost does not depend on how many plans there are.
func (l *Keyed[K]) given(b *account, limit Limit) (*plan, error) {
	g := l.generation.Load()
	limit = g.named(limit)
	if l.limitFor == nil && limit == g.def.limit {
		return g.def, nil // a call without a limit would be decided under it too
	}
	if b != nil {
		b.mu.Lock()
		p := b.plan
		b.mu.Unlock()
		if p != nil && p.seq == g.seq|givenBit && p.limit == limit {
			return p, nil
		}
	}
	if m := l.keys.memory; m != nil {
		m.mixed.Store(true)
	}
	return g.given(limit)
}

// look fills in what the key would answer to a cost under the plan. It spends nothing.
func (l *Keyed[K]) look(key K, p *plan, cost int64, q request, d *Decision) {
	if !p.tracks() {
		d.Allowed, d.Limit, d.Remaining = true, p.limit, p.limit.Capacity()
		return
	}
	if b := l.keys.find(key); b != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.plan != nil {
			b.look(p, reading(l.clock), cost, q, d)
			return
		}
	}
	now := reading(l.clock)
	u := l.keys.unseen(key)
	at, s := u.begin(p, now, q.peek)
	p.answer(s, meter.Moment{Reading: now, Now: at}, cost, d)
}

// Peek says what Take would answer. Allowed, RetryAfter and Delay are for this cost;
// Remaining and ResetAfter are what they are before anything is spent. It changes nothing,
// and a key that is not tracked stays so. The errors are those of Take, without [ErrTableFull].
//
// After [Keyed.SetLimit], and before the key's next decision, its times are only what Take
// would say at this instant: any Take puts the key under the new limit, and a
// Peek leaves it to regain at the old rate.
func (l *Keyed[K]) Peek(key K, cost int) (d Decision, err error) {
	if err = l.check(key, cost); err != nil {
		return d, err
	}
	p, err := l.planFor(key)
	if err != nil {
		return d, err
	}
	if int64(cost) > p.capacity {
		err, cost = p.exceeds(int64(cost)), 0
	}
	l.look(key, p, int64(cost), peek, &d)
	d.Allowed = d.Allowed && err == nil
	return d, err
}

// Adjust corrects what a key has spent. A positive delta is charged, even if it does not fit:
// what is above the capacity is a debt, which is regained at the rate or as the windows
// pass. Debt is capped at what 100 years regain. A negative delta is a grant: it gives back
// that much of what is spent, and no more than all of it. A delta of 0 does nothing, nor
// does any delta under [Unlimited] and [Blocked]. The errors wrap [ErrInvalidKey],
// [ErrInvalidLimit] or [ErrTableFull]; after an error nothing has changed.
func (l *Keyed[K]) Adjust(key K, delta int) error { return l.charge(key, int64(delta)) }

// charge is Adjust.
func (l *Keyed[K]) charge(key K, delta int64) error {
	if err := l.check(key, 0); err != nil {
		return err
	}
	refreshed := l.refreshed.Load()
	p, err := l.planFor(key)
	if err != nil {
		return err
	}
	return l.adjust(key, p, delta, refreshed)
}

// adjust is Adjust under a plan that was found when the counter stood at refreshed.
func (l *Keyed[K]) adjust(key K, p *plan, delta int64, refreshed uint64) error {
	if delta == 0 || !p.tracks() || delta < 0 && !l.keys.knows(key, p, l.clock) {
		return nil
	}
	b, now, created, err := l.keys.acquire(key, p, l.clock)
	if err != nil {
		return err
	}
	defer b.mu.Unlock()
	if !created {
		now = reading(l.clock)
		b.adopt(p, now)
	}
	b.adjust(max(now, b.last), delta)
	if delta < 0 {
		l.keys.forgetPast(key)
	}
	if l.refreshed.Load() != refreshed {
		b.markStale()
	}
	return nil
}

// Reset forgets the key and what it has spent. To settle what was reserved before has
// no effect any more. It does nothing if the key is not tracked.
func (l *Keyed[K]) Reset(key K) {
	if l.check(key, 0) == nil {
		l.keys.forget(key)
	}
}

// Sweep drops every key that is fresh and has been idle for [Options.IdleTTL], and returns
// how many it dropped. A key that another call is using at this moment is kept. You need
// not call it, because old keys are dropped as new ones come. It gives memory back after a peak.
func (l *Keyed[K]) Sweep() int { return l.table().sweep(l.clock) }

// Len returns how many keys are tracked.
func (l *Keyed[K]) Len() int { return int(l.table().count.Load()) }

// table returns the key table, or panics if there is none.
func (l *Keyed[K]) table() *table[K] {
	l.keys.mustBe()
	return l.keys
}

// Reserve is Take, but it may book up to maxDelay ahead; a maxDelay below zero counts as
// zero. Delay says when the work may begin, and later callers queue behind it. On a leaky
// bucket Delay is the time in the queue, and the cost is denied if that is above maxDelay.
// The RetryAfter of a denial is for the same call, with this maxDelay. Nothing is booked so
// far ahead that to regain it would take more than 100 years.
//
// Settle the reservation when the real cost is known, or cancel it. The reservation is never
// nil. The errors are those of Take.
//
// A cost of 0 charges nothing, and is allowed: to settle that reservation charges the
// actual cost as [Keyed.Adjust] does.
func (l *Keyed[K]) Reserve(_ context.Context, key K, cost int, maxDelay time.Duration) (*Reservation, error) {
	x := &keyedReservation[K]{l: l, key: key}
	r := &x.Reservation
	r.keyed = x
	var err error
	var o meter.Offer
	x.b, o, err = l.decide(key, cost, reserve(maxDelay), &r.Decision)
	x.sp = spendingOf(o, int64(cost))
	r.booked()
	if l.onDecision != nil {
		l.report(key, cost, r.Decision, x.b != nil && r.Allowed, err)
	}
	return r, err
}

// report tells OnDecision, which there is.
func (l *Keyed[K]) report(key K, cost int, d Decision, spent bool, err error) {
	l.onDecision(Event[K]{Key: key, Cost: cost, Decision: d, Spent: spent, Err: err})
}

// check returns what is wrong with the key or the cost under any limit.
func (l *Keyed[K]) check(key K, cost int) error {
	l.keys.mustBe()
	if cost < 0 {
		return negativeCostError(cost)
	}
	if !l.certain && !keys.CanCompare(key) {
		return fmt.Errorf("%w: %T cannot be compared", ErrInvalidKey, key)
	}
	if key != key {
		return fmt.Errorf("%w: a %T that does not equal itself", ErrInvalidKey, key)
	}
	return nil
}

// Limits returns the limit of New or SetLimit, or the zero Limit if
// [Options.LimitFor] gives each key its own. An HTTP header can tell it before the
// first decision.
func (l *Keyed[K]) Limits() []Limit {
	l.keys.mustBe()
	if l.limitFor != nil {
		return []Limit{{}}
	}
	return []Limit{l.generation.Load().def.limit}
}
