package inflight

// configureLocked puts a configuration into force. An adaptive limit keeps what it has
// learnt, within the bound.
func (s *slot) configureLocked(cfg config, base int) {
	if cfg.asked < s.asked {
		return
	}
	s.asked, s.told = cfg.asked, cfg.limit
	if s.common.timed {
		s.pool().advanceLocked(s, s.common.clock.Now()) // by the old weight
	}
	s.weight = weightOf(cfg.weight)
	s.prioritizeLocked(cfg.priority)
	s.boundLocked(cfg.bound(base))
}

// boundLocked changes the upper bound, and ends the waiters that are above it now.
func (s *slot) boundLocked(bound int) {
	limit := bound
	if s.learner != nil {
		limit = s.learner.limit(bound)
	}
	s.bound = bound
	s.expelLocked()
	s.setLimitLocked(limit)
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

// prioritizeLocked changes the key's priority, and moves its waiters to that level.
func (s *slot) prioritizeLocked(priority int) {
	if s.priority == priority {
		return
	}
	var moved []*waiter
	for s.first != nil {
		moved = append(moved, s.first)
		s.pool().leaveLocked(s, s.first)
	}
	s.priority, s.waits = priority, false
	for _, w := range moved {
		s.pool().joinLocked(s, w)
	}
}
