package inflight

import "time"

// waiter is a waiting call to Acquire. The lock of its key guards it. Once
// ready is closed, the waiter may read its other fields without the lock.
type waiter struct {
	semaphore *semaphore
	n         int
	ready     chan struct{}
	since     time.Duration // when it began to wait
	ends      time.Duration // the reading at the wait's end
	// the reading at the end of the caller's context; later than ends if a bound of the wait alone ends the wait
	gone         time.Duration
	permit       Permit  // the result, if err is nil
	err          error   // why it gets no permit
	done         bool    // whether ready is closed
	next, prev   *waiter // its neighbours in its key's queue
	came         uint64  // its number among all waiters, in the order of arrival
	newer, older *waiter // its neighbours among its priority's waiters
}

// nextLocked returns the key's next waiter, usually the oldest. After a waiter has left
// unserved, the newest is next until the queue is empty. In an overload the oldest
// waiter has waited for nearly as long as callers bear, so few would be served in time.
func (s *semaphore) nextLocked() *waiter {
	p := s.pool()
	if s.losing && p.collecting != s && s.fitsLocked(s.last.n) && p.fitsLocked(s.last.n, s.priority) {
		return s.last
	}
	return s.first
}

// fullLocked reports whether the queue has no place for a caller. While the newest
// waiter goes first there is always a place, because a caller replaces the oldest.
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

// tooLateLocked reports whether it is too late to begin a waiter's work, because its context would
// probably end first. Times vary, so work is expected to take twice the key's usual time, or half the time
// until the caller's end at its arrival, if less. Work is never expected to take less than the usual time.
//
// A bound of the wait alone limits how long callers wait, but their work
// may take longer. Such work may begin until half of the bound is over.
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

// remove removes a waiter in the queue.
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

// arrivals are one priority's waiters, in the order of arrival.
type arrivals struct{ newest *waiter }

// push adds a waiter. It is the newest, unless it comes from another priority.
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

// end ends the wait.
func (w *waiter) end(err error) {
	w.err, w.done = err, true
	close(w.ready)
}
