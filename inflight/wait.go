package inflight

import (
	"context"
	"time"
)

// quitLocked removes a waiter that gives up. A waiter that was served at the same instant gives its permit back, so that it
// goes to the next one.
func (s *semaphore) quitLocked(w *waiter, now time.Duration) {
	if !w.done {
		s.pool().leaveLocked(s, w)
		s.waited = now
		s.handOnLocked(now)
	} else if w.err == nil {
		p := s.endLocked(w.permit)
		if s.common.timed {
			s.chargeLocked(&p, now)
		}
		if s.learner != nil {
			s.learner.ended(now, &p, Ignored)
		}
		s.releasedLocked(p.n, now)
	}
}

// awaitUnlock waits in the key's queue. It unlocks.
func (s *semaphore) awaitUnlock(ctx context.Context, n int, now time.Duration) (p Permit, err error) {
	if most := s.common.maxWaiting; most > 0 && s.pool().waiting >= most && !s.pool().shedLocked(s.priority) {
		return s.tryUnlock(n, now, errTooManyWait)
	}
	now = s.atLocked(now)
	w := &waiter{semaphore: s, n: n, ready: make(chan struct{}), since: now}
	s.pool().joinLocked(s, w)
	s.handOnLocked(now)
	s.mutex().Unlock()
	select {
	case <-w.ready:
		if w.err != nil { // the goroutine that ended the wait examined its own key only
			s.mutex().Lock()
			s.unlockVacated()
		}
	case <-ctx.Done():
		now := s.common.reading(true)
		s.mutex().Lock()
		s.quitLocked(w, s.atLocked(now))
		s.unlockVacated()
		return Permit{}, errGaveUp(ctx)
	}
	return w.permit, w.err
}
