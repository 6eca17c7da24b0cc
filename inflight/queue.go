package inflight

import "time"

// waiter is one call of Acquire that waits. Its pool's lock guards it, except that ready
// is closed once, and what was written before may be read after that.
type waiter struct {
	slot         *slot
	n            int
	ready        chan struct{}
	since        time.Duration // when it began to wait
	permit       Permit        // what it gets, if err is nil
	err          error         // why it gets nothing
	done         bool          // ready is closed
	next, prev   *waiter       // of its key
	newer, older *waiter       // of its priority
}

// queue is a key's waiters, first come, first served.
type queue struct {
	first, last *waiter
	len         int
}

func (q *queue) push(w *waiter) {
	w.prev = q.last
	if q.last == nil {
		q.first = w
	} else {
		q.last.next = w
	}
	q.last = w
	q.len++
}

// remove takes out a waiter that is in the queue.
func (q *queue) remove(w *waiter) {
	if w.prev == nil {
		q.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		q.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.next, w.prev = nil, nil
	q.len--
}

// arrivals are the waiters of one priority, in the order in which they came.
type arrivals struct {
	newest *waiter
	len    int
}

func (a *arrivals) push(w *waiter) {
	w.older = a.newest
	if w.older != nil {
		w.older.newer = w
	}
	a.newest = w
	a.len++
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
	a.len--
}

// end lets the waiter go on.
func (w *waiter) end(err error) {
	w.err, w.done = err, true
	close(w.ready)
}
