package ratelimit

import (
	"errors"
	"fmt"
)

// slot is one layer's place in a stack: what the layer has found out about the
// request at hand. It hides the type of the layer's keys.
type slot[R any] interface {
	// charging makes the layer charge a cost of its own.
	charging(cost func(R) int)
	// load finds out the key, the cost and the plan for a request.
	load(r R, cost int) error
	// asked returns what load and find have found out.
	asked() *ask
	// find looks the bucket up: under the shard's lock, if the index is behind.
	find(again bool)
	// same reports whether the other slot is about the same key of the same limiter.
	same(other slot[R]) bool
	// insert adds the key to the limiter, as good as new and not to be dropped
	// before it is withdrawn, or its bucket's pin is taken out.
	insert(clock Clock) error
	// withdraw takes the pin out, and what insert has added back, unless somebody has
	// spent from it.
	withdraw(clock Clock)
	// refreshed reports whether the limit was to be asked for again since load.
	refreshed() bool
	// report tells the limiter's OnDecision, silence keeps it from being told.
	report(d *Decision, err error)
	silence()
	// clear forgets the request.
	clear()
}

// ask is what one layer asks of its limiter.
type ask struct {
	p        *plan    // nil if the layer does not apply
	b        *account // nil if the key is not tracked
	cost     int
	own      bool // the cost is the layer's own, whatever the caller's
	inserted bool // the bucket is there for this decision only, and pinned
	pinned   bool // the bucket was there before, and is pinned for this decision
	loaded   bool // there is something to report
}

type keyedSlot[R any, K comparable] struct {
	ask
	layer *keyedLayer[R, K]
	price func(R) int // the layer's own cost, or nil
	key   K
	asks  uint64 // how many refreshes the limiter had counted
}

func (s *keyedSlot[R, K]) charging(cost func(R) int) { s.price = cost }

func (s *keyedSlot[R, K]) asked() *ask { return &s.ask }

func (s *keyedSlot[R, K]) load(r R, cost int) (err error) {
	if s.key, err = s.layer.key(r); err != nil {
		if errors.Is(err, SkipLayer) {
			return nil
		}
		return fmt.Errorf("key: %w", err)
	}
	s.cost, s.loaded = cost, true
	if s.price != nil {
		s.cost, s.own = s.price(r), true
	}
	l := s.layer.l
	if err = l.check(s.key, s.cost); err != nil {
		return err
	}
	s.asks = l.refreshed.Load()
	if s.p, err = l.planFor(s.key); err != nil || cost == 0 {
		return err
	}
	return s.p.check(s.cost)
}

func (s *keyedSlot[R, K]) find(again bool) {
	t := s.layer.l.keys
	b := t.find(s.key)
	if again {
		b = t.findLocked(s.key)
	}
	s.inserted = s.inserted && b == s.b
	s.pinned = s.pinned && b == s.b
	s.b = b
}

func (s *keyedSlot[R, K]) same(other slot[R]) bool {
	o, ok := other.(*keyedSlot[R, K])
	return ok && o.layer.l == s.layer.l && o.key == s.key
}

func (s *keyedSlot[R, K]) insert(clock Clock) error {
	b, _, fresh, err := s.layer.l.keys.acquire(s.key, s.p, clock)
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
		s.layer.l.keys.withdraw(s.key, s.b, clock)
	}
	if s.pinned {
		s.b.mu.Lock()
		s.b.use.unpin()
		s.b.mu.Unlock()
	}
	s.inserted, s.pinned = false, false
}

func (s *keyedSlot[R, K]) refreshed() bool { return s.layer.l.refreshed.Load() != s.asks }

func (s *keyedSlot[R, K]) report(d *Decision, err error) {
	if f := s.layer.l.onDecision; f != nil && s.loaded {
		f(Event[K]{Key: s.key, Cost: s.cost, Decision: *d, Spent: d.Allowed && s.b != nil && s.cost > 0, Err: err})
	}
}

func (s *keyedSlot[R, K]) silence() { s.loaded = false }

func (s *keyedSlot[R, K]) clear() {
	s.ask = ask{}
	s.key = *new(K)
}
