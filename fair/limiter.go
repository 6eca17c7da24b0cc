package fair

import (
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/keys"
	"github.com/weir-go/ratelimit/internal/optional"
)

// Limiter shares one rate among tenants. Make one with [New]. It
// is safe for concurrent use. The zero Limiter's methods panic.
type Limiter[K comparable] struct {
	opts      Options[K]
	checkKeys bool // keys contain interfaces, so their values may not be comparable
	cloner    keys.Cloner[K]

	mu      sync.Mutex // guards the fields below
	budget  budget
	shares  shares[K]
	tenants map[K]*tenant[K]
	idle    tenant[K] // uncounted tenants without waiters, oldest first
	evicted uint64

	waiters   heap[K] // tenants with callers in Wait, by tag
	places    heap[K] // tenants with a place whose turn has not come, by tag
	deadlines heap[K] // tenants counting until an instant, ordered by look
	ahead     int64   // the sum of the costs at both lines' heads
	strangers int     // places held by tenants after their only call
	relieved  int     // calls of relieveLocked; it selects the next tenant

	lineWeights uint64 // the tenants' weights in both lines

	kept        uint64 // the room kept for tenants whose turn has come, in fractions of a unit
	keptWeights uint64 // the weights of these tenants

	waiting int     // callers in Wait
	sleeper *waiter // the first caller; it sleeps on the clock until its turn
}

var _ ratelimit.Reserver[string] = (*Limiter[string])(nil)

// New returns a limiter that shares a limit among tenants. The limit must be a token bucket with a burst
// of at most 2^40; otherwise the error wraps [ratelimit.ErrInvalidLimit]. Nil options mean the defaults.
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

// Describe returns the tenants' common limit. Shared is true, and BooksAhead false.
func (l *Limiter[K]) Describe() ratelimit.Description {
	l.mustBeMade()
	l.mu.Lock()
	defer l.mu.Unlock()
	return ratelimit.Description{Limits: []ratelimit.Limit{l.budget.limit}, Shared: true}
}

func (l *Limiter[K]) mustBeMade() {
	if l == nil || l.tenants == nil {
		panic(optional.Zero("fair", "Limiter", "New"))
	}
}

// check returns an error if the key or the cost is invalid under any limit. It panics for the zero Limiter.
func (l *Limiter[K]) check(key K, cost int) error {
	l.mustBeMade()
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

// maxReading is the largest reading. A century can be added to it, and any two readings can be subtracted.
const maxReading = 1 << 62

func (l *Limiter[K]) reading() int64 {
	return min(max(int64(l.opts.Clock.Now()), -maxReading), maxReading)
}

// systemClock reads the monotonic clock.
type systemClock struct{}

var origin = time.Now()

func (systemClock) Now() time.Duration { return time.Since(origin) }
