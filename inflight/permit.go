package inflight

import "time"

// Permit is what [Limiter.TryAcquire] and [Limiter.Acquire] give: units that are in
// flight until Release or Done is called. Only the first such call counts, from
// whatever goroutine and on whatever copy; further ones do nothing. The zero Permit holds
// nothing, and its methods do nothing.
type Permit struct {
	slot   *slot
	place  uint32 // of its work
	serial uint64
}

// Release gives the permit back after work that was done: it is Done(Success). Defer
// it right after the permit was got, so that a panic does not keep it.
func (p Permit) Release() { p.Done(Success) }

// Done gives the permit back and says how the work has ended. The units are free when
// it returns, or handed on to those who wait for them.
func (p Permit) Done(o Outcome) {
	s := p.slot
	if s == nil {
		return
	}
	var now time.Duration
	if s.timed {
		now = s.common.clock.Now()
	}
	s.pool.mu.Lock()
	w := s.works.end(p.place, p.serial)
	if w.n == 0 {
		s.pool.mu.Unlock()
		return
	}
	due := s.learner != nil && s.learner.ended(now, &w, o)
	if due {
		s.takeWindowLocked(now)
	}
	s.releasedLocked(&w, now)
	s.unlockVacated()
	if due {
		s.learn()
	}
}

// tryLocked takes n units or says why not, and lets go of the pool.
func (s *slot) tryLocked(n int, why error) (Permit, error) {
	if !s.freeLocked(n) {
		if !s.common.shadow {
			return Permit{}, s.shedLocked(n, why)
		}
		s.countShedLocked()
	}
	var now time.Duration
	if s.timed {
		now = s.common.clock.Now()
	}
	p := s.takeLocked(n, now)
	s.pool.mu.Unlock()
	return p, nil
}
