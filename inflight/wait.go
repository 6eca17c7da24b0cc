package inflight

import (
	"context"
	"time"
)

// left returns the time until the context ends.
func left(ctx context.Context) time.Duration {
	if at, ok := ctx.Deadline(); ok {
		return min(time.Until(at), endless)
	}
	return endless
}

// endless is the time until a context without a deadline ends.
const endless = maxReading

// quitLocked removes a waiter when it gives up. If the waiter was served
// at the same instant, quitLocked passes its permit to the next waiter.
func (s *semaphore) quitLocked(w *waiter, now time.Duration) {
	if !w.done {
		s.pool().leaveLocked(s, w)
		s.losing = true
		s.delayedLocked(w.n)
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

// awaitUnlock unlocks, and waits in the key's queue.
func (s *semaphore) awaitUnlock(ctx context.Context, n int, now, patience, left time.Duration) (p Permit, err error) {
	now = s.atLocked(now)
	w := &waiter{semaphore: s, n: n, since: now, ends: now + patience, gone: now + left}
	if s.tooLateLocked(w, now) {
		return Permit{}, s.shedUnlock(n, errTooLate)
	}
	if most := s.common.maxWaiting; s.queued < s.common.maxQueue && most > 0 && s.pool().waiting >= most && !s.pool().shedLocked(s.priority) {
		return s.tryUnlock(n, now, errTooManyWait)
	}
	if s.queued >= s.common.maxQueue { // the oldest waiter would be served last, so it is replaced
		oldest := s.first
		s.pool().leaveLocked(s, oldest)
		s.countShedLocked()
		s.delayedLocked(oldest.n)
		oldest.end(errQueueFull)
	}
	w.ready = make(chan struct{})
	s.pool().joinLocked(s, w)
	s.handOnLocked(now)
	s.mutex().Unlock()
	select {
	case <-w.ready:
		if w.err != nil { // whoever ended the wait did not check whether this key is idle
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
