package inflight

import "time"

// waiter is one call of Acquire that waits. Its key's lock guards it, except that ready
// is closed once, and fields that were written before may be read after that.
type waiter struct {
	semaphore    *semaphore
	n            int
	ready        chan struct{}
	since        time.Duration // when it began to wait
	permit       Permit        // the result, if err is nil
	err          error         // why it gets nothing
	done         bool          // ready is closed
	next, prev   *waiter       // of its key
	came         uint64        // in this order among all waiters
	newer, older *waiter       // of its priority
}

// push adds a waiter to the key's queue.
func (s *semaphore) push(w *waiter) {
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
