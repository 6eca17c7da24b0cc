package ratelimit

import (
	"context"
	"fmt"
	"math"
	"time"
	"unsafe"
)

// stack is what one decision over several layers works with. It is used by one
// goroutine at a time, and holds no key or bucket in between.
type stack[R any] struct {
	slots   []slot[R]
	charges []charge // of the buckets that the slots meet in
	d       Decision // here, because what calls may keep a pointer to has to be on the heap
}

// charge is what one decision asks of one bucket: the sum over the layers that
// meet there.
type charge struct {
	b      *account // nil if the key is not tracked
	p      *plan
	s      state    // as of now
	slot   int      // the first that meets here
	cost   int64    // to be spent
	own    int64    // the part of it that does not depend on the caller's cost
	shares int64    // how many layers charge the caller's cost
	now    int64    // what the clock's reading counts as
	sp     spending // how the cost is spent
	retry  int64    // the first reading at which it would be
}

func newStack[R any](layers []Layer[R]) *stack[R] {
	s := &stack[R]{charges: make([]charge, 0, len(layers))}
	for _, l := range layers {
		s.slots = append(s.slots, l.slot())
	}
	return s
}

// clear forgets the request.
func (s *stack[R]) clear() {
	for _, slot := range s.slots {
		slot.clear()
	}
	clear(s.charges)
	s.charges = s.charges[:0]
	s.d = Decision{}
}

// load asks the layers for their keys, costs and plans. User code runs here, under
// no lock.
func (s *stack[R]) load(r R, cost int) error {
	if cost < 0 {
		return fmt.Errorf("%w: %d", ErrNegativeCost, cost)
	}
	for i, slot := range s.slots {
		if err := slot.load(r, cost); err != nil {
			if p := slot.asked().p; p != nil {
				s.d.Limit = p.limit
			}
			return fmt.Errorf("layer %d: %w", i, err)
		}
	}
	return nil
}

// take charges all layers, or none. It also returns how long the last of them
// takes to let the cost through.
func (s *stack[R]) take(clock Clock, r R, cost int, q request) (due time.Duration, err error) {
	if err = s.load(r, cost); err != nil {
		return 0, err
	}
	if cost == 0 {
		return 0, s.look(clock, 0)
	}
	for range maxTries {
		if !s.hold() {
			break
		}
		raw := reading(clock)
		missing, err := s.weigh(raw, q.ahead, true)
		s.expire()
		if missing && err == nil && s.allowed(raw) {
			s.pin()
			s.unlock()
			if err := s.insert(clock); err != nil {
				return 0, err
			}
			continue
		}
		if err == nil {
			due = s.conclude(raw, q.keep)
		}
		s.unlock()
		if !s.d.Allowed {
			s.withdraw(clock)
		}
		return due, err
	}
	s.withdraw(clock)
	return 0, s.restless()
}

// wait takes the cost as soon as that is possible, and waits out the delay.
func (s *stack[R]) wait(ctx context.Context, clock Clock, r R, cost int) error {
	for {
		left, err := timeLeft(ctx)
		if err != nil {
			return err
		}
		s.clear()
		due, err := s.take(clock, r, cost, request{ahead: int64(left), keep: true})
		switch {
		case err != nil:
			return err
		case s.d.Allowed:
			settle := s.settler(clock)
			return sleep(ctx, s.d.Delay, func() { _ = settle(0) })
		case due > left:
			return tooLate(cost, due-left, left, s.d.Limit)
		}
		if err := sleep(ctx, s.d.RetryAfter, func() {}); err != nil {
			return err
		}
	}
}

// look answers without changing anything, as the caller's cost would be.
func (s *stack[R]) look(clock Clock, cost int) error {
	if !s.hold() {
		return s.restless()
	}
	raw := reading(clock)
	_, err := s.weigh(raw, math.MaxInt64, false)
	if err == nil || cost == 0 {
		s.answer(raw, cost == 0 || s.allowed(raw))
	}
	s.unlock()
	if cost == 0 {
		s.d.Delay, err = 0, nil
	}
	return err
}

// hold finds and locks all buckets that there are.
func (s *stack[R]) hold() bool {
	for try := range maxTries {
		if s.find(try > 0); s.lock() {
			return true
		}
	}
	return false
}

// restless is the error if keys are reset faster than a decision can be made.
func (s *stack[R]) restless() error {
	return fmt.Errorf("%w: the keys of one request do not stay", ErrTableFull)
}

// find looks the buckets up, and sums up what is asked of each.
func (s *stack[R]) find(again bool) {
	s.charges = s.charges[:0]
	for i, slot := range s.slots {
		a := slot.asked()
		if a.p == nil {
			continue
		}
		if a.p.tracks() { // if not, what the key has spent under another limit rests
			slot.find(again)
		}
		c := s.charge(i)
		c.cost = satAdd(c.cost, int64(a.cost))
		if a.own {
			c.own = satAdd(c.own, int64(a.cost))
		} else {
			c.shares++
		}
	}
	s.sort()
}

// charge returns the charge that the slot adds to, a new one if it is the first.
func (s *stack[R]) charge(i int) *charge {
	a := s.slots[i].asked()
	for j := range s.charges {
		c := &s.charges[j]
		if c.b == a.b && (a.b != nil || s.slots[i].same(s.slots[c.slot])) {
			return c
		}
	}
	s.charges = append(s.charges, charge{b: a.b, p: a.p, slot: i})
	return &s.charges[len(s.charges)-1]
}

// sort puts the charges into the one order in which all decisions lock buckets:
// that of their addresses, which Go's collector does not change.
func (s *stack[R]) sort() {
	for i := range s.charges {
		for j := i; j > 0 && s.charges[j].address() < s.charges[j-1].address(); j-- {
			s.charges[j], s.charges[j-1] = s.charges[j-1], s.charges[j]
		}
	}
}

func (c *charge) address() uintptr { return uintptr(unsafe.Pointer(c.b)) }

// lock locks all buckets, or none if one of them has been dropped.
func (s *stack[R]) lock() bool {
	for i := range s.charges {
		b := s.charges[i].b
		if b == nil {
			continue
		}
		if b.mu.Lock(); b.plan == nil {
			for j := range i + 1 {
				s.charges[j].unlock()
			}
			return false
		}
	}
	return true
}

func (c *charge) unlock() {
	if c.b != nil {
		c.b.mu.Unlock()
	}
}

func (s *stack[R]) unlock() {
	for i := range s.charges {
		s.charges[i].unlock()
	}
}

// weigh finds out from when on each bucket admits what is asked of it, and whether
// buckets are missing. It records the reading, if it is told to. All are locked.
func (s *stack[R]) weigh(raw, ahead int64, record bool) (missing bool, err error) {
	for i := range s.charges {
		c := &s.charges[i]
		c.sp, c.retry, c.now = spending{at: raw}, raw, raw
		if !c.p.tracks() {
			continue
		}
		c.stand(raw, record)
		missing = missing || c.b == nil && c.cost > 0
		switch {
		case c.cost > c.p.capacity:
			s.d.Limit = c.p.limit
			err = fmt.Errorf("layer %d: %w", c.slot, c.p.exceeds(c.cost))
		case c.cost > 0:
			c.sp, c.retry = c.p.admits(c.s, raw, c.now, c.cost, c.ahead(ahead))
		}
	}
	return missing, err
}

// ahead returns how far ahead may be booked: not at all, but in a queue.
func (c *charge) ahead(ahead int64) int64 {
	if c.p.leaky == nil {
		return 0
	}
	return ahead
}

// stand finds out how the bucket stands at a reading.
func (c *charge) stand(raw int64, record bool) {
	b := c.b
	if b == nil {
		c.s = state{at: raw}
		return
	}
	c.now = max(raw, b.last)
	if !record {
		b.refold()
		c.s = carry(b.plan, c.p, b.state, c.now)
		return
	}
	b.adopt(c.p, raw)
	c.p = b.plan
	b.record(c.p, c.now)
	c.s = b.state
}

func (s *stack[R]) allowed(reading int64) bool {
	for i := range s.charges {
		if s.charges[i].retry > reading {
			return false
		}
	}
	return true
}

// conclude spends all, or nothing, and fills in the decision. All are locked.
func (s *stack[R]) conclude(raw int64, keep bool) (due time.Duration) {
	allowed := s.allowed(raw)
	for i := range s.charges {
		c := &s.charges[i]
		due = max(due, between(raw, max(c.sp.at, c.retry)))
		switch {
		case c.b == nil || c.cost == 0:
		case !allowed:
			if c.retry > raw {
				c.b.use.denied()
			}
		default:
			c.sp.changes = c.b.changes
			c.b.commit(c.p, c.now, c.sp, keep)
			c.s = c.b.state
		}
	}
	if allowed {
		s.unpin()
	}
	s.answer(raw, allowed)
	return due
}

// pin keeps the keys that are there from having to make room for those that are
// missing. All are locked.
func (s *stack[R]) pin() {
	for i := range s.charges {
		if b := s.charges[i].b; b != nil && !b.use.isPinned() {
			b.use.pin()
			s.slots[s.charges[i].slot].asked().pinned = true
		}
	}
}

// unpin takes the pins out: what was inserted is there to stay. All are locked.
func (s *stack[R]) unpin() {
	for _, slot := range s.slots {
		if a := slot.asked(); a.inserted || a.pinned {
			a.b.use.unpin()
			a.inserted, a.pinned = false, false
		}
	}
}

// expire marks the buckets whose limits were to be asked for again while this
// decision was under way. All are locked.
func (s *stack[R]) expire() {
	for _, slot := range s.slots {
		if a := slot.asked(); a.b != nil && slot.refreshed() {
			a.b.expire()
		}
	}
}

// answer fills in the decision.
func (s *stack[R]) answer(raw int64, allowed bool) {
	s.d.Allowed, s.d.Limit, s.d.Remaining = allowed, Unlimited(), math.MaxInt
	least, worst := -1, -1
	for i := range s.charges {
		c := &s.charges[i]
		if room := c.room(); least < 0 || room < s.d.Remaining {
			least, s.d.Remaining = i, room
		}
		if c.p.tracks() {
			s.d.ResetAfter = max(s.d.ResetAfter, between(raw, max(c.p.regained(c.s), c.now)))
		}
		if wait := between(raw, c.retry); !allowed && wait > s.d.RetryAfter {
			worst, s.d.RetryAfter = i, wait
		}
		if allowed && c.sp.at > c.now {
			s.d.Delay = max(s.d.Delay, between(raw, c.sp.at))
		}
	}
	if worst >= 0 {
		least = worst
	}
	if least >= 0 {
		s.d.Limit = s.charges[least].p.limit
	}
}

// room returns the largest cost of the caller that fits into the bucket.
func (c *charge) room() int {
	left := c.p.capacity
	if c.p.tracks() {
		left = c.p.remaining(c.s, c.now)
	}
	left -= c.own
	switch {
	case left < 0:
		return 0
	case c.shares == 0:
		return math.MaxInt
	}
	return int(left / c.shares)
}

// insert adds the keys that are missing.
func (s *stack[R]) insert(clock Clock) error {
	for i, slot := range s.slots {
		if a := slot.asked(); a.p == nil || !a.p.tracks() || a.b != nil || a.cost == 0 {
			continue
		}
		if err := slot.insert(clock); err != nil {
			s.d.Limit = slot.asked().p.limit
			s.withdraw(clock)
			return fmt.Errorf("layer %d: %w", i, err)
		}
	}
	return nil
}

func (s *stack[R]) withdraw(clock Clock) {
	for _, slot := range s.slots {
		slot.withdraw(clock)
	}
}

// settler returns how to settle what has been charged.
func (s *stack[R]) settler(clock Clock) func(actual int) error {
	var charged []settlement
	for i := range s.charges {
		if c := &s.charges[i]; c.b != nil && c.cost > 0 {
			charged = append(charged, settlement{c.b, c.sp, c.shares, c.own})
		}
	}
	return func(actual int) error {
		for i := range charged {
			charged[i].settle(clock, int64(actual))
		}
		return nil
	}
}

// settlement is what is needed to settle a charge.
type settlement struct {
	b           *account
	sp          spending
	shares, own int64
}

func (c *settlement) settle(clock Clock, actual int64) {
	cost, over := mul(c.shares, actual)
	if over {
		cost = math.MaxInt64
	}
	if actual > 0 {
		cost = satAdd(cost, c.own)
	}
	c.b.settleAt(clock, c.sp, cost)
}

// report tells each layer's limiter of the decision.
func (s *stack[R]) report(err error) {
	for _, slot := range s.slots {
		slot.report(&s.d, err)
	}
}
