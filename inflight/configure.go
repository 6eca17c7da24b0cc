package inflight

import "time"

// configureLocked puts a configuration into force. An adaptive limit keeps its learnt value, within the new bound. The
// caller must call Limiter.changedLocked afterwards.
func (s *semaphore) configureLocked(cfg config, base int, now time.Duration) {
	if cfg.number < s.number {
		return
	}
	s.number, s.configured = cfg.number, cfg.limit
	if s.common.timed {
		s.pool().advanceLocked(s, s.atLocked(now)) // the units in flight until now count by the old weight
	}
	s.weight = weightOf(cfg.weight)
	if s.priority != cfg.priority {
		s.pool().moveLocked(s, cfg.priority)
	}
	s.boundLocked(cfg.bound(base), now)
}

// boundLocked changes the upper bound, and ends the waiters for more
// units. The caller must call Limiter.changedLocked afterwards.
func (s *semaphore) boundLocked(bound int, now time.Duration) {
	limit := bound
	if s.common.adaptive != nil { // a shared limit does not limit single keys
		limit = s.learner.limit(bound)
	}
	s.bound = bound
	s.expelLocked()
	s.limitLocked(limit)
	if s.at >= 0 {
		s.pool().placeLocked(s, now) // this removes the key if its own limit now stops it
	}
}

// expelLocked ends the waiters whose request can never fit.
func (s *semaphore) expelLocked() {
	for w := s.first; w != nil; {
		next := w.next
		if err := s.possibleLocked(w.n); err != nil {
			s.pool().leaveLocked(s, w)
			w.end(err)
		}
		w = next
	}
}
