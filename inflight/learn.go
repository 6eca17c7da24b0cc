package inflight

import "time"

// takeWindowLocked ends the window of the semaphore's learner.
func (s *semaphore) takeWindowLocked(now time.Duration) {
	p, l := s.pool(), s.learner
	if p.learner == nil {
		l.take(now, s.bound, s.inFlight-l.ignored)
		return
	}
	l.take(now, int(p.bound.Load()), p.inFlight-l.ignored)
}

// learn passes the due window to the algorithm and applies the result. It holds
// no lock while the algorithm runs. If the algorithm panics, the limit stays.
func (s *semaphore) learn() {
	l, p := s.learner, s.pool()
	limit := l.at
	defer func() {
		reading := s.common.reading(true)
		s.mutex().Lock()
		busy := !s.idleLocked()
		l.at = max(1, limit)
		if q, ok := l.alg.(interface{ Queue() int }); ok {
			l.queue = q.Queue()
		}
		now := &s.limit
		if p.learner != nil {
			now = &p.total
		}
		old, at := *now, s.atLocked(reading)
		if p.learner != nil {
			bound := int(p.bound.Load())
			p.setLocked(l.limit(bound), bound)
			p.dispatchLocked(at)
		} else {
			s.limitLocked(l.limit(s.bound))
			s.handOnLocked(at)
		}
		limit = *now
		l.changed(at, old, limit)
		l.updating = limit != old && l.report != nil // reports must be in order
		reports := l.updating
		s.unlockAfter(busy)
		if reports {
			defer func() {
				s.mutex().Lock()
				l.updating = false
				s.mutex().Unlock()
			}()
			l.report(old, limit)
		}
	}()
	if l.system {
		l.due.At = time.Duration(time.Now().UnixNano())
	}
	limit = l.alg.Update(l.due)
}
