package inflight

// configureLocked puts a configuration into force. An adaptive limit keeps what it has
// learnt, within the bound. The caller then calls Limiter.changed.
func (s *slot) configureLocked(cfg config, base int) {
	if cfg.asked < s.asked {
		return
	}
	s.asked, s.told = cfg.asked, cfg.limit
	if s.common.timed {
		s.pool().advanceLocked(s, s.common.clock.Now()) // by the old weight
	}
	s.weight = weightOf(cfg.weight)
	if s.priority != cfg.priority {
		s.pool().moveLocked(s, cfg.priority)
	}
	s.boundLocked(cfg.bound(base))
}

// boundLocked changes the upper bound, and ends the waiters that are above it now. The caller then calls
// Limiter.changed.
func (s *slot) boundLocked(bound int) {
	limit := bound
	if s.common.adaptive != nil { // a shared limit is no key's own
		limit = s.learner.limit(bound)
	}
	s.bound = bound
	s.expelLocked()
	s.limitLocked(limit)
	if s.at >= 0 {
		s.pool().placeLocked(s, s.common.clock.Now()) // out, if that is its own limit now
	}
}

// expelLocked ends the waiters for whom there is never room.
func (s *slot) expelLocked() {
	for w := s.first; w != nil; {
		next := w.next
		if err := s.possibleLocked(w.n); err != nil {
			s.pool().leaveLocked(s, w)
			w.end(err)
		}
		w = next
	}
}
