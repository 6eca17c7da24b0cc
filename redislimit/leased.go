package redislimit

import (
	"context"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/lease"
)

// Flush gives back this process's leased units, and waits until they are back: see [Options.MaxBatch]
// and [lease.Limiter.Flush]. Call it on shutdown. Without MaxBatch it does nothing.
func (l *Limiter) Flush(ctx context.Context) error {
	l.check()
	if l.leases == nil {
		return nil
	}
	return l.leases.held.Flush(ctx)
}

// leaseKey identifies a lease: a key, and the layer's limit for the request. The zero Limit means the limiter's.
type leaseKey struct {
	key   string
	limit ratelimit.Limit
}

// holdFor is how long a batch is held before its rest is given back.
const holdFor = time.Second

// leases are this process's batches of a limiter's budgets, for all leasing stacks. Under
// several limits a key would have a batch for each. So a key is leased under one limit at a
// time, and another limit has to wait until nothing can be left of the first limit's batches.
type leases struct {
	held   *lease.Limiter[leaseKey]
	remote *ratelimit.Layered[leaseKey]
	idle   time.Duration // a key's batches are given back after this time without a request

	mu     sync.Mutex // guards the fields below
	limits map[string]*leasedLimit
	sweep  int // at this number of keys, idle ones are removed
}

// leasedLimit is a key's limit on lease, and the time of its last use.
type leasedLimit struct {
	limit ratelimit.Limit
	last  time.Time
}

const minSweep = 1024

// newLeases returns a limiter's leases.
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
	return &leases{held: held, remote: remote, idle: 2*holdFor + timeout,
		limits: make(map[string]*leasedLimit), sweep: minSweep}, nil
}

// madeLeases is a hook for tests.
var madeLeases = func(*lease.Limiter[leaseKey]) {}

// under reports whether a key is leased under its limit, not under another one.
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
		s.limits[strings.Clone(k.key)] = at // the key may be a part of a whole request
	case at.limit == k.limit:
	case now.Sub(at.last) > s.idle:
		at.limit = k.limit
	default:
		return false
	}
	at.last = now
	return true
}

// take is Take from a lease. If the key is leased under another limit, take makes a round trip.
func (s *leases) take(ctx context.Context, k leaseKey, cost int) (ratelimit.Decision, error) {
	if s.under(k) {
		return s.held.Take(ctx, k, cost)
	}
	return s.remote.Take(ctx, k, cost)
}

func (s *leases) wait(ctx context.Context, k leaseKey, cost int) error {
	if s.under(k) {
		return s.held.Wait(ctx, k, cost)
	}
	return s.remote.Wait(ctx, k, cost)
}

func (s *leases) peek(ctx context.Context, k leaseKey, cost int) (ratelimit.Decision, error) {
	if s.under(k) {
		return s.held.Peek(ctx, k, cost)
	}
	return s.remote.Peek(ctx, k, cost)
}

func (s *leases) reserve(ctx context.Context, k leaseKey, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	if s.under(k) {
		return s.held.Reserve(ctx, k, cost, maxDelay)
	}
	return s.remote.Reserve(ctx, k, cost, maxDelay)
}

// unleasable returns why a limit cannot be leased, or "" if it can.
func (p *plan) unleasable() string {
	switch p.kind {
	case kindLeaky:
		return "a leaky bucket cannot be leased: each decision has a place in its queue"
	case kindHeld:
		return "a limit of units in use cannot be leased: a batch would hold units that no call uses"
	}
	return ""
}

// quiet is a limiter without calls to OnDecision.
type quiet struct{ *Limiter }

func (q quiet) Join([]ratelimit.Joining) (ratelimit.Joint, error) {
	return &joint{store: q.store, limiters: []joinedLimiter{{l: q.Limiter, quiet: true}}}, nil
}
