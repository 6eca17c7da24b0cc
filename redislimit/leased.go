package redislimit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/lease"
)

// LeasedLimiter is a [Limiter] whose keys are spent from leases. Make one with [Leased].
type LeasedLimiter struct {
	l        *Limiter
	maxBatch int
	leases   *leases
	err      error
}

var (
	_ ratelimit.Reserver[string] = (*LeasedLimiter)(nil)
	_ ratelimit.Joinable         = (*LeasedLimiter)(nil)
)

// Leased returns a limiter of l's budgets that are spent from leases (package lease), of at most maxBatch units of a key in this
// process. As a layer its keys may be on another server than the keys beside it. Its bound is the limit's plus processes ×
// maxBatch, if all processes lease it. All stacks of a process must have the same maxBatch. A leaky bucket cannot be leased. Faults are
// errors of [ratelimit.All].
//
// The stack is still all or nothing. Each batch that is fetched takes up to [Options.Timeout] more; if negative, 1 s. A batch
// is given back after a second, and by [LeasedLimiter.Flush]; an unsettled reservation holds it, as in [lease.Limiter.Reserve]. A
// leased shadow reports only the decisions on requests that the other layers have charged.
func Leased(l *Limiter, maxBatch int) *LeasedLimiter {
	if l == nil || l.store == nil {
		return nil
	}
	x := &LeasedLimiter{l: l, maxBatch: maxBatch}
	x.leases, x.err = leasesFor(l, maxBatch)
	return x
}

// Flush gives back this process's batches, also those that other stacks have fetched, and waits until that is done: see
// [lease.Limiter.Flush]. Call it on shutdown.
func (x *LeasedLimiter) Flush(ctx context.Context) error {
	if x.err != nil {
		return x.err
	}
	return x.leases.held.Flush(ctx)
}

// Allow is Take without details.
func (x *LeasedLimiter) Allow(key string, cost int) bool {
	d, err := x.Take(context.Background(), key, cost)
	return d.Allowed && err == nil
}

// Take spends from this process's lease.
func (x *LeasedLimiter) Take(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	if x.err != nil {
		return ratelimit.Decision{}, x.err
	}
	return x.leases.held.Take(ctx, leaseKey{key: key}, cost)
}

// Reserve is Take with a charge that can be settled.
func (x *LeasedLimiter) Reserve(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	if x.err != nil {
		return ratelimit.NewReservation(ratelimit.Decision{}, nil), x.err
	}
	return x.leases.held.Reserve(ctx, leaseKey{key: key}, cost, maxDelay)
}

// Describe returns the limits.
func (x *LeasedLimiter) Describe() ratelimit.Description {
	return ratelimit.Description{Limits: x.l.Limits()}
}

// Join makes a stack of limiters of one Redis: see [Limiter.Join].
func (x *LeasedLimiter) Join(limiters []ratelimit.Joining) (ratelimit.Joint, error) {
	return join(limiters)
}

// leaseKey identifies a lease: a key, and the limit that the layer has for the request. The zero Limit means the limiter's.
type leaseKey struct {
	key   string
	limit ratelimit.Limit
}

// holdFor is the time for which a batch is held before the rest of it is given back.
const holdFor = time.Second

// leases are a process's batches of a limiter's budgets, for all stacks that lease it. Under several limits a key would have a
// batch for each: so it is leased under one at a time, and another one has to wait until nothing can be left of the batches of
// the first.
type leases struct {
	maxBatch int
	held     *lease.Limiter[leaseKey]
	remote   *ratelimit.Layered[leaseKey]
	idle     time.Duration // after this time without a request, a key's batches are given back

	mu     sync.Mutex // guards the fields below
	limits map[string]*leasedLimit
	sweep  int // as soon as there are so many keys, idle ones are removed
}

// leasedLimit is the limit that a key is leased under, and the time of its last use.
type leasedLimit struct {
	limit ratelimit.Limit
	last  time.Time
}

const minSweep = 1024

// leasesFor returns the leases of a limiter.
func leasesFor(l *Limiter, maxBatch int) (*leases, error) {
	switch {
	case maxBatch < 1:
		return nil, fmt.Errorf("redislimit: Leased was given a batch of %d, want at least 1", maxBatch)
	case l.limitFor == nil && l.plan.Load().kind == kindLeaky:
		return nil, errors.New("redislimit: " + leakyText)
	}
	return l.leases.of(l, maxBatch)
}

// sharedLeases has the leases of a limiter, once a stack has leased it.
type sharedLeases struct {
	mu     sync.Mutex
	leases *leases
}

func (s *sharedLeases) of(l *Limiter, maxBatch int) (*leases, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leases == nil {
		made, err := newLeases(l, maxBatch)
		if err != nil {
			return nil, err
		}
		s.leases = made
	}
	if s.leases.maxBatch != maxBatch {
		return nil, fmt.Errorf("redislimit: Leased was given a batch of %d, and another stack of this limiter has %d: they share what is held, want one batch", maxBatch, s.leases.maxBatch)
	}
	return s.leases, nil
}

func newLeases(l *Limiter, maxBatch int) (*leases, error) {
	y := ratelimit.By(quiet{l}, func(k leaseKey) (string, error) { return k.key, nil })
	y.Limit = func(k leaseKey) ratelimit.Limit { return k.limit }
	remote, err := ratelimit.All(y)
	if err != nil {
		return nil, err
	}
	timeout := max(0, l.store.timeout)
	held, err := lease.New(remote, &lease.Options[leaseKey]{MaxBatch: maxBatch, HoldFor: holdFor, Timeout: timeout})
	if err != nil {
		return nil, err
	}
	madeLeases(held)
	return &leases{maxBatch: maxBatch, held: held, remote: remote, idle: 2*holdFor + timeout,
		limits: make(map[string]*leasedLimit), sweep: minSweep}, nil
}

// madeLeases is a hook of tests.
var madeLeases = func(*lease.Limiter[leaseKey]) {}

// under reports whether a key is leased under its limit, rather than under another one.
func (s *leases) under(k leaseKey) bool {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.limits[k.key]
	switch {
	case at == nil:
		if len(s.limits) >= s.sweep {
			maps.DeleteFunc(s.limits, func(_ string, at *leasedLimit) bool { return now.Sub(at.last) > s.idle })
			s.sweep = max(minSweep, 2*len(s.limits))
		}
		at = &leasedLimit{limit: k.limit}
		s.limits[strings.Clone(k.key)] = at // it may be a part of a whole request
	case at.limit == k.limit:
	case now.Sub(at.last) > s.idle:
		at.limit = k.limit
	default:
		return false
	}
	at.last = now
	return true
}

func (s *leases) peek(ctx context.Context, k leaseKey, cost int) (ratelimit.Decision, error) {
	if s.under(k) {
		return s.held.Peek(ctx, k, cost)
	}
	return s.remote.Peek(ctx, k, cost)
}

func (s *leases) reserve(ctx context.Context, k leaseKey, cost int) (*ratelimit.Reservation, error) {
	if s.under(k) {
		return s.held.Reserve(ctx, k, cost, 0)
	}
	return s.remote.Reserve(ctx, k, cost, 0)
}

const leakyText = "a leaky bucket cannot be leased: each decision has a place in its queue"

// quiet is a limiter whose OnDecision is not called.
type quiet struct{ *Limiter }

func (q quiet) Join([]ratelimit.Joining) (ratelimit.Joint, error) {
	return &joint{store: q.store, limiters: []joinedLimiter{{l: q.Limiter, quiet: true}}}, nil
}

// Peek is [Limiter.Peek], which knows nothing of what processes hold.
func (x *LeasedLimiter) Peek(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	return x.l.Peek(ctx, key, cost)
}

// Adjust is [Limiter.Adjust].
func (x *LeasedLimiter) Adjust(ctx context.Context, key string, delta int) error {
	return x.l.Adjust(ctx, key, delta)
}

// Reset is [Limiter.Reset]. Other processes may spend the units that they hold.
func (x *LeasedLimiter) Reset(ctx context.Context, key string) error { return x.l.Reset(ctx, key) }

// Each is [Limiter.Each].
func (x *LeasedLimiter) Each(ctx context.Context, visit func(key string, d ratelimit.Decision) bool) error {
	return x.l.Each(ctx, visit)
}
