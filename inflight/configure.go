package inflight

// configureLocked puts a configuration into force. An adaptive limit keeps what it has
// learnt, within the bound.
func (s *slot) configureLocked(cfg config, base int) {
	if cfg.asked < s.config.asked {
		return
	}
	s.config = cfg
	s.weight = weightOf(cfg.weight)
	s.placed = nil // the weight is part of its place
	s.boundLocked(cfg.bound(base))
}

// boundLocked changes the upper bound, and ends the waiters that are above it now.
func (s *slot) boundLocked(bound int) {
	limit := bound
	if s.learner != nil {
		limit = s.learner.limit(bound)
	}
	s.bound = bound
	for w := s.queue.first; w != nil; {
		next := w.next
		if err := s.possibleLocked(w.n); err != nil {
			s.queue.remove(w)
			w.end(err)
		}
		w = next
	}
	s.setLimitLocked(limit)
}
