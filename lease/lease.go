// Package lease spends a remote budget in batches: most decisions cost no round trip.
//
//	limiter, err := lease.New(shared, &lease.Options[string]{MaxBatch: 100})
//	…
//	defer limiter.Flush(ctx) // on shutdown
//
// A [Limiter] reserves batches of a key's budget, and gives unused units back after [Options.HoldFor]. It admits at
// most the remote limiter's bound plus processes × MaxBatch. If a process crashes, its units are lost, for each key.
// Costs of 0, costs above MaxBatch or the capacity, leaky buckets and bookings ahead go to the remote limiter directly.
//
// Remaining is this process's budget, or the remote limiter's as last seen. RetryAfter and ResetAfter are
// the remote limiter's last ones, less the time since then. Degraded is as in the answer with the batch.
package lease

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/follow"
	"github.com/weir-go/ratelimit/internal/held"
	"github.com/weir-go/ratelimit/internal/keys"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/internal/reports"
	"github.com/weir-go/ratelimit/internal/wait"
)

// Limiter spends a remote limiter's budget in batches. Make one with [New]. It is safe for concurrent use. The zero
// Limiter cannot be used.
type Limiter[K comparable] struct {
	remote    *remote[K]
	table     *table[K]
	fetcher   *fetcher[K]
	maxBatch  int
	checkKeys bool          // keys contain interfaces, so their values may not be comparable
	called    atomic.Uint64 // decisions by a call to the remote limiter

	onDecision func(ratelimit.Event[K]) // nil if there is no observer
}

var _ ratelimit.Reserver[string] = (*Limiter[string])(nil)

// New returns a limiter that spends remoteLimiter's budget. It fails if remoteLimiter
// is nil or has layers with their own cost, or if an option is invalid.
func New[K comparable](remoteLimiter ratelimit.Reserver[K], opts *Options[K]) (*Limiter[K], error) {
	if optional.IsNil(remoteLimiter) {
		return nil, optional.Nil("lease: New: remoteLimiter")
	}
	if ratelimit.Describe(remoteLimiter).ReplacesCost {
		return nil, errors.New("lease: the remote limiter has layers with a cost of their own (Layer.Cost), which would charge a batch as one decision")
	}
	if opts == nil {
		opts = new(Options[K])
	}
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	r := newRemote(remoteLimiter, o.Timeout)
	back := &returns{settle: r.settle, describe: func() ratelimit.Description { return ratelimit.Describe(remoteLimiter) }, underWay: make(map[*returned]bool)}
	l := &Limiter[K]{
		remote: r,
		table:  newTable[K](o.MaxKeys, back),
		fetcher: &fetcher[K]{
			remote: r, returns: back, clock: o.Clock, denyFor: o.DenyFor,
			pace: pace{most: o.MaxBatch, batchFor: o.BatchFor, holdFor: o.HoldFor},
		},
		maxBatch:  o.MaxBatch,
		checkKeys: keys.HoldInterfaces[K](),

		onDecision: o.OnDecision,
	}
	l.fetcher.timers.origin, l.fetcher.timers.expire = time.Now(), l.fetcher.expire
	return l, nil
}

// Allow is Take without details. An error counts as false.
func (l *Limiter[K]) Allow(key K, cost int) bool {
	if l.onDecision != nil {
		d, _ := l.Take(context.Background(), key, cost)
		return d.Allowed
	}
	if l.spendHere(key, cost, nil) {
		return true
	}
	d, _ := l.take(context.Background(), key, want{cost: cost, brief: true})
	return d.Allowed
}

// report calls OnDecision, if there is one.
func (l *Limiter[K]) report(ctx context.Context, key K, cost int, d ratelimit.Decision, err error) {
	if l.onDecision != nil {
		spent := d.Allowed && err == nil && cost > 0 && d.Limit.Algorithm != ratelimit.AlgorithmUnlimited
		reports.Send(ctx, l.onDecision, ratelimit.Event[K]{Key: key, Cost: cost, Decision: d, Spent: spent, Err: err})
	}
}

// spendHere is the fast path for a key with enough units in a batch. It fills in d unless it is nil.
func (l *Limiter[K]) spendHere(key K, cost int, d *ratelimit.Decision) bool {
	if l == nil || l.table == nil || l.checkKeys || cost <= 0 {
		return false
	}
	h := l.table.find(key)
	if h == nil {
		return false
	}
	var now time.Duration
	if d != nil {
		now = reading(l.fetcher.clock)
	}
	h.mu.Lock()
	degraded := d != nil && h.degradedLocked(cost)
	if !h.spendLocked(cost) {
		h.mu.Unlock()
		return false
	}
	h.local++
	if d != nil {
		h.remoteState.fill(d, h.left, h.atLocked(now))
		d.Degraded = degraded
	}
	low := h.left <= h.low
	h.mu.Unlock()
	if low {
		l.fetcher.prefetch(h)
	}
	return true
}

// Take spends cost of the key's budget, or nothing. It fails with the remote limiter's or
// the context's error, and with [ratelimit.ErrUnavailable] if there is no answer in time.
func (l *Limiter[K]) Take(ctx context.Context, key K, cost int) (d ratelimit.Decision, err error) {
	if !l.spendHere(key, cost, &d) {
		d, err = l.take(wait.OrBackground(ctx), key, want{cost: cost})
	}
	l.report(ctx, key, cost, d, err)
	return d, err
}

// take is Take if the cost cannot be spent from a batch at once.
func (l *Limiter[K]) take(ctx context.Context, key K, o want) (ratelimit.Decision, error) {
	out := l.decide(ctx, key, o)
	if out.todo == answered {
		return out.decision, out.err
	}
	part := l.setAside(key, o.cost)
	defer part.end()
	d, err := l.remote.take(out.context(ctx), key, o.cost-part.n)
	l.record(key, d, err)
	d = part.decided(d, err)
	part.close()
	return d, err
}

// Reserve is like Take, but returns a charge that can be corrected. The remote limiter may book
// it up to maxDelay ahead; 0 means now or not at all. If the batch is larger than the cost and
// the reservation stays open for longer than nine times HoldFor, it may count as used. For longer
// work raise HoldFor, or reserve from the remote limiter. Settle may return that limiter's error.
func (l *Limiter[K]) Reserve(ctx context.Context, key K, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	res, err := l.reserve(wait.OrBackground(ctx), key, cost, maxDelay)
	l.report(ctx, key, cost, res.Decision, err)
	return res, err
}

func (l *Limiter[K]) reserve(ctx context.Context, key K, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	out := l.decide(ctx, key, want{cost: cost, keep: true, patient: maxDelay > 0})
	if out.todo == answered {
		return l.reservation(key, cost, out), out.err
	}
	part := l.setAside(key, cost)
	defer part.end()
	res, err := l.remote.reserve(out.context(ctx), key, cost-part.n, maxDelay)
	l.record(key, res.Decision, err)
	d := part.decided(res.Decision, err)
	whole := ratelimit.NewReservation(d, func(actual int) error {
		defer l.corrected(key, actual-cost)
		return part.settle(res, actual)
	})
	follow.Inner(whole, res)
	held.Follow(whole, func(ctx context.Context, r *ratelimit.Reservation) error { return r.Extend(ctx) }, res)
	return whole, err
}

// reservation returns a local reservation to settle.
func (l *Limiter[K]) reservation(key K, cost int, out result[K]) *ratelimit.Reservation {
	res := ratelimit.NewReservation(out.decision, func(actual int) error {
		defer l.corrected(key, actual-cost)
		if out.whole != nil {
			return l.remote.settle(out.whole, actual)
		}
		return l.fetcher.settle(key, l.table.find(key), out.claims, cost, actual)
	})
	held.Follow(res, l.remote.extend, out.whole) // a nil reservation is not followed
	return res
}

// Wait waits until cost can be spent, and spends it: see [ratelimit.Wait].
func (l *Limiter[K]) Wait(ctx context.Context, key K, cost int) error {
	d, err := l.wait(wait.OrBackground(ctx), key, cost)
	l.report(ctx, key, cost, d, err)
	return err
}

func (l *Limiter[K]) wait(ctx context.Context, key K, cost int) (ratelimit.Decision, error) {
	if err := ctx.Err(); err != nil {
		l.called.Add(1)
		return ratelimit.Decision{}, err
	}
	out := l.decide(ctx, key, want{cost: cost, patient: true})
	if out.todo == answered {
		return out.decision, out.err
	}
	part := l.setAside(key, cost)
	defer part.end()
	err := l.remote.wait(ctx, key, cost-part.n)
	d := part.decided(ratelimit.Decision{Allowed: err == nil}, err)
	part.close()
	if err == nil {
		l.corrected(key, cost)
	}
	return d, err
}

// Describe returns the remote limiter's limits, or nil if they are not known. Holds is
// true if one is [ratelimit.Concurrent]. BooksAhead is true, and ReplacesCost false.
func (l *Limiter[K]) Describe() ratelimit.Description {
	l.mustBeMade()
	d := ratelimit.Describe(l.remote.limiter)
	return ratelimit.Description{Limits: d.Limits, BooksAhead: true, Holds: d.Holds}
}

// maxTries is how often a decision starts again because others spent the
// units fetched for it. Then it calls the remote limiter for its cost alone.
const maxTries = 8

// decide decides from the held units, or fetches a batch. If it can do
// neither, the result requires a direct call to the remote limiter.
func (l *Limiter[K]) decide(ctx context.Context, key K, o want) result[K] {
	if err := l.check(key, o.cost); err != nil {
		l.called.Add(1)
		return result[K]{err: err}
	}
	out := l.tryHere(ctx, key, o)
	if !out.local {
		l.called.Add(1)
	}
	return out
}

func (l *Limiter[K]) tryHere(ctx context.Context, key K, o want) (out result[K]) {
	if o.cost == 0 || o.cost > l.maxBatch {
		return result[K]{todo: direct}
	}
	for range maxTries {
		h := l.acquire(key)
		if h == nil {
			break
		}
		out = l.fetcher.decide(ctx, h, o)
		if out.failed == nil {
			out.failed = o.failed
		}
		if out.todo != again {
			return out
		}
		o.failed = out.failed
	}
	return result[K]{todo: direct, failed: o.failed}
}

// acquire returns the key's holding, or nil if the table has no room for it. A
// new holding gets the remote limiter's limit if all keys have the same one.
func (l *Limiter[K]) acquire(key K) *holding[K] {
	if h := l.table.find(key); h != nil {
		return h
	}
	var known remoteState
	described := l.Describe()
	if limits := described.Limits; len(limits) == 1 {
		known.limit = l.fetcher.limits.share(limits[0])
	}
	known.holds = described.Holds
	return l.table.add(key, known)
}

func (l *Limiter[K]) mustBeMade() {
	if l == nil || l.table == nil {
		panic(optional.Zero("lease", "Limiter", "New"))
	}
}

// check returns an error if every limit would refuse the key or the cost. It panics for the zero Limiter.
func (l *Limiter[K]) check(key K, cost int) error {
	l.mustBeMade()
	switch {
	case cost < 0:
		return fmt.Errorf("lease: %w: %d", ratelimit.ErrNegativeCost, cost)
	case l.checkKeys && !keys.CanCompare(key):
		return fmt.Errorf("lease: %w: %T cannot be compared", ratelimit.ErrInvalidKey, key)
	case key != key:
		return fmt.Errorf("lease: %w: a %T that does not equal itself", ratelimit.ErrInvalidKey, key)
	}
	return nil
}

// record records a direct answer of the remote limiter.
func (l *Limiter[K]) record(key K, d ratelimit.Decision, err error) {
	if err != nil {
		return
	}
	if h := l.table.find(key); h != nil {
		now := reading(l.fetcher.clock)
		h.mu.Lock()
		l.fetcher.recordLocked(h, d, h.atLocked(now))
		h.mu.Unlock()
	}
}

// corrected forgets the last denial after a direct correction of the
// remote limiter's charges: the denial's times no longer apply to the key.
func (l *Limiter[K]) corrected(key K, delta int) {
	if delta == 0 {
		return
	}
	if h := l.table.find(key); h != nil {
		h.mu.Lock()
		h.denial = nil
		h.mu.Unlock()
	}
}
