package inflight

import (
	"time"

	"github.com/weir-go/ratelimit"
)

// slot is one key's semaphore. Its pool's lock guards all of it, but pool and common,
// which never change.
type slot struct {
	own pool // what pool points to, without Total; first, to share few cache lines with what follows

	pool     *pool
	common   *common
	limit    int // units that may be in flight now: bound, or what the algorithm says
	inFlight int
	bound    int      // units that may ever be in flight; 0 if the key is blocked
	learner  *learner // nil if the limit is fixed
	queue    queue
	works    works
	idle     idle
	dead     bool // forgotten: look the key up again

	tags
	at     int     // place in pool.order, or -1
	placed *waiter // whose place that is

	config config // what bound and weight were made from
	shed   uint64
	wait   time.Duration // recent waits of those who were served from the queue
}

// common is what all keys of a limiter share.
type common struct {
	clock    ratelimit.Clock
	maxQueue int
	adaptive Adaptive
	pool     *pool // with Options.Total, else nil
	order    idleOrder
}

// init prepares a slot, which has no configuration yet. It calls the caller's Adaptive.
func (s *slot) init(c *common) {
	s.common, s.pool, s.at = c, c.pool, -1
	s.works.init()
	if s.pool == nil {
		s.pool = &s.own
		s.own.total = noTotal
	}
	if c.adaptive != nil {
		s.learner = newLearner(c.adaptive())
	}
}

// most is how many units can be in flight over all keys.
func (c *common) most() int {
	if c.pool == nil {
		return noTotal
	}
	return c.pool.total
}

// checkUnits returns what is wrong with n whatever the key, if anything.
func (c *common) checkUnits(n int) error {
	switch {
	case n < 0:
		return errNegative(n)
	case n > c.most():
		return errExceeds(n, c.most(), "total")
	}
	return nil
}

// fitsLocked reports whether the key has room for n. What is above an adaptive limit,
// but not above its bound, goes alone: else it could wait for ever, as the limit does
// not grow while nothing is in flight.
func (s *slot) fitsLocked(n int) bool {
	return n <= s.limit-s.inFlight || s.inFlight == 0 && n <= s.bound
}

// possibleLocked returns why n can never be in flight, if so.
func (s *slot) possibleLocked(n int) error {
	if n > s.bound {
		return errExceeds(n, s.bound, "key's limit")
	}
	return nil
}

// freeLocked reports whether n units may be taken now: there is room, and nobody waits
// who could use it.
func (s *slot) freeLocked(n int) bool {
	return s.queue.first == nil && len(s.pool.order) == 0 && s.fitsLocked(n) && n <= s.pool.total-s.pool.inFlight
}

// takeLocked takes n units, which are free. Now is the time if the limit is adaptive.
func (s *slot) takeLocked(n int, now time.Duration) Permit {
	s.inFlight += n
	s.pool.inFlight += n
	var order uint64
	if s.learner != nil {
		order = s.learner.began(now, s.inFlight, s.limit)
	}
	place := s.works.begin(n, now, order)
	return Permit{s, place, s.works.serial}
}

// releasedLocked takes note of units that have come back, and hands them on. The caller then
// calls unlockVacated.
func (s *slot) releasedLocked(n int) {
	s.inFlight -= n
	s.pool.inFlight -= n
	s.handOnLocked()
}

// handOnLocked gives permits to those who may have them after the slot has changed.
func (s *slot) handOnLocked() {
	if s.queue.first != nil || s.began {
		s.pool.placeLocked(s)
	}
	s.pool.dispatchLocked(s.common.clock)
}

// waitedLocked notes a wait: the mean of about the last eight.
func (s *slot) waitedLocked(d time.Duration) {
	if s.wait == 0 {
		s.wait = d
		return
	}
	s.wait += (d - s.wait) / 8
}

// setLimitLocked changes how many units may be in flight now, and lets in who fits.
func (s *slot) setLimitLocked(limit int) {
	s.limit = min(max(limit, min(1, s.bound)), s.bound)
	s.handOnLocked()
}

// shedLocked counts a call that is refused, lets go of the pool and returns why.
func (s *slot) shedLocked(n int, why error) error {
	defer s.pool.mu.Unlock()
	if err := s.possibleLocked(n); err != nil {
		return err
	}
	s.shed++
	return why
}

// unlockVacated lets go of the pool's lock after something has left the slot, and notes
// if that was the last.
func (s *slot) unlockVacated() {
	var unpark func()
	if s.idleLocked() {
		if s.common.order.on.Load() {
			s.idle.at = s.common.order.last.Add(1)
		}
		unpark, s.idle.unpark = s.idle.unpark, nil
	}
	s.pool.mu.Unlock()
	if unpark != nil {
		unpark()
	}
}

// unlockAfter is unlockVacated if the slot was busy before, and else only lets go.
func (s *slot) unlockAfter(busy bool) {
	if busy {
		s.unlockVacated()
		return
	}
	s.pool.mu.Unlock()
}

func (s *slot) idleLocked() bool { return s.inFlight == 0 && s.queue.first == nil }
