package redislimit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/merge"
	"github.com/weir-go/ratelimit/lease"
)

// Leased returns the layer as one that is spent from leases (package lease), of at most maxBatch units of a key in this
// process. Its keys may therefore be on another server than the keys beside it. Its bound is the limit's plus processes ×
// maxBatch, if all processes lease it. All stacks of a process must have the same maxBatch. A leaky bucket cannot be leased.
//
// The stack is still all or nothing. Each batch that is fetched takes up to [Options.Timeout] more; if negative, 1 s. A batch
// is given back after a second, and by [Layered.Flush]; an unsettled reservation holds it, as in [lease.Limiter.Reserve]. A
// leased shadow reports only the decisions on requests that the other layers have charged.
func Leased[R any](y ratelimit.Layer[R], maxBatch int) ratelimit.Layer[R] {
	s, ok := merge.SourceOf[source[R]](&y)
	if !ok {
		s.err = errors.New("Leased was given a layer that By or Global of package redislimit has not made")
	}
	s.leased, s.maxBatch = true, maxBatch
	merge.SetSource(&y, s)
	return y
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
	remote   *Layered[leaseKey]
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

// leasesFor returns the leases of a layer's limiter.
func leasesFor[R any](y *layer[R]) (*leases, error) {
	switch {
	case y.maxBatch < 1:
		return nil, fmt.Errorf("redislimit: Leased was given a batch of %d, want at least 1", y.maxBatch)
	case y.limit == nil && y.l.limitFor == nil && y.l.plan.Load().kind == kindLeaky:
		return nil, errors.New("redislimit: " + leakyText)
	}
	return y.l.leases.of(y.l, y.maxBatch)
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
	y := made(source[leaseKey]{l: l, quiet: true, key: func(k leaseKey) (string, error) { return k.key, nil }})
	y.Limit = func(k leaseKey) ratelimit.Limit { return k.limit }
	remote, err := All(y)
	if err != nil {
		return nil, err
	}
	timeout := max(0, l.store.timeout)
	held, err := lease.New(remote, &lease.Options[leaseKey]{MaxBatch: maxBatch, HoldFor: holdFor, Timeout: timeout})
	if err != nil {
		return nil, err
	}
	return &leases{maxBatch: maxBatch, held: held, remote: remote, idle: 2*holdFor + timeout,
		limits: make(map[string]*leasedLimit), sweep: minSweep}, nil
}

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

// Flush gives back this process's batches of [Leased] layers, for other stacks too, and waits until that is done: see
// [lease.Limiter.Flush]. Call it on shutdown.
func (l *Layered[R]) Flush(ctx context.Context) error {
	var errs []error
	for i := range l.layers {
		if leases := l.layers[i].leases; leases != nil {
			errs = append(errs, leases.held.Flush(ctx))
		}
	}
	return errors.Join(errs...)
}

// leaseOf returns the leases and the key of a layer's request, if the layer is leased and its limit counts anything.
func (s *stack[R]) leaseOf(a *ask) (*leases, leaseKey) {
	y := &s.of.layers[a.layer]
	if y.leases == nil || a.plan == nil || a.plan.kind == 0 {
		return nil, leaseKey{}
	}
	k := leaseKey{key: a.key}
	if y.limit != nil {
		if own, err := y.l.planFor(a.key); err != nil || own.limit != a.plan.limit {
			k.limit = a.plan.limit
		}
	}
	return y.leases, k
}

// lease spends the costs of the leased layers that enforce, and reports whether all of them allow it. After the first denial it
// skips the rest. With opPeek it only reads; with a caller's cost of 0 and keep, the result can be settled.
func (s *stack[R]) lease(ctx context.Context, op byte, keep bool) (allowed bool, err error) {
	allowed = true
	for i := range s.asks {
		a := &s.asks[i]
		leases, key := s.leaseOf(a)
		if leases == nil || s.of.layers[a.layer].shadow || !allowed {
			continue
		}
		if err := a.checkLeased(op); err != nil {
			return false, fmt.Errorf("layer %d: %w", a.layer, err)
		}
		if op == opPeek && !keep {
			a.result, err = leases.peek(ctx, key, a.cost)
		} else {
			a.res, err = leases.reserve(ctx, key, a.cost)
			a.result = a.res.Decision
		}
		if err != nil {
			s.d.Limit = a.plan.limit
			return false, err
		}
		a.asked = true
		allowed = a.result.Allowed
	}
	return allowed, nil
}

// checkLeased returns the reason for which a leased layer can never allow the request.
func (a *ask) checkLeased(op byte) error {
	if a.plan.kind == kindLeaky {
		return fmt.Errorf("%w: %s", ratelimit.ErrInvalidLimit, leakyText)
	}
	return a.plan.check(int64(a.cost))
}

// leaseShadows spends the costs of leased shadow layers, after all others have allowed the request.
func (s *stack[R]) leaseShadows(ctx context.Context) {
	for i := range s.asks {
		a := &s.asks[i]
		leases, key := s.leaseOf(a)
		if leases == nil || !s.of.layers[a.layer].shadow || a.err != nil {
			continue
		}
		if a.err = a.checkLeased(opTake); a.err == nil {
			a.res, a.err = leases.reserve(ctx, key, a.cost)
			a.result, a.asked = a.res.Decision, a.err == nil
		}
	}
}

// leaseSettler returns a function that settles the leased charges at each layer's cost by the caller's actual cost, or nil if
// there are none.
func (s *stack[R]) leaseSettler() func(actual int) error {
	type leased struct {
		res *ratelimit.Reservation
		own int // the layer's own cost, below zero if it has none
	}
	var all []leased
	for i := range s.asks {
		a := &s.asks[i]
		if a.res == nil || !a.res.Allowed {
			continue
		}
		l := leased{a.res, -1}
		if a.own {
			l.own = a.cost
		}
		all = append(all, l)
	}
	if len(all) == 0 {
		return nil
	}
	return func(actual int) error {
		var errs []error
		for _, l := range all {
			is := actual
			if l.own >= 0 && actual > 0 {
				is = l.own
			}
			errs = append(errs, l.res.Settle(is))
		}
		return errors.Join(errs...)
	}
}

// closeLeases ends the leased charges: at their cost, or at nothing. A lease holds its batch until then. A charge that cannot
// be given back stays spent.
func (s *stack[R]) closeLeases(spent bool) {
	for i := range s.asks {
		if a := &s.asks[i]; a.res != nil && a.res.Allowed {
			actual := 0
			if spent {
				actual = a.cost
			}
			_ = a.res.Settle(actual)
		}
	}
}

// settler returns a function that settles the stack's charges.
func (s *stack[R]) settler(cost int) func(actual int) error {
	charged, leased := s.request.settlerFor(cost), s.leaseSettler()
	switch {
	case leased == nil:
		return charged
	case charged == nil:
		return leased
	}
	return func(actual int) error { return errors.Join(charged(actual), leased(actual)) }
}

// leasedDecision returns a leased layer's decision, as of after the decision of the stack.
func (a *ask) leasedDecision(spent bool) ratelimit.Decision {
	d := a.result
	if d.Allowed && !spent && a.res != nil {
		d.Remaining = clampInt(min(int64(d.Remaining)+int64(a.cost), math.MaxInt64)) // it was put back
	}
	return d
}

// ownCost returns the part of the charge that does not depend on the caller's cost, and the number of layers that charge the
// caller's cost.
func (a *ask) ownCost() (own, shares int64) {
	if a.own {
		return int64(a.cost), 0
	}
	return 0, 1
}
