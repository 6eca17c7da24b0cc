package inflight

import "time"

// A Permit holds units that are in flight until Release or Done is called. Only the first such call counts, on any goroutine
// and any copy. The methods of the zero Permit do nothing.
type Permit struct {
	semaphore *semaphore
	place     uint32 // of its work
	serial    uint64
}

// Release is Done(Success).
func (p Permit) Release() { p.Done(Success) }

// Done gives the permit back and records the outcome of the work.
func (p Permit) Done(o Outcome) {
	s := p.semaphore
	if s == nil {
		return
	}
	if s.common.timed {
		s.doneTimed(p, o)
		return
	}
	s.mu.Lock() // a semaphore that is not timed has a lock of its own
	var now time.Duration
	if s.first != nil {
		s.mu.Unlock()
		now = s.common.reading(true)
		s.mu.Lock()
		now = s.atLocked(now)
	}
	n := s.works.end(p.place, p.serial)
	if n == 0 {
		s.mu.Unlock()
		return
	}
	s.releasedLocked(n, now)
	s.unlockVacated()
}

func (s *semaphore) doneTimed(p Permit, o Outcome) {
	now := s.common.reading(true)
	s.mutex().Lock()
	w := s.endLocked(p)
	if w.n == 0 {
		s.mutex().Unlock()
		return
	}
	now = s.atLocked(now)
	s.chargeLocked(&w, now)
	due := s.learner != nil && s.learner.ended(now, &w, o)
	if due {
		s.takeWindowLocked(now)
	}
	s.releasedLocked(w.n, now)
	s.unlockVacated()
	if due {
		s.learn()
	}
}

// tryUnlock takes n units or returns the error, and unlocks.
func (s *semaphore) tryUnlock(n int, now time.Duration, why error) (Permit, error) {
	if !s.freeLocked(n) {
		if !s.common.shadow {
			return Permit{}, s.shedUnlock(n, why)
		}
		s.countShedLocked()
	}
	if s.common.timed {
		now = s.atLocked(now)
	}
	p := s.takeLocked(n, now)
	s.mutex().Unlock()
	return p, nil
}
