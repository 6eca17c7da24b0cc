package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/weir-go/ratelimit/internal/reports"
)

// member is a layer in one decision of a stack: All's [Layer], and its key, account, plan and cost.
//
// One goroutine uses it at a time, its stack's goroutine. Between two decisions it refers to no key, no account and
// nothing of a request. clear removes these references, because a stack in its pool must not keep users' data alive.
//
// load finds the account without a lock. Until the stack has locked the account, it may be dropped, or a new one may be
// inserted. From then on the member's account is the key's.
type member[R any] struct {
	layer[R]           // the configuration; it does not change
	index    int       // the layer's index among all layers
	key      anyKey[R] // its limiter and, during a decision, the key
	watched  bool      // an observer receives its decisions: Observe or the limiter's OnDecision

	picked bool // it is a layer of this request, or of the last one

	// The following fields belong to the request.
	p      *plan    // nil if the layer does not apply
	a      *account // nil if the key is not tracked or the plan tracks nothing
	unseen unseen   // if a is nil: the key's record
	amount int      // the layer's cost
	charge int      // its charge's index, or none
	loaded bool     // there is something to report

	// At most one of these two is true. It selects the change that a denial undoes.
	inserted bool // the account was made for this decision, and is pinned
	pinned   bool // the account was there before, and is pinned for this decision

	err     error // why the layer cannot decide
	keyless bool  // err is the key function's

	// The counter of calls to Refresh, and its value when LimitFor was called. Both are
	// zero if LimitFor was not called. If the counter has changed at the time of the
	// charge, Refresh may have missed the account, so the account is marked as stale.
	refreshed *atomic.Uint64
	before    uint64
}

// none is the index of no charge.
const none = -1

// anyKey is a layer's limiter and the request's key. It hides the type of the key, the only difference
// between one stack's members. A call through this interface cannot be inlined, so steps without a key use
// the account instead. A decision on tracked keys makes two such calls for each layer: load and clear.
type anyKey[R any] interface {
	// load determines the layer's key, account, plan and cost for a request. It runs user code.
	load(m *member[R], r R, cost int) error
	// find looks the account up again.
	find() *account
	// unseen returns the key's record if it is not tracked.
	unseen() unseen
	// same reports whether the other is the same key of the same limiter.
	same(other anyKey[R]) bool
	// insert adds the key to the limiter, pins its account and reports true. If another decision has added the key, it
	// reports false.
	insert(p *plan, clock Clock) (a *account, created bool, err error)
	// withdraw removes insert's entry, unless another decision has spent from it.
	withdraw(a *account, clock Clock)
	// debit returns a function to charge the key later, even if it is no longer tracked.
	debit(p *plan) func(n int64, f *followed) error
	// adopted records that the account's plan comes from LimitFor.
	adopted(p *plan)
	// waiting counts the limiter's waiting calls.
	waiting() *waitingRoom
	// home returns the limiter and the key, for a waiting call.
	home() home
	// report calls the limiter's OnDecision, if there is one.
	report(ctx context.Context, cost int, d Decision, spent bool, err error)
	// clear forgets the key.
	clear()
}

// clear forgets the request. It sets each field by itself: this is faster
// than an assignment of the whole struct. load sets all other fields.
func (m *member[R]) clear() {
	m.p, m.a, m.err, m.refreshed, m.amount = nil, nil, nil, nil, 0
	m.loaded, m.inserted, m.pinned, m.keyless = false, false, false, false
	m.key.clear()
}

// find looks the account up again, because it was dropped or a new
// one may have been inserted. With a dropped account its pin is gone.
func (m *member[R]) find() {
	if m.p == nil || !m.p.tracks() {
		return
	}
	a := m.key.find()
	m.inserted = m.inserted && a == m.a
	m.pinned = m.pinned && a == m.a
	if m.a = a; a == nil {
		m.unseen = m.key.unseen()
	}
}

// lacks reports whether the layer needs a missing account. A charge of 0, or of more than the key can ever allow, needs none.
func (m *member[R]) lacks() bool {
	return m.a == nil && m.amount > 0 && m.err == nil && m.p != nil && m.p.tracks() && int64(m.amount) <= m.p.capacity
}

// insert adds the key. A new account is pinned: it has spent nothing yet, and would be the first to be evicted. It is
// not locked when insert returns.
func (m *member[R]) insert(clock Clock) {
	a, created, err := m.key.insert(m.p, clock)
	if err == nil {
		m.a, m.inserted = a, created
	}
	m.err = err
}

// withdraw undoes the decision's changes of the table after a denial. Pinned accounts were there before, and stay.
func (m *member[R]) withdraw(clock Clock) {
	if m.inserted {
		m.key.withdraw(m.a, clock)
	}
	if m.pinned {
		m.a.mu.Lock()
		m.a.use.unpin()
		m.a.mu.Unlock()
	}
	m.inserted, m.pinned = false, false
}

// outdated reports whether Refresh was called since LimitFor was.
func (m *member[R]) outdated() bool { return m.refreshed != nil && m.refreshed.Load() != m.before }

// why returns why the layer cannot decide.
func (m *member[R]) why() error {
	if m.keyless {
		return &keyError{m.err}
	}
	return m.err
}

// report passes the decision to the layer's observers.
func (m *member[R]) report(ctx context.Context, r R, d Decision, spent bool, err error) {
	m.key.report(ctx, m.amount, d, spent, err)
	if m.observe != nil {
		reports.Send(ctx, m.observe, Event[R]{Key: r, Cost: m.amount, Decision: d, Spent: spent, Err: err})
	}
}

// layerKey is anyKey for keys of type K.
type layerKey[R any, K comparable] struct {
	l     *Keyed[K]
	keyOf func(R) (K, error)
	key   K // the request's key
}

func (k *layerKey[R, K]) load(m *member[R], r R, cost int) (err error) {
	if k.key, err = k.keyOf(r); err != nil {
		if errors.Is(err, SkipLayer) {
			return nil
		}
		// A failed key function returns no key to report. The error of a shadow layer is reported as an event
		// nevertheless, because no call returns it.
		m.loaded, m.keyless = m.shadow, true
		return err
	}
	m.amount, m.loaded = cost, true
	if m.cost != nil && cost > 0 {
		m.amount = m.cost(r)
	}
	// As in Keyed.decide, a known key needs no check, because all keys in the
	// map are valid. Possibly incomparable keys are checked before the lookup.
	var a *account
	accounts := k.l.fastKeys
	if accounts != nil {
		if e := accounts.Lookup(k.key); e != nil {
			a = &e.Value
		}
	}
	if a == nil || m.amount < 0 {
		if err = k.l.check(k.key, m.amount); err != nil {
			return err
		}
		if accounts == nil {
			a = k.l.keys.find(k.key)
		}
	}
	if m.a = a; a == nil {
		m.unseen = k.unseen()
	}
	if m.p = k.l.onePlan(); m.p == nil || m.limit != nil {
		if m.p, err = k.plan(m, r); err != nil {
			return err
		}
	}
	if !m.p.tracks() {
		m.a = nil // the key's spending under another limit stays as it is
	}
	return nil
}

// plan returns the plan of a layer whose limit depends on the request or the key.
// The request's limit comes first. If the request has none, plan calls LimitFor.
func (k *layerKey[R, K]) plan(m *member[R], r R) (*plan, error) {
	l := k.l
	if m.limit != nil {
		if limit := m.limit(r); limit != (Limit{}) {
			p, err := l.planOfRequest(k.key, m.a, limit)
			if err != nil {
				return nil, fmt.Errorf("Layer.Limit: %w", err)
			}
			return p, nil
		}
	}
	if l.limitFor != nil {
		m.refreshed, m.before = &l.refreshed, l.refreshed.Load()
	}
	return l.planOfAccount(k.key, m.a)
}

func (k *layerKey[R, K]) find() *account { return k.l.keys.find(k.key) }

func (k *layerKey[R, K]) unseen() unseen { return k.l.keys.unseen(k.key) }

func (k *layerKey[R, K]) same(other anyKey[R]) bool {
	o, ok := other.(*layerKey[R, K])
	return ok && o.l == k.l && o.key == k.key
}

func (k *layerKey[R, K]) insert(p *plan, clock Clock) (*account, bool, error) {
	a, _, created, err := k.l.keys.acquire(k.key, p, clock, true)
	if err != nil {
		return nil, false, err
	}
	if created {
		a.use.pin()
	}
	a.mu.Unlock()
	return a, created, nil
}

func (k *layerKey[R, K]) withdraw(a *account, clock Clock) { k.l.keys.withdraw(k.key, a, clock) }

func (k *layerKey[R, K]) debit(p *plan) func(n int64, f *followed) error {
	l, key := k.l, k.key
	if !p.ofRequest() {
		return func(n int64, f *followed) error { return l.debit(key, n, f) }
	}
	return func(n int64, f *followed) error { return l.adjust(key, p, n, l.refreshed.Load(), f) }
}

func (k *layerKey[R, K]) adopted(p *plan) { k.l.adopted(k.key, p) }

func (k *layerKey[R, K]) waiting() *waitingRoom { return &k.l.waiting }

func (k *layerKey[R, K]) home() home { return keyHome[K]{k.l, k.key} }

func (k *layerKey[R, K]) report(ctx context.Context, cost int, d Decision, spent bool, err error) {
	if f := k.l.onDecision; f != nil {
		reports.Send(ctx, f, Event[K]{Key: k.key, Cost: cost, Decision: d, Spent: spent, Err: err})
	}
}

func (k *layerKey[R, K]) clear() { k.key = *new(K) }
