package inflight

import "time"

// waiter is one call of Acquire that waits. Its key's lock guards it, except that ready
// is closed once, and fields that were written before may be read after that.
type waiter struct {
	semaphore    *semaphore
	n            int
	ready        chan struct{}
	since        time.Duration // when it began to wait
	ends         time.Duration // the reading at which the wait ends
	gone         time.Duration // the reading at which the caller's context ends: the same, unless a bound of the wait alone ends it sooner
	permit       Permit        // the result, if err is nil
	err          error         // why it gets nothing
	done         bool          // ready is closed
	next, prev   *waiter       // of its key
	came         uint64        // in this order among all waiters
	newer, older *waiter       // of its priority
}

// nextLocked returns the waiter whose turn it is among the waiters of the key: the first, but the newest from the first lost waiter until the
// queue is empty. In an overload, first come, first served would let each caller wait for about as long as callers bear, and serve few in time.
func (s *semaphore) nextLocked() *waiter {
	p := s.pool()
	if s.losing && p.collecting != s && s.fitsLocked(s.last.n) && p.fitsLocked(s.last.n, s.priority) {
		return s.last
	}
	return s.first
}

// fullLocked reports whether the queue has no place for a caller. While the newest waiter goes first, a caller takes the place of the oldest.
func (s *semaphore) fullLocked() bool {
	return s.queued >= s.common.maxQueue && (!s.losing || s.first == nil)
}

// heldLocked adds the time of a success to the mean.
func (s *semaphore) heldLocked(d time.Duration) {
	if s.hold > 0 {
		d = s.hold + (d-s.hold)/16
	}
	s.hold = max(1, d)
}

// tooLateLocked reports whether it is too late to begin a waiter's work, because its context would probably end first. Work is expected to take
// twice the key's usual time, because times vary, or half of the caller's initial time if that is less, but never less than the usual time. A bound
// of the wait alone is about how long callers bear: they may bear work that takes longer, but not if it begins after more than half of the bound.
func (s *semaphore) tooLateLocked(w *waiter, now time.Duration) bool {
	return w.gone-now < s.hold || w.ends-now < min(2*s.hold, (w.ends-w.since)/2)
}

// push adds a waiter to the key's queue.
func (s *semaphore) push(w *waiter) {
	s.losing = s.losing && s.first != nil
	w.prev = s.last
	if s.last == nil {
		s.first = w
	} else {
		s.last.next = w
	}
	s.last = w
	s.queued++
}

// remove takes out a waiter that is in the queue.
func (s *semaphore) remove(w *waiter) {
	if w.prev == nil {
		s.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		s.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.next, w.prev = nil, nil
	s.queued--
}

// arrivals are the waiters of one priority, in the order in which they came.
type arrivals struct{ newest *waiter }

// push adds a waiter. Only where it comes from another priority is it not the newest.
func (a *arrivals) push(w *waiter) {
	var newer *waiter
	older := a.newest
	for older != nil && older.came > w.came {
		newer, older = older, older.older
	}
	if w.newer, w.older = newer, older; newer == nil {
		a.newest = w
	} else {
		newer.older = w
	}
	if older != nil {
		older.newer = w
	}
}

func (a *arrivals) remove(w *waiter) {
	if w.newer == nil {
		a.newest = w.older
	} else {
		w.newer.older = w.older
	}
	if w.older != nil {
		w.older.newer = w.newer
	}
	w.newer, w.older = nil, nil
}

// end lets the waiter go on.
func (w *waiter) end(err error) {
	w.err, w.done = err, true
	close(w.ready)
}
