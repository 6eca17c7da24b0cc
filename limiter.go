// Package ratelimit decides, in nanoseconds and exactly, whether a key may spend now.
//
//	limiter, err := ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerSecond(10), 20), nil)
//	…
//	if !limiter.Allow("user:42", 1) {
//		// not now
//	}
//
// A [Limit] says what is allowed, and by which of five algorithms it is counted:
// [TokenBucket], which suits most, [LeakyBucket], [FixedWindow], [SlidingLog] and
// [SlidingCounter]. A [Keyed] limiter, made by [New], gives each key a budget of its
// own. Most callers need [Keyed.Allow]; [Keyed.Take] says why not, how much is left
// and when to retry; [Keyed.Wait] sleeps until it is time; [Keyed.Reserve] charges an
// estimate that is settled later. [All] puts several limits on one request: all of
// them allow it, or none is charged.
//
// # What the answers mean
//
// These hold for all five algorithms, to the nanosecond:
//
//   - If nothing else is spent, a denied cost is denied 1 ns before RetryAfter, and allowed
//     at it. Remaining is allowed at this instant, and one more is not. At ResetAfter the
//     key cannot be told from one never seen, and 1 ns before it can.
//   - A denial charges nothing. Neither does a Peek, a cost of 0, an error, or a Wait
//     that fails.
//   - The limit's bound, which each constructor states, holds whatever is reserved,
//     settled and cancelled, from however many goroutines. Only a grant, [Keyed.Adjust]
//     with a negative delta, is outside of it.
//   - What is spent above a capacity, by Adjust or by settling, is a debt: it is regained
//     at the rate, or runs over into the windows to come, and is capped at 100 years.
//   - Budgets are counted in whole numbers; no rate is rounded.
//   - Time that steps back mints nothing: a key's time stands still until the clock has
//     caught up, and RetryAfter and ResetAfter include that. One reading far in the
//     future locks a key until the clock gets there, or [Keyed.Reset].
//
// In a testing/synctest bubble, build the limiter inside the bubble it is used in.
//
// # Memory
//
// A limiter tracks at most [Options.MaxKeys] keys and starts no goroutine. Keys that
// have been idle for a minute and are as good as new leave as others come. A full table
// forgets one of the least recently used keys for a new one, and with it what that had
// spent; see [Options.OnFull] and [Keyed.Stats].
//
// A known key is decided on without allocating if its type holds no pointers but
// strings, or is [netip.Addr].
package ratelimit

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit/internal/keys"
)

// Limiter decides whether a key may spend. It is what callers should depend on:
// the in-memory limiter, a stack of layers and a remote limiter all are one.
// Implementations are safe for concurrent use.
type Limiter[K any] interface {
	// Allow spends cost of key's budget and reports true; or it spends nothing
	// and reports false, on any error too. A cost of 0 is always allowed.
	Allow(key K, cost int) bool

	// Take is Allow with the reasons: how much is left, when to retry, what was
	// wrong. The context bounds the I/O of a remote limiter; in memory it is unused.
	Take(ctx context.Context, key K, cost int) (Decision, error)
}

// Reserver is a [Limiter] whose charge can be settled later.
type Reserver[K any] interface {
	Limiter[K]

	// Reserve is Take, but it may book ahead by up to maxDelay, and what it
	// charged can be corrected once the real cost is known. The Reservation is
	// never nil; if it is not Allowed, there is nothing to settle.
	Reserve(ctx context.Context, key K, cost int, maxDelay time.Duration) (*Reservation, error)
}

// Keyed is the in-memory limiter: one budget for each key. Make one with [New]. It
// is safe for concurrent use, starts no goroutine and needs no closing. The zero
// Keyed cannot be used.
type Keyed[K comparable] struct {
	clock      Clock
	era        atomic.Pointer[era]
	refreshed  atomic.Uint64 // how many times keys were told to ask for their limits again
	keys       *table[K]
	limitFor   func(K) Limit
	onDecision func(Event[K])
	odd        bool // keys hold interfaces, and so values that may not be comparable
}

var _ Reserver[string] = (*Keyed[string])(nil)

// New returns a limiter that holds each key to the limit. The error wraps
// [ErrInvalidLimit] if the limit is invalid, and names the option and the figure
// if one is.
func New[K comparable](limit Limit, opts *Options[K]) (*Keyed[K], error) {
	var o Options[K]
	if opts != nil {
		o = *opts
	}
	if o.MaxKeys == 0 {
		o.MaxKeys = defaultMaxKeys
	}
	if o.Clock == nil {
		o.Clock = systemClock{}
	}
	if err := o.validate(); err != nil {
		return nil, err
	}
	table := newTable[K](o.MaxKeys, o.OnFull, o.IdleTTL)
	e, err := firstEra(limit, table.early())
	if err != nil {
		return nil, err
	}
	l := &Keyed[K]{
		clock:      o.Clock,
		keys:       table,
		limitFor:   o.LimitFor,
		onDecision: o.OnDecision,
		odd:        keys.HoldInterfaces[K](),
	}
	l.era.Store(e)
	return l, nil
}

// Must returns the limiter, or panics if there is an error. It is for limits that
// are written in the program: Must(New[string](TokenBucket(PerSecond(10), 20), nil)).
func Must[K comparable](l *Keyed[K], err error) *Keyed[K] {
	if err != nil {
		panic(err)
	}
	return l
}

// Allow spends cost of the key's budget and reports true; or it spends nothing and
// reports false. It is what most callers should use. On a leaky bucket it does
// not say how long to hold the work; use Take or Wait there.
func (l *Keyed[K]) Allow(key K, cost int) bool {
	if !l.odd && l.onDecision == nil {
		if b := l.keys.find(key); b != nil {
			b.mu.Lock()
			if p := b.plan; p != nil && p.seq == l.era.Load().seq && p.ordinary(cost) {
				ok := b.allow(p, reading(l.clock), int64(cost))
				b.mu.Unlock()
				return ok
			}
			b.mu.Unlock()
		}
	}
	d, _ := l.Take(context.Background(), key, cost)
	return d.Allowed
}

// Take spends cost of the key's budget, or nothing, and says how the key stands.
//
// The error is nil if the cost was allowed, and if it was denied for now: see
// [Decision.RetryAfter]. It wraps [ErrExceedsLimit] if the cost can never pass,
// [ErrNegativeCost], [ErrInvalidKey], [ErrInvalidLimit] if LimitFor returned a
// limit that is invalid, and [ErrTableFull].
func (l *Keyed[K]) Take(_ context.Context, key K, cost int) (d Decision, err error) {
	var b *account
	b, _, err = l.decide(key, cost, take, &d)
	l.report(key, cost, d, b != nil && d.Allowed, err)
	return d, err
}

// decide decides, and fills in d. It returns the bucket that was charged and with
// what, if any was.
func (l *Keyed[K]) decide(key K, cost int, q request, d *Decision) (b *account, o offer, err error) {
	if !l.odd {
		if b = l.keys.find(key); b != nil {
			b.mu.Lock()
			if p := b.plan; p != nil && p.seq == l.era.Load().seq && p.ordinary(cost) {
				o = b.decide(reading(l.clock), int64(cost), q, d)
				b.mu.Unlock()
				return b, o, nil
			}
			b.mu.Unlock()
		}
	}
	return l.decideSlow(key, cost, q, d)
}

// decideSlow is decide for all that is not an ordinary cost of a known key.
func (l *Keyed[K]) decideSlow(key K, cost int, q request, d *Decision) (*account, offer, error) {
	if err := l.check(key, cost); err != nil {
		return nil, offer{}, err
	}
	for {
		refreshed := l.refreshed.Load()
		p, err := l.planFor(key)
		if err != nil {
			return nil, offer{}, err
		}
		if err = p.check(cost); err != nil || cost == 0 || !p.tracks() {
			l.look(key, p, 0, d)
			if d.Allowed = err == nil; d.Allowed {
				d.RetryAfter = 0
			}
			return nil, offer{}, err
		}
		b, raw, fresh, err := l.keys.acquire(key, p, l.clock)
		if err != nil {
			d.Limit = p.limit
			return nil, offer{}, err
		}
		if !fresh {
			raw = reading(l.clock)
			b.adopt(p, raw)
		}
		if p = b.plan; int64(cost) > p.capacity {
			b.mu.Unlock()
			continue // the limit has changed in the meantime
		}
		o := b.decide(raw, int64(cost), q, d)
		if l.refreshed.Load() != refreshed {
			b.expire()
		}
		b.mu.Unlock()
		return b, o, nil
	}
}

// planFor returns the plan that the key has, or is to have.
func (l *Keyed[K]) planFor(key K) (*plan, error) {
	e := l.era.Load()
	if l.limitFor == nil {
		return e.def, nil
	}
	if b := l.keys.find(key); b != nil {
		b.mu.Lock()
		p := b.plan
		b.mu.Unlock()
		if p != nil && p.seq == e.seq {
			return p, nil
		}
	}
	p, err := e.plan(l.limitFor(key))
	if err != nil {
		return nil, fmt.Errorf("ratelimit: Options.LimitFor: %w", err)
	}
	return p, nil
}

// given returns the plan for a limit that a request brings along, for a key whose
// account is b, if it has one. The plan of the key's last decision is the likely one:
// then the cost does not depend on how many plans there are.
func (l *Keyed[K]) given(b *account, limit Limit) (*plan, error) {
	e := l.era.Load()
	limit = e.named(limit)
	if b != nil {
		b.mu.Lock()
		p := b.plan
		b.mu.Unlock()
		if p != nil && p.seq == e.seq|givenBit && p.limit == limit {
			return p, nil
		}
	}
	return e.given(limit)
}

// look fills in how the key stands under the plan, and what it would answer to a
// cost, without changing anything.
func (l *Keyed[K]) look(key K, p *plan, cost int64, d *Decision) {
	if !p.tracks() {
		d.Allowed, d.Limit, d.Remaining = true, p.limit, p.limit.Capacity()
		return
	}
	if b := l.keys.find(key); b != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.plan != nil {
			b.look(p, reading(l.clock), cost, d)
			return
		}
	}
	now := reading(l.clock)
	at := max(now, l.keys.floor(key))
	p.answer(state{at: at}, moment{now, at}, cost, d)
}

// Peek says what Take would answer, and how the key stands: Allowed, RetryAfter and
// Delay are for this cost, Remaining and ResetAfter are as they are now. It changes
// nothing and tracks nothing. The errors are Take's, but for [ErrTableFull].
func (l *Keyed[K]) Peek(key K, cost int) (d Decision, err error) {
	if err = l.check(key, cost); err != nil {
		return d, err
	}
	p, err := l.planFor(key)
	if err != nil {
		return d, err
	}
	if err = p.check(cost); err != nil {
		cost = 0
	}
	l.look(key, p, int64(cost), &d)
	d.Allowed = d.Allowed && err == nil
	return d, err
}

// Adjust corrects what a key has spent. A positive delta charges it, into debt if
// need be: what is above the capacity is regained as the algorithm regains, at the
// rate or as its windows pass. Debt is capped at what 100 years regain. A
// negative delta is a grant: it gives back that much of what is spent, never
// past a fresh key. A delta of 0 does nothing, and so does any delta under
// [Unlimited] and [Blocked]. The errors are [ErrInvalidKey], [ErrInvalidLimit] and
// [ErrTableFull]; with an error, nothing was changed.
func (l *Keyed[K]) Adjust(key K, delta int) error {
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
func (l *Keyed[K]) adjust(key K, p *plan, delta int, refreshed uint64) error {
	if delta == 0 || !p.tracks() || delta < 0 && l.keys.find(key) == nil {
		return nil
	}
	b, now, fresh, err := l.keys.acquire(key, p, l.clock)
	if err != nil {
		return err
	}
	defer b.mu.Unlock()
	if !fresh {
		now = reading(l.clock)
		b.adopt(p, now)
	}
	b.adjust(max(now, b.last), int64(delta))
	if l.refreshed.Load() != refreshed {
		b.expire()
	}
	return nil
}

// Reset forgets the key: its next decision is that of a key never seen. What was
// reserved before cannot be settled any more.
func (l *Keyed[K]) Reset(key K) {
	if l.check(key, 0) == nil {
		l.keys.forget(key)
	}
}

// Sweep drops every key that is as good as new and has been idle for
// [Options.IdleTTL], and returns how many it dropped. Nothing needs it to be
// called: old keys leave as new ones come. It is for giving memory back.
func (l *Keyed[K]) Sweep() int { return l.keys.sweep(l.clock) }

// Len returns how many keys are tracked.
func (l *Keyed[K]) Len() int { return int(l.keys.keys.Load()) }

// Reserve is Take, but it may book ahead by up to maxDelay (below zero counts as zero):
// Delay says when the work may begin, and later callers queue behind it. On a leaky
// bucket Delay is the queue's, and one above maxDelay is denied. A denial's
// RetryAfter is for the same call: with this maxDelay. Nothing is booked so far
// ahead that it would take more than 100 years to regain. Settle the reservation when
// the real cost is known, or cancel it. It is never nil; errors are those of Take.
//
// With a cost of 0 nothing is charged, and the reservation is allowed: to settle it
// charges the actual cost as [Keyed.Adjust] does.
func (l *Keyed[K]) Reserve(_ context.Context, key K, cost int, maxDelay time.Duration) (*Reservation, error) {
	r := &Reservation{clock: l.clock}
	var err error
	var o offer
	r.b, o, err = l.decide(key, cost, reserve(maxDelay), &r.Decision)
	r.spending = o.spending(int64(cost))
	if cost == 0 && r.Allowed {
		r.settle = func(actual int) error { return l.Adjust(key, actual) }
	}
	r.booked()
	l.report(key, cost, r.Decision, r.b != nil && r.Allowed, err)
	return r, err
}

// report tells OnDecision.
func (l *Keyed[K]) report(key K, cost int, d Decision, spent bool, err error) {
	if l.onDecision != nil {
		l.onDecision(Event[K]{Key: key, Cost: cost, Decision: d, Spent: spent, Err: err})
	}
}

// check returns what is wrong with the key or the cost whatever the limit.
func (l *Keyed[K]) check(key K, cost int) error {
	if cost < 0 {
		return fmt.Errorf("%w: %d", ErrNegativeCost, cost)
	}
	if l.odd && !keys.CanCompare(key) {
		return fmt.Errorf("%w: %T cannot be compared", ErrInvalidKey, key)
	}
	if key != key {
		return fmt.Errorf("%w: a %T that does not equal itself", ErrInvalidKey, key)
	}
	return nil
}

// Limits returns the limit of New or SetLimit, or the zero Limit if
// [Options.LimitFor] gives each key its own. It is what an HTTP header can say
// before the first decision.
func (l *Keyed[K]) Limits() []Limit {
	if l.limitFor != nil {
		return []Limit{{}}
	}
	return []Limit{l.era.Load().def.limit}
}
