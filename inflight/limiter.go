package inflight

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit/internal/keys"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/internal/outcome"
	"github.com/weir-go/ratelimit/internal/wait"
)

// Limiter limits each key's units in flight. Make one with [New]. It is safe for concurrent
// use, starts no goroutine and needs no closing. The zero Limiter's methods panic.
type Limiter[K comparable] struct {
	common   *common
	table    *table[K]
	keys     keyCheck[K]
	lookUp   func(K) config
	report   func(key K, old, new int) // calls OnLimit
	hasTotal bool

	base      atomic.Int64 // the limit of New or SetLimit
	setting   sync.Mutex   // held by SetLimit, SetTotal and the beginning of Refresh
	numbers   atomic.Uint64
	refreshed atomic.Uint64 // configurations with a lower number are outdated
}

// New returns a limiter with limit units in flight at the same time for each key. To limit a whole
// server, set [Options].Total. New returns an error if the limit is below 1 or an option is invalid.
func New[K comparable](limit int, opts *Options[K]) (*Limiter[K], error) {
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
	o.defaults()
	l := &Limiter[K]{common: o.common(), table: newTable[K](o.MaxKeys), keys: keyCheck[K]{keys.HoldInterfaces[K]()}, lookUp: o.config, report: o.OnLimit, hasTotal: o.Total > 0}
	l.base.Store(int64(limit))
	return l, nil
}

func checkLimit(limit int) error { return optional.AtLeastOne("inflight: the limit", limit) }

// TryAcquire takes n units of the key if they are free now. The caller must give the permit back on every path, for
// example by defer [Permit.Release]. Errors wrap
//
//   - [ratelimit.ErrLimited]: no room now, or others wait for it;
//   - [ratelimit.ErrExceedsLimit]: n never fits. It is above the key's limit, its upper bound if adaptive, or Total;
//   - [ratelimit.ErrBlocked], [ratelimit.ErrNegativeCost] and [ratelimit.ErrInvalidKey];
//   - [ratelimit.ErrTableFull]: the key is new, and [Options.MaxKeys] other keys are busy.
//
// If n is 0, the call always succeeds, and the permit holds nothing.
func (l *Limiter[K]) TryAcquire(key K, n int) (Permit, error) {
	s, now, err := l.enter(key, n, l.made().timed)
	if s == nil {
		return Permit{}, err
	}
	return s.tryUnlock(n, now, errNoRoom)
}

// Acquire is like TryAcquire, but waits for room until the context ends. It then returns an error wrapping
// the context's. It fails with [ratelimit.ErrLimited] if [Options.MaxQueue] of the key's callers wait
// already, if a caller with a higher priority takes its place, or if the context would end before the key's
// usual work does. If the limit falls below n during the wait, the error wraps [ratelimit.ErrExceedsLimit].
func (l *Limiter[K]) Acquire(ctx context.Context, key K, n int) (Permit, error) {
	ctx = wait.OrBackground(ctx)
	p, err := l.acquire(ctx, key, n)
	if err != nil {
		outcome.MarkRefused(ctx)
	}
	return p, err
}

func (l *Limiter[K]) acquire(ctx context.Context, key K, n int) (Permit, error) {
	if ctx.Err() != nil {
		return Permit{}, errGaveUp(ctx)
	}
	patience := left(ctx)
	remaining := patience
	if caller, ok := wait.Caller(ctx); ok {
		remaining = left(caller)
	}
	for timed := l.made().timed; ; timed = true {
		s, now, err := l.enter(key, n, timed)
		if s == nil {
			return Permit{}, err
		}
		if s.common.shadow || s.freeLocked(n) || s.fullLocked() || s.possibleLocked(n) != nil {
			return s.tryUnlock(n, now, errQueueFull)
		}
		if timed {
			return s.awaitUnlock(ctx, n, now, patience, remaining)
		}
		s.mutex().Unlock() // a waiter needs a reading, and no clock is read under a lock
	}
}

// enter returns the key's semaphore, locked, or nil if n is 0. If timed, it first reads the clock, and returns the
// reading.
func (l *Limiter[K]) enter(key K, n int, timed bool) (*semaphore, time.Duration, error) {
	if most := l.common.most(); n <= 0 || n > most {
		return nil, 0, checkUnits(n, most)
	}
	if l.keys.checkKeys { // otherwise each key in the table is valid
		if err := l.keys.err(key); err != nil {
			return nil, 0, err
		}
	}
	return l.semaphoreOf(key, timed)
}

// semaphoreOf returns the key's semaphore, locked. If timed, it first reads the clock, and returns the reading.
func (l *Limiter[K]) semaphoreOf(key K, timed bool) (*semaphore, time.Duration, error) {
	if e := l.table.find(key); e != nil {
		now := l.common.reading(timed)
		e.mutex().Lock()
		if !e.dead {
			return &e.semaphore, now, nil
		}
		e.mutex().Unlock()
	}
	return l.create(key, timed)
}

// create is like semaphoreOf, for a key outside the table or about to leave it. It calls
// user code before it locks the table. If Refresh was called meanwhile, create calls
// user code again once the key is in the table: later calls to Refresh find it there.
func (l *Limiter[K]) create(key K, timed bool) (*semaphore, time.Duration, error) {
	if err := l.keys.err(key); err != nil {
		return nil, 0, err
	}
	e := &entry[K]{key: l.table.cloner.Clone(key)}
	var report func(old, new int)
	if l.report != nil {
		report = func(old, new int) { l.report(e.key, old, new) }
	}
	e.init(l.common, report)
	cfg := l.configOf(key)
	now := l.common.reading(timed)
	l.table.mu.Lock()
	if old := l.table.find(key); old != nil { // the entry is not dead, because dead ones leave under this lock
		old.mutex().Lock()
		l.table.mu.Unlock()
		return &old.semaphore, now, nil
	}
	s, err := l.insertUnlock(e, cfg, now)
	if s == nil || cfg.number > l.refreshed.Load() {
		return s, now, err
	}
	s.mutex().Unlock()
	l.reconfigure(e)
	l.allChanged()
	return l.semaphoreOf(key, timed)
}

// insertUnlock publishes a new key's semaphore and unlocks the table. It returns
// the semaphore locked, so the table does not forget it before its first use.
func (l *Limiter[K]) insertUnlock(e *entry[K], cfg config, now time.Duration) (*semaphore, error) {
	defer l.table.mu.Unlock()
	if !l.table.roomLocked() {
		if l.common.shadow {
			return nil, nil
		}
		return nil, errFull(l.table.max)
	}
	e.mutex().Lock()
	e.configureLocked(cfg, int(l.base.Load()), now)
	l.table.publishLocked(e)
	return &e.semaphore, nil
}

// configOf calls the functions in Options, and numbers the call.
func (l *Limiter[K]) configOf(key K) config {
	number := l.numbers.Add(1)
	cfg := l.lookUp(key)
	cfg.number = number
	return cfg
}

// made returns a limiter's state for all its keys, and panics if New did not make the limiter.
func (l *Limiter[K]) made() *common {
	if l == nil || l.common == nil {
		panic(optional.Zero("inflight", "Limiter", "New"))
	}
	return l.common
}
