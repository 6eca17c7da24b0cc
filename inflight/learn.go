package inflight

// learn tells the algorithm of the window that is due, under no lock, and puts what it
// says into force. An algorithm that panics leaves the limit as it is.
func (s *slot) learn() {
	l := s.learner
	limit := l.at
	defer func() {
		s.pool.mu.Lock()
		busy := !s.idleLocked()
		l.at, l.updating = max(1, limit), false
		old := s.limit
		s.setLimitLocked(l.limit(s.bound))
		l.window.filling = s.limit > old
		s.unlockAfter(busy)
	}()
	limit = l.alg.Update(l.due)
}
