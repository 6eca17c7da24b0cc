package fair

import (
	"container/heap"
	"context"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/keys"
	"github.com/weir-go/ratelimit/internal/meter"
)

// Limiter shares one rate among tenants. Make one with [New]. It is safe for concurrent use. Methods of the zero Limiter
// panic.
type Limiter[K comparable] struct {
	opts   Options[K]
	odd    bool // keys hold interfaces, and so values that may not be comparable
	cloner keys.Cloner[K]

	mu      sync.Mutex // guards what follows
	budget  budget
	shares  shares[K]
	tenants map[K]*tenant[K]
	idle    tenant[K] // the list of those that owe nothing and have no waiters, the oldest first
	lines   lines[K]
	waiting int
	sleeper *waiter // that has come first of all, and sleeps on the clock until its time
	evicted uint64
}

var _ ratelimit.Reserver[string] = (*Limiter[string])(nil)

// New returns a limiter that shares a limit among tenants. If that is no token bucket of at most 2^40 units, the error wraps
// [ratelimit.ErrInvalidLimit].
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
		opts:    o,
		odd:     keys.HoldInterfaces[K](),
		cloner:  keys.NewCloner[K](),
		tenants: make(map[K]*tenant[K]),
	}
	l.idle.next, l.idle.prev = &l.idle, &l.idle
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
	ok, _, _ := l.decide(tenant, cost, meter.Final, nil)
	return ok
}

// Take spends cost of the tenant's share, or nothing. Remaining is the largest cost that would pass now.
//
// RetryAfter supposes that the others go on as they do. A tenant that comes back then, with no larger cost, need not fit its
// share again; twice the cost must be free of the burst. For a tenant alone, with no callers in Wait, it is exact. For a
// cost that can pass only when others pause, it supposes that they do.
//
// Errors wrap [ratelimit.ErrExceedsLimit], if the cost is above the burst, [ratelimit.ErrNegativeCost],
// [ratelimit.ErrInvalidKey] or [ratelimit.ErrTableFull]. The context is not used.
func (l *Limiter[K]) Take(_ context.Context, tenant K, cost int) (d ratelimit.Decision, err error) {
	_, _, err = l.decide(tenant, cost, meter.Final, &d)
	l.report(tenant, cost, d, d.Allowed && cost > 0, err)
	return d, err
}

// Reserve is Take with a charge that can be settled. To settle above the cost charges the tenant, as a debt if need be. To
// settle below gives back what the rate has not given back since.
func (l *Limiter[K]) Reserve(_ context.Context, tenant K, cost int, _ time.Duration) (*ratelimit.Reservation, error) {
	var d ratelimit.Decision
	_, spent, err := l.decide(tenant, cost, meter.Open, &d)
	l.report(tenant, cost, d, d.Allowed && cost > 0, err)
	return ratelimit.NewReservation(d, func(actual int) error {
		l.settle(tenant, spent, int64(actual))
		return nil
	}), err
}

// BooksAhead reports false: see [ratelimit.Booker].
func (l *Limiter[K]) BooksAhead() bool { return false }

// Peek returns what Take would answer, and changes nothing.
func (l *Limiter[K]) Peek(tenant K, cost int) (d ratelimit.Decision, err error) {
	if err := l.check(tenant, cost); err != nil {
		return d, err
	}
	weight, reading := l.weight(tenant), l.reading()
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.wakeLocked()
	m := l.advanceLocked(reading)
	t, _ := l.tenantLocked(tenant, weight, false)
	err = l.exceedsLocked(cost)
	d.Allowed = err == nil && (cost == 0 || l.passesLocked(t, m, int64(cost)))
	l.standingLocked(t, m, &d)
	if !d.Allowed && err == nil {
		d.RetryAfter, _ = l.retryLocked(t, m, int64(cost))
	}
	return d, err
}

// Limits returns the limit that tenants share.
func (l *Limiter[K]) Limits() []ratelimit.Limit {
	l.mu.Lock()
	defer l.mu.Unlock()
	return []ratelimit.Limit{l.budget.limit}
}

// SetLimit changes the limit. What was spent stays spent. The errors are those of [New].
func (l *Limiter[K]) SetLimit(limit ratelimit.Limit) error {
	if err := checkLimit(limit); err != nil {
		return err
	}
	reading := l.reading()
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.wakeLocked()
	m := l.advanceLocked(reading)
	l.budget.set(limit, m.Now)
	l.shares.units, l.shares.per, l.shares.restOfTime = l.budget.units, l.budget.per, 0
	l.refuseLocked()
	l.hurryLocked()
	return nil
}

// Stats says how a [Limiter] stands.
type Stats struct {
	Tracked int    // tenants in the table
	InDebt  int    // tenants that owe something
	Waiting int    // callers in Wait
	Evicted uint64 // tenants dropped from a full table that owed something
}

// Stats returns the counts.
func (l *Limiter[K]) Stats() Stats {
	reading := l.reading()
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.wakeLocked()
	l.advanceLocked(reading)
	return Stats{Tracked: len(l.tenants), InDebt: len(l.shares.debtors), Waiting: l.waiting, Evicted: l.evicted}
}

// charge is what a tenant was charged, as it is settled later.
type charge struct {
	meter.Spending
	changes uint32 // the budget's when it was spent
}

// decide spends a cost or denies it, and fills in d, if it is not nil.
func (l *Limiter[K]) decide(key K, cost int, keep meter.Keep, d *ratelimit.Decision) (ok bool, c charge, err error) {
	if err := l.check(key, cost); err != nil {
		return false, c, err
	}
	weight, reading := l.weight(key), l.reading()
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.wakeLocked()
	m := l.advanceLocked(reading)
	if err := l.exceedsLocked(cost); err != nil {
		if d != nil {
			l.standingLocked(newTenant(key, weight), m, d)
		}
		return false, c, err
	}
	t, err := l.tenantLocked(key, weight, cost > 0)
	if err != nil {
		if d != nil {
			d.Limit = l.budget.limit
		}
		return false, c, err
	}
	if ok = cost == 0; !ok {
		if ok = l.passesLocked(t, m, int64(cost)); ok {
			c = l.chargeLocked(t, m, int64(cost), keep)
		}
	}
	if d != nil {
		d.Allowed = ok
		l.standingLocked(t, m, d)
		if !ok {
			d.RetryAfter, t.told = l.retryLocked(t, m, int64(cost))
			t.toldCost = int64(cost)
		}
	}
	return ok, c, nil
}

// passesLocked reports whether a cost passes now: there is room for it, it is within the tenant's
// share or the tenant was told to come now, and nobody waits for the room who comes before it.
func (l *Limiter[K]) passesLocked(t *tenant[K], m meter.Moment, cost int64) bool {
	if t.line.first != nil || l.budget.retry(m, cost) > 0 {
		return false
	}
	free, lead := l.budget.free(m.Now), l.shares.lead(t, cost)
	if cost > l.keptLocked(t, free) && !l.withinLocked(t, m, lead, cost, free) {
		return false
	}
	if len(l.lines) == 0 {
		return true
	}
	first := l.lines[0]
	tag := after(first.line.tag, l.shares.virtual)
	return lead <= tag || !l.withinLocked(first, m, tag, first.line.first.cost, free)
}

// keptLocked returns the largest cost that was denied and has been told to come now, if half of the room is enough for it.
func (l *Limiter[K]) keptLocked(t *tenant[K], free uint64) int64 {
	if after(t.told, l.shares.virtual) > 0 {
		return 0
	}
	return min(t.toldCost, int64(free>>fractionBits/2))
}

// withinLocked reports whether a tag is within the tenant's share.
func (l *Limiter[K]) withinLocked(t *tenant[K], m meter.Moment, lead uint64, cost int64, free uint64) bool {
	if l.shares.alone(t) {
		return l.budget.beyondAlone(m.Now, cost) == wide{}
	}
	return l.shares.fits(t, lead, free)
}

// chargeLocked spends a cost for which there is room.
func (l *Limiter[K]) chargeLocked(t *tenant[K], m meter.Moment, cost int64, keep meter.Keep) charge {
	l.budget.Accept(&l.budget.state, m.Now, meter.Offer{At: m.Now}, cost, keep)
	fresh := t.place < 0
	l.shares.charge(t, uint64(cost)<<fractionBits)
	l.filedLocked(t)
	if fresh { // one more to share with, which may make a tenant of a larger share due
		l.hurryLocked()
	}
	return charge{meter.Spending{At: m.Now, Cost: cost, Open: keep == meter.Open}, l.budget.changes}
}

// settle charges the difference between what a tenant was charged and what it was in truth.
func (l *Limiter[K]) settle(key K, c charge, actual int64) {
	weight, reading := l.weight(key), l.reading()
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.wakeLocked()
	m := l.advanceLocked(reading)
	before := l.budget.owedParts(m.Now)
	if c.Cost == 0 {
		l.budget.Adjust(&l.budget.state, m.Now, actual)
	} else {
		c.Changed = c.changes != l.budget.changes
		l.budget.Settle(&l.budget.state, m.Now, c.Spending, actual)
	}
	switch now := l.budget.owedParts(m.Now); {
	case now > before:
		// The total is charged even if there is no room to track the tenant.
		if t, err := l.tenantLocked(key, weight, true); err == nil {
			l.shares.charge(t, now-before)
			l.movedLocked(t)
		}
	case now < before:
		back := before - now
		if t := l.tenants[key]; t != nil {
			own, _ := product(l.shares.owes(t), t.weight).over(1)
			l.shares.forgive(t, min(back, own))
			l.movedLocked(t)
			back -= min(back, own)
		}
		l.shares.pay(back, l.filedLocked) // the server has paid that to the tenant, instead of the others
	}
	l.hurryLocked()
}

// standingLocked fills in how much is left.
func (l *Limiter[K]) standingLocked(t *tenant[K], m meter.Moment, d *ratelimit.Decision) {
	b := &l.budget
	d.Limit = b.limit
	d.ResetAfter = time.Duration(max(b.Regained(b.state), m.Now) - m.Reading)
	if t.line.first != nil {
		return
	}
	free := b.free(m.Now)
	own := b.largestAlone(m.Now)
	if !l.shares.alone(t) {
		own = l.shares.largest(t, free)
	}
	d.Remaining = int(min(max(own, l.keptLocked(t, free)), b.Remaining(b.state, m.Now)))
	if d.Remaining > 0 && !l.passesLocked(t, m, int64(d.Remaining)) {
		d.Remaining = 0 // somebody waits for the room
	}
}

// retryLocked returns the time after which a denied cost passes, and the virtual time of then. It
// supposes that the others go on as they do, or pause if it cannot pass else.
func (l *Limiter[K]) retryLocked(t *tenant[K], m meter.Moment, cost int64) (time.Duration, uint64) {
	b, s := &l.budget, &l.shares
	ahead, lead := cost, s.lead(t, cost)
	if len(l.lines) > 0 {
		ahead += l.lines[0].line.first.cost // it has the room first
	}
	if t.line.first != nil { // the bound on costs keeps the shift from overflowing
		lead = after(t.line.tag, s.virtual) + uint64(min(t.line.costs+cost, 1<<43))<<fractionBits/t.weight
	}
	alone, free := s.alone(t), b.free(m.Now)
	amount, virtual, ok := s.ifOthersSpend(t, lead, free)
	if alone || !ok {
		amount, virtual = s.ifNobodySpends(t, lead, s.owes(t), free)
	}
	own := s.timeFor(amount)
	if alone {
		own = b.retryAlone(m.Now, cost)
	}
	return max(b.retry(m, ahead), own+time.Duration(m.Now-m.Reading), 1), virtual
}

// advanceLocked lets time pass: debts are paid, and waiters whose turn has come are served.
func (l *Limiter[K]) advanceLocked(reading int64) meter.Moment {
	m := meter.Moment{Reading: reading, Now: max(reading, l.shares.now)}
	l.shares.advance(m.Now, l.filedLocked)
	if l.budget.fresh(m.Now) {
		// What was given back to a tenant that did not owe it any more was taken from the others.
		for len(l.shares.debtors) > 0 {
			t := l.shares.debtors[len(l.shares.debtors)-1]
			l.shares.free(t)
			l.filedLocked(t)
		}
	}
	l.serveLocked(m)
	return m
}

// check returns what is wrong with the key or the cost under any limit.
func (l *Limiter[K]) check(key K, cost int) error {
	if cost < 0 {
		return fmt.Errorf("fair: %w: %d", ratelimit.ErrNegativeCost, cost)
	}
	if l.odd && !keys.CanCompare(key) {
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

var _ heap.Interface = (*lines[string])(nil)
