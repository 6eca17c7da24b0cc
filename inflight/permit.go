package inflight

import "time"

// A Permit holds units in flight until Release, Done or DoneAmount is called. Only the first
// such call counts, on any goroutine and for any copy. The zero Permit's methods do nothing.
type Permit struct {
	semaphore *semaphore
	place     uint32 // its work's place
	serial    uint64
}

// Release is Done(Success).
func (p Permit) Release() { p.Done(Success) }

// Done gives the permit back and records the work's outcome.
func (p Permit) Done(o Outcome) { p.DoneAmount(o, 0) }

// Ignore marks work in flight whose time shows nothing about the backend, for example a long stream.
// Adaptive limits then learn nothing from its time. Its units no longer count in the learnt limit, only
// in the upper bounds: the key's limit and Options.Total. Done gives the permit back as usual, but only
// the outcome Dropped counts. Ignore does nothing if the limit is fixed or the permit was given back.
func (p Permit) Ignore() {
	s := p.semaphore
	if s == nil || s.learner == nil {
		return
	}
	now := s.common.reading(true)
	s.mutex().Lock()
	defer s.mutex().Unlock()
	x, ok := s.works.leave(p.place, p.serial)
	if !ok {
		return
	}
	now = s.atLocked(now)
	s.learner.ended(now, &x, Ignored)
	s.learner.ignored += x.n
	if p := s.pool(); p.learner != nil {
		p.learner.levels.add(s.priority, -x.n, now)
	}
	if s.pool().waiting > 0 {
		s.handOnLocked(now)
	}
}

// DoneAmount is like Done, for work whose time is proportional to an amount, for example an answer's
// tokens or a file's bytes. Adaptive limits then learn from the time per amount, so a long answer does
// not count as a slow one. They ignore the time common to all calls, for example until the first token.
//
// The unit can be chosen freely, but must be the same for all calls under a limit. Report an amount with all
// successes under a limit or with none. If one success in a window has no amount, the limit learns from the
// window's times as with Done. If an amount is 0, negative, infinite or not a number, it counts as none.
func (p Permit) DoneAmount(o Outcome, amount float64) {
	s := p.semaphore
	if s == nil {
		return
	}
	if s.common.timed {
		s.doneTimed(p, o, amount)
		return
	}
	s.mu.Lock() // a semaphore without times has its own lock
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
	if s.timedAt == p.place && s.timedWork == p.serial {
		if o == Success && s.first != nil {
			s.heldLocked(now - s.timedFrom)
		}
		s.timedAt = 0
	}
	s.releasedLocked(n, now)
	s.unlockVacated()
}

func (s *semaphore) doneTimed(p Permit, o Outcome, amount float64) {
	now := s.common.reading(true)
	s.mutex().Lock()
	w := s.endLocked(p)
	if w.n == 0 {
		s.mutex().Unlock()
		return
	}
	now = s.atLocked(now)
	s.chargeLocked(&w, now)
	ignored := s.learner != nil && w.seq == 0
	if o == Success && !ignored {
		s.heldLocked(now - w.start)
		if p := s.pool(); p.learner != nil {
			p.learner.levels.held(s.priority, now-w.start)
		}
	}
	if s.learner != nil && o == Success && !ignored {
		s.learner.window.addSized(now-w.start, w.start, amount)
	}
	due := false
	switch {
	case ignored:
		s.learner.ignored -= w.n
		if o == Dropped {
			s.learner.window.addOlder(0, o)
		}
	case s.learner != nil:
		due = s.learner.ended(now, &w, o)
	}
	if due {
		s.takeWindowLocked(now)
	}
	s.releasedLocked(w.n, now)
	s.unlockVacated()
	if due {
		s.learn()
	}
}

// tryUnlock takes n units, or refuses them with the error why. It unlocks the semaphore.
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
