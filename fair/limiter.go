package fair

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/keys"
	"github.com/weir-go/ratelimit/internal/meter"
	"github.com/weir-go/ratelimit/internal/wait"
)

// Limiter shares one rate among tenants. Make one with [New]. It is safe for concurrent use. The methods of the zero Limiter
// panic.
type Limiter[K comparable] struct {
	opts      Options[K]
	checkKeys bool // keys hold interfaces, and so values that may not be comparable
	cloner    keys.Cloner[K]

	mu      sync.Mutex // guards the fields below
	budget  budget
	shares  shares[K]
	tenants map[K]*tenant[K]
	idle    tenant[K] // the list of tenants that do not count and have no waiters, the oldest first
	evicted uint64

	waiters   heap[K] // tenants with callers in Wait, by tag
	places    heap[K] // tenants with a place whose turn has not come, by tag
	deadlines heap[K] // tenants that count until an instant, by look
	ahead     int64   // the costs that tenants in both lines are in line for
	strangers int     // the number of places of tenants that have called only once
	relieved  int     // the number of calls of relieveLocked

	lineWeights uint64 // the weights of the tenants in both lines

	kept        uint64 // the room that is kept for tenants whose turn has come, in fractions of a unit
	keptWeights uint64 // their weights

	waiting int     // callers in Wait
	sleeper *waiter // the first of them, which sleeps on the clock until its time
}

var _ ratelimit.Reserver[string] = (*Limiter[string])(nil)

// New returns a limiter that shares a limit among tenants. The limit must be a token bucket with a burst of at most 2^40;
// otherwise the error wraps [ratelimit.ErrInvalidLimit]. Nil options mean the defaults.
func New[K comparable](limit ratelimit.Limit, opts *Options[K]) (*Limiter[K], error) {
	var o Options[K]
	if opts != nil {
		o = *opts
	}
	if err := checkLimit(limit); err != nil {
		return nil, err
	}
	if err := o.validate(); err != nil {
		return nil, err
	}
	if o.MaxKeys == 0 {
		o.MaxKeys = defaultMaxKeys
	}
	if o.MaxWaiting == 0 {
		o.MaxWaiting = defaultMaxWaiting
	}
	if o.Clock == nil {
		o.Clock = systemClock{}
	}
	l := &Limiter[K]{
		opts:      o,
		checkKeys: keys.HoldInterfaces[K](),
		cloner:    keys.NewCloner[K](),
		tenants:   make(map[K]*tenant[K]),
	}
	l.idle.next, l.idle.prev = &l.idle, &l.idle
	l.shares.debtors.kind, l.waiters.kind, l.places.kind, l.deadlines.kind = byDue, byTag, byTag, byExpires
	now := l.reading()
	l.budget.set(limit, now)
	l.budget.state.At = now
	l.shares.units, l.shares.per, l.shares.now = l.budget.units, l.budget.per, now
	return l, nil
}

// Allow is Take without details. An error counts as a denial.
func (l *Limiter[K]) Allow(tenant K, cost int) bool {
	if l.opts.OnDecision != nil {
		d, _ := l.Take(context.Background(), tenant, cost)
		return d.Allowed
	}
	ok, _ := l.decide(tenant, cost, meter.Final, nil, nil)
	return ok
}

// Take spends cost of the tenant's share, or nothing. Remaining is the largest cost that passes now. Debt is the
// part of the tenant's settlements and adjustments that the shared budget did not have, while it keeps the tenant from passing.
//
// A denied cost of at most half of the burst keeps a place in line, like a call of [Limiter.Wait]: when its turn comes, room is
// kept for a call of up to that cost, until 1.5 seconds after the time of RetryAfter. The place of a tenant's first call is
// given only while few such tenants have one. While a tenant is in line it counts, and saves its share.
//
// RetryAfter is the time after which the same cost is likely to pass; it assumes that the others keep their pace. A call
// before it costs no more than the call. For a tenant alone it is exact. A cost above half of the burst may be denied for as
// long as the others spend all they can.
//
// Errors wrap [ratelimit.ErrExceedsLimit], if the cost is above the burst, [ratelimit.ErrNegativeCost],
// [ratelimit.ErrInvalidKey] or [ratelimit.ErrTableFull]. The context is not used.
func (l *Limiter[K]) Take(_ context.Context, tenant K, cost int) (d ratelimit.Decision, err error) {
	_, err = l.decide(tenant, cost, meter.Final, &d, nil)
	l.report(tenant, cost, d, d.Allowed && cost > 0, err)
	return d, err
}

// Reserve is like Take, but returns a charge that can be settled when the real cost is known. With a maxDelay above 0 it waits
// in line like [Limiter.Wait], for at most that time: estimate, wait and settle in one call. It returns when the work may
// start, so the reservation's Delay is 0. A call that is not served in time, or finds no room in line, is denied.
//
// A cost settled below the estimate is refunded. A cost settled above it is an overrun: the total takes as much of it as
// empties the burst, and the rest bars the tenant alone, until its share would have paid for it.
//
// Errors are as for Take, and the context's error when it ends.
func (l *Limiter[K]) Reserve(ctx context.Context, tenant K, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	var d ratelimit.Decision
	var spent charge
	var err error
	if maxDelay > 0 {
		err = l.reserveInLine(wait.OrBackground(ctx), tenant, cost, maxDelay, &d, &spent)
	} else {
		_, err = l.decide(tenant, cost, meter.Open, &d, &spent)
	}
	l.report(tenant, cost, d, d.Allowed && cost > 0, err)
	return ratelimit.NewReservation(d, func(actual int) error {
		l.settle(tenant, spent, int64(actual))
		return nil
	}), err
}

// Peek returns the decision that Take would make, and changes nothing. In particular, a denial makes no place in line.
func (l *Limiter[K]) Peek(_ context.Context, tenant K, cost int) (d ratelimit.Decision, err error) {
	if err := l.check(tenant, cost); err != nil {
		return d, err
	}
	weight, reading := l.weight(tenant), l.reading()
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.wakeLocked()
	m := l.advanceLocked(reading)
	t := l.tenantLocked(tenant, weight, m)
	err = l.exceedsLocked(cost)
	d.Allowed = err == nil && (cost == 0 || l.passesLocked(t, m, int64(cost)))
	l.standingLocked(t, m, &d)
	if !d.Allowed && err == nil {
		d.RetryAfter = l.retryLocked(t, m, int64(cost))
	}
	return d, err
}

// Describe returns the limit that tenants share. Shared is true, and BooksAhead false.
func (l *Limiter[K]) Describe() ratelimit.Description {
	l.mu.Lock()
	defer l.mu.Unlock()
	return ratelimit.Description{Limits: []ratelimit.Limit{l.budget.limit}, Shared: true}
}

// SetLimit changes the limit. Spending stays; a lowered limit counts at most its burst as spent, and of each tenant's spending the same
// part. Places and callers in line stay, unless their cost is now too large: these callers get [ratelimit.ErrExceedsLimit].
// Errors are as for [New].
func (l *Limiter[K]) SetLimit(limit ratelimit.Limit) error {
	if err := checkLimit(limit); err != nil {
		return err
	}
	reading := l.reading()
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.wakeLocked()
	m := l.advanceLocked(reading)
	spent := l.budget.owedParts(m.Now)
	l.budget.set(limit, m.Now)
	if counted := l.budget.owedParts(m.Now); counted < spent {
		l.lowerLocked(spent, counted)
	}
	l.shares.units, l.shares.per, l.shares.restOfTime = l.budget.units, l.budget.per, 0
	l.refuseLocked()
	for _, x := range slices.Clone(l.deadlines.items) {
		t := x.tenant
		if t.spot.cost > l.mostKept() {
			l.losePlaceLocked(t)
			l.lingerLocked(t, t.spot.expires)
		}
	}
	l.hurryLocked()
	return nil
}

// lowerLocked lowers all debts and savings after the total has become lower by a change of the limit. When a raised limit charges the
// total for units that were set aside, no tenant owes them: they may be the spending of tenants that have paid since.
func (l *Limiter[K]) lowerLocked(total, counted uint64) {
	l.shares.surplus, _ = product(l.shares.surplus, counted).over(total)
	l.shares.common, _ = product(l.shares.common, counted).over(total)
	for _, t := range l.tenants {
		l.shares.lower(t, total, counted)
		l.movedLocked(t)
	}
}

// Stats holds the counts of a [Limiter].
type Stats struct {
	Tracked int    // tenants in the table
	InDebt  int    // tenants that share the rate now: they have a debt or are in line
	Waiting int    // callers in Wait, and in Reserve with a maxDelay
	Evicted uint64 // tenants with a debt or a place that were dropped from a full table
}

// Stats returns the counts.
func (l *Limiter[K]) Stats() Stats {
	reading := l.reading()
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.wakeLocked()
	l.advanceLocked(reading)
	return Stats{Tracked: len(l.tenants), InDebt: l.shares.count, Waiting: l.waiting, Evicted: l.evicted}
}

// check returns an error if the key or the cost is invalid under any limit.
func (l *Limiter[K]) check(key K, cost int) error {
	if cost < 0 {
		return fmt.Errorf("fair: %w: %d", ratelimit.ErrNegativeCost, cost)
	}
	if l.checkKeys && !keys.CanCompare(key) {
		return fmt.Errorf("fair: %w: a %v that cannot be compared", ratelimit.ErrInvalidKey, reflect.TypeFor[K]())
	}
	if key != key {
		return fmt.Errorf("fair: %w: a %v that does not equal itself", ratelimit.ErrInvalidKey, reflect.TypeFor[K]())
	}
	return nil
}

func (l *Limiter[K]) exceedsLocked(cost int) error {
	if uint64(cost) <= l.budget.burst {
		return nil
	}
	return fmt.Errorf("fair: %w: cost %d is above %d, the burst of %v",
		ratelimit.ErrExceedsLimit, cost, l.budget.burst, l.budget.limit)
}

func (l *Limiter[K]) weight(key K) uint64 {
	if l.opts.Weight == nil {
		return 1
	}
	return uint64(min(max(l.opts.Weight(key), 1), mostWeight))
}

func (l *Limiter[K]) report(key K, cost int, d ratelimit.Decision, spent bool, err error) {
	if l.opts.OnDecision != nil {
		l.opts.OnDecision(ratelimit.Event[K]{Key: key, Cost: cost, Decision: d, Spent: spent, Err: err})
	}
}

// maxReading leaves room to add a century to a reading, and to subtract any two.
const maxReading = 1 << 62

func (l *Limiter[K]) reading() int64 {
	return min(max(int64(l.opts.Clock.Now()), -maxReading), maxReading)
}

// systemClock reads the monotonic clock.
type systemClock struct{}

var origin = time.Now()

func (systemClock) Now() time.Duration { return time.Since(origin) }
