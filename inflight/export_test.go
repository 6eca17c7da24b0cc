package inflight

// LevelBounds returns the levels' present bounds: see levels.
func (l *Limiter[K]) LevelBounds() map[int]float64 {
	l.common.mu.Lock()
	defer l.common.mu.Unlock()
	bounds := map[int]float64{}
	if p := l.common.pool; p != nil && p.learner != nil {
		for i, h := range p.learner.levels.all {
			if h.bound > 0 && p.learner.levels.worksAbove(i+1) {
				bounds[h.priority] = h.bound
			}
		}
	}
	return bounds
}

// ErrShed is the error of a call that left the queue for a higher priority.
var ErrShed error = errShed
