package inflight

import "time"

// Permit is what [Limiter.TryAcquire] and [Limiter.Acquire] give: units that are in
// flight until Release or Done is called. Only the first such call counts, from
// whatever goroutine; further ones do nothing. A nil Permit and the zero Permit hold
// nothing, and their methods do nothing. A Permit must not be copied.
type Permit struct {
	slot *slot
	held held // guarded by the slot's lock
}

// Release gives the permit back after work that was done: it is Done(Success). Defer
// it right after the permit was got, so that a panic does not keep it.
func (p *Permit) Release() { p.Done(Success) }

// Done gives the permit back and says how the work has ended. The units are free when
// it returns, or handed on to those who wait for them.
func (p *Permit) Done(o Outcome) {
	if p == nil || p.slot == nil {
		return
	}
	s := p.slot
	var now time.Duration
	if s.learner != nil {
		now = s.common.clock.Now()
	}
	s.pool.mu.Lock()
	h := p.held
	if h.n == 0 {
		s.pool.mu.Unlock()
		return
	}
	p.held.n = 0
	due := s.learner != nil && s.learner.ended(now, now-h.start, o)
	if due {
		s.learner.take(now, s.bound, s.inFlight)
	}
	s.releaseLocked(h)
	s.unlockVacated()
	if due {
		s.learn()
	}
}

// tryLocked takes n units or says why not, and lets go of the pool.
func (s *slot) tryLocked(n int, why error) (*Permit, error) {
	if !s.freeLocked(n) {
		return nil, s.shedLocked(n, why)
	}
	var now time.Duration
	if s.learner != nil {
		now = s.common.clock.Now()
	}
	h := s.takeLocked(n, now)
	s.pool.mu.Unlock()
	return &Permit{s, h}, nil
}
