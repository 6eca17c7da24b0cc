package inflight

import "context"

// joinLocked puts a waiter at the end of the key's queue.
func (s *slot) joinLocked(w *waiter) {
	s.queue.push(w)
	if s.queue.first == w {
		s.handOnLocked()
	}
}

// quitLocked takes out a waiter that gives up. One that was served at the same instant
// gives its permit back, so that it goes to the next.
func (s *slot) quitLocked(w *waiter) {
	if !w.done {
		s.queue.remove(w)
		s.handOnLocked()
	} else if w.err == nil {
		p := w.permit
		s.releasedLocked(s.works.end(p.place, p.serial).n)
	}
}

// awaitLocked waits in the key's queue. It lets go of the pool.
func (s *slot) awaitLocked(ctx context.Context, n int) (p Permit, err error) {
	w := &waiter{n: n, ready: make(chan struct{}), since: s.common.clock.Now()}
	s.joinLocked(w)
	s.pool.mu.Unlock()
	select {
	case <-w.ready:
	case <-ctx.Done():
		s.pool.mu.Lock()
		s.quitLocked(w)
		s.unlockVacated()
		return Permit{}, errGaveUp(ctx)
	}
	return w.permit, w.err
}
