package ratelimit

import (
	"errors"
	"fmt"
	"sync/atomic"
)

// slot is one layer's place in a stack: what the layer asks for in the decision at
// hand. It hides the type of the layer's keys.
type slot[R any] interface {
	// load finds out the key, the cost and the plan for a request. It runs user code.
	load(r R, cost int) error
	// asked returns what load has found out. It is the same pointer each time.
	asked() *ask
	// find looks the account up again.
	find()
	// same reports whether the other slot is about the same key of the same limiter.
	same(other slot[R]) bool
	// insert adds the key to the limiter, fresh, and pins it: it is not dropped before
	// it is withdrawn or its account unpinned.
	insert(clock Clock) error
	// withdraw takes the pin out. It removes what insert has added, unless another
	// decision has spent from it.
	withdraw(clock Clock)
	// debit returns how to charge the key later, for a reservation of cost 0.
	debit() func(actual int) error
	// report tells the limiter's OnDecision, and who watches the layer.
	report(d Decision, spent bool, err error)
	// clear forgets the request.
	clear()
}

// terms are what the wrappers of a layer, such as [Charging], change about it. The
// outermost wrapper of a kind counts.
type terms[R any] struct {
	cost   func(R) int    // the layer's own cost, or nil
	limit  func(R) Limit  // the limit of a request, or nil
	shadow bool           // the layer never denies
	report func(Event[R]) // told of each decision, or nil
}

// ask is what one layer asks of one account in one decision.
type ask struct {
	// These are the layer's, and do not change.
	layer   int  // its index among all layers
	shadow  bool // it never denies
	own     bool // the cost is the layer's own, whatever the caller's
	watched bool // somebody wants to be told of its decisions
	seated  bool // the layer has one of the stack's seats

	p        *plan    // nil if the layer does not apply
	b        *account // nil while the key is not tracked, and if the plan tracks nothing
	floor    int64    // if b is nil: the time before which the key may not be created
	cost     int
	charge   int   // the index of the charge that it is a part of, or none
	loaded   bool  // there is something to report
	inserted bool  // the account was made for this decision, and is pinned
	pinned   bool  // the account was there before, and is pinned for this decision
	err      error // why the layer cannot decide
	keyless  bool  // err is the key function's

	// LimitFor was asked when the counter stood at asks. Both are zero if it was not.
	refreshed *atomic.Uint64
	asks      uint64
}

const none = -1

// forget forgets the request. Each field is set by itself, which takes less than to write
// the struct as a whole. What is not set here, load sets.
func (a *ask) forget() {
	a.p, a.b, a.err, a.refreshed, a.cost, a.floor = nil, nil, nil, nil, 0, 0
	a.loaded, a.inserted, a.pinned, a.keyless = false, false, false, false
}

// why returns why the layer cannot decide.
func (a *ask) why() error {
	if a.keyless {
		return &keyError{a.err}
	}
	return a.err
}

// outdated reports whether the limit was to be asked for again since it was.
func (a *ask) outdated() bool { return a.refreshed != nil && a.refreshed.Load() != a.asks }

// wants reports whether the layer needs an account that is not there.
func (a *ask) wants() bool {
	return a.b == nil && a.cost > 0 && a.err == nil && a.p != nil && a.p.tracks() && int64(a.cost) <= a.p.capacity
}

type keyedSlot[R any, K comparable] struct {
	ask
	l     *Keyed[K]
	keyOf func(R) (K, error)
	terms terms[R]
	key   K
	r     R // the request, if terms.report is to be told of it
}

func newKeyedSlot[R any, K comparable](i int, l *Keyed[K], key func(R) (K, error), t terms[R]) *keyedSlot[R, K] {
	a := ask{layer: i, shadow: t.shadow, own: t.cost != nil, watched: l.onDecision != nil || t.report != nil}
	return &keyedSlot[R, K]{ask: a, l: l, keyOf: key, terms: t}
}

func (s *keyedSlot[R, K]) asked() *ask { return &s.ask }

func (s *keyedSlot[R, K]) load(r R, cost int) (err error) {
	if s.terms.report != nil {
		s.r = r
	}
	if s.key, err = s.keyOf(r); err != nil {
		if errors.Is(err, SkipLayer) {
			return nil
		}
		s.loaded, s.keyless = s.shadow, true // nobody else is told of it
		return err
	}
	s.cost, s.loaded = cost, true
	if s.terms.cost != nil && cost > 0 {
		s.cost = s.terms.cost(r)
	}
	var b *account
	m := s.l.plain
	if m != nil {
		b, _ = m.Load(s.key)
	}
	if b == nil || s.cost < 0 { // what was found can be a key
		if err = s.l.check(s.key, s.cost); err != nil {
			return err
		}
		if m == nil {
			b = s.l.keys.find(s.key)
		}
	}
	s.found(b)
	if s.terms.limit == nil && s.l.limitFor == nil {
		s.p = s.l.era.Load().def
	} else if s.p, err = s.plan(r); err != nil {
		return err
	}
	if !s.p.tracks() {
		s.b = nil // what the key has spent under another limit is left alone
	}
	return nil
}

// plan returns the plan for the request.
func (s *keyedSlot[R, K]) plan(r R) (*plan, error) {
	l := s.l
	if s.terms.limit != nil {
		if limit := s.terms.limit(r); limit != (Limit{}) {
			p, err := l.given(s.b, limit)
			if err != nil {
				return nil, fmt.Errorf("Limited: %w", err)
			}
			return p, nil
		}
	}
	if l.limitFor != nil {
		s.refreshed, s.asks = &l.refreshed, l.refreshed.Load()
	}
	return l.planOf(s.key, s.b)
}

func (s *keyedSlot[R, K]) find() {
	if s.p == nil || !s.p.tracks() {
		return
	}
	b := s.l.keys.find(s.key)
	s.inserted = s.inserted && b == s.b
	s.pinned = s.pinned && b == s.b
	s.found(b)
}

// found takes note of the key's account, or that there is none.
func (s *keyedSlot[R, K]) found(b *account) {
	if s.b = b; b == nil {
		s.floor = s.l.keys.floor(s.key)
	}
}

func (s *keyedSlot[R, K]) same(other slot[R]) bool {
	o, ok := other.(*keyedSlot[R, K])
	return ok && o.l == s.l && o.key == s.key
}

func (s *keyedSlot[R, K]) insert(clock Clock) error {
	b, _, fresh, err := s.l.keys.acquire(s.key, s.p, clock)
	if err != nil {
		return err
	}
	if fresh {
		b.use.pin()
	}
	b.mu.Unlock()
	s.b, s.inserted = b, fresh
	return nil
}

func (s *keyedSlot[R, K]) withdraw(clock Clock) {
	if s.inserted {
		s.l.keys.withdraw(s.key, s.b, clock)
	}
	if s.pinned {
		s.b.mu.Lock()
		s.b.use.unpin()
		s.b.mu.Unlock()
	}
	s.inserted, s.pinned = false, false
}

func (s *keyedSlot[R, K]) debit() func(actual int) error {
	l, key, p := s.l, s.key, s.p
	if !p.given() {
		return func(actual int) error { return l.Adjust(key, actual) }
	}
	return func(actual int) error { return l.adjust(key, p, actual, l.refreshed.Load()) }
}

func (s *keyedSlot[R, K]) report(d Decision, spent bool, err error) {
	if f := s.l.onDecision; f != nil {
		f(Event[K]{Key: s.key, Cost: s.cost, Decision: d, Spent: spent, Err: err})
	}
	if f := s.terms.report; f != nil {
		f(Event[R]{Key: s.r, Cost: s.cost, Decision: d, Spent: spent, Err: err})
	}
}

func (s *keyedSlot[R, K]) clear() {
	s.ask.forget()
	s.key = *new(K)
	if s.terms.report != nil {
		s.r = *new(R)
	}
}
