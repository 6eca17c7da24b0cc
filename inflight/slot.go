package inflight

import (
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/stats"
)

// slot is one key's semaphore. Its pool's lock guards all of it, but pool and common,
// which never change.
type slot struct {
	pool     *pool
	common   *common
	limit    int // units that may be in flight now: bound, or what the algorithm says
	inFlight int
	bound    int      // units that may ever be in flight; 0 if the key is blocked
	learner  *learner // nil if the limit is fixed; with Options.Shared that of all keys
	timed    bool     // the clock is read for each permit
	dead     bool     // forgotten: look the key up again
	queue    queue
	works    works
	idle     idle

	share
	priority int
	at       int // place in its level's order, or -1
	busyAt   int // place in pool.busy, or -1

	config config // what bound, weight and priority were made from
	shed   uint64
	wait   time.Duration // recent waits of those who were served from the queue
	waited time.Duration // when the last of them was served, or gave up

	own pool // what pool points to, without Total
}

// common is what all keys of a limiter share.
type common struct {
	clock      ratelimit.Clock
	maxQueue   int
	maxWaiting int
	adaptive   Adaptive
	pool       *pool // for all keys; nil if each has its own
	shadow     bool
	order      idleOrder
	shed       atomic.Uint64
	waits      [len(stats.Inflight{}.Waits)]atomic.Uint64
}

// init prepares a slot, which has no configuration yet. It calls the caller's Adaptive.
func (s *slot) init(c *common, report func(old, new int)) {
	s.common, s.pool, s.at, s.busyAt = c, c.pool, -1, -1
	s.works.init()
	if s.pool == nil {
		s.pool = &s.own
		s.own.total = noTotal
		s.own.bound.Store(noTotal)
	}
	switch {
	case s.pool.learner != nil:
		s.learner = s.pool.learner
	case c.adaptive != nil:
		s.learner = newLearner(c.adaptive())
		s.learner.report = report
		s.learner.each = s.works.each
	}
	if s.timed = s.learner != nil || c.pool != nil; s.timed {
		s.until = c.clock.Now()
	}
}

// most is how many units can be in flight over all keys.
func (c *common) most() int {
	if c.pool == nil {
		return noTotal
	}
	return int(c.pool.bound.Load())
}

// checkUnits returns what is wrong with n whatever the key, if anything.
func (c *common) checkUnits(n int) error {
	switch {
	case n < 0:
		return errNegative(n)
	case n > c.most() && !c.shadow:
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
	return s.common.checkUnits(n)
}

// freeLocked reports whether n units may be taken now: there is room, and nobody waits
// who could use it and does not stand behind.
func (s *slot) freeLocked(n int) bool {
	return s.queue.first == nil && s.fitsLocked(n) && s.pool.fitsLocked(n) && !s.pool.passedLocked(s.priority)
}

// takeLocked takes n units, which are free. Now is the time if the slot is timed.
func (s *slot) takeLocked(n int, now time.Duration) Permit {
	var order uint64
	if s.timed {
		s.advance(s.inFlight, now)
		s.share.began(n)
		s.pool.sortLocked(s)
	}
	s.inFlight += n
	s.pool.inFlight += n
	switch {
	case s.learner == nil:
	case s.pool.learner == nil:
		order = s.learner.began(now, s.inFlight, s.limit)
	default:
		if s.busyAt < 0 {
			s.busyAt = len(s.pool.busy)
			s.pool.busy = append(s.pool.busy, s)
		}
		order = s.learner.began(now, s.pool.inFlight, s.pool.total)
	}
	place := s.works.begin(n, now, order)
	return Permit{s, place, s.works.serial}
}

// releasedLocked gives the units of work that has ended back, and hands them on. The caller then
// calls unlockVacated.
func (s *slot) releasedLocked(w *work, now time.Duration) {
	if s.timed {
		s.advance(s.inFlight, now)
		s.share.ended(w.n, now-w.start)
		s.pool.sortLocked(s)
	}
	s.inFlight -= w.n
	s.pool.inFlight -= w.n
	if s.inFlight == 0 && s.busyAt >= 0 {
		p := s.pool
		last := p.busy[len(p.busy)-1]
		p.busy[s.busyAt], last.busyAt = last, s.busyAt
		p.busy[len(p.busy)-1] = nil
		p.busy = p.busy[:len(p.busy)-1]
		s.busyAt = -1
	}
	if s.pool.waiting > 0 {
		if !s.timed {
			now = s.common.clock.Now()
		}
		s.handOnLocked(now)
	}
}

// handOnLocked gives permits to those who may have them after the slot has changed.
func (s *slot) handOnLocked(now time.Duration) {
	s.pool.placeLocked(s, now)
	s.pool.dispatchLocked(now)
}

// countShedLocked counts a call that is refused, for the key and for all.
func (s *slot) countShedLocked() {
	s.shed++
	s.common.shed.Add(1)
}

// waitedLocked notes a wait: the mean of about the last eight.
func (s *slot) waitedLocked(d, now time.Duration) {
	i, _ := slices.BinarySearch(stats.WaitBuckets[:], d.Seconds())
	s.common.waits[i].Add(1)
	if s.wait > 0 {
		d = s.wait + (d-s.wait)/8
	}
	s.wait, s.waited = d, now
}

// agedLocked is the mean of recent waits, of which half is left after each such time, and each
// second at least, in which nobody waits.
func (s *slot) agedLocked(now time.Duration) time.Duration {
	if s.wait == 0 || s.queue.first != nil || now <= s.waited {
		return s.wait
	}
	return time.Duration(float64(s.wait) * math.Exp2(-float64(now-s.waited)/float64(max(s.wait, time.Second))))
}

// setLimitLocked changes how many units may be in flight now, and lets in who fits.
func (s *slot) setLimitLocked(limit int) {
	s.limit = min(max(limit, min(1, s.bound)), s.bound)
	s.handOnLocked(s.common.clock.Now())
}

// shedLocked counts a call that is refused, lets go of the pool and returns why.
func (s *slot) shedLocked(n int, why error) error {
	defer s.pool.mu.Unlock()
	if err := s.possibleLocked(n); err != nil {
		return err
	}
	s.countShedLocked()
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
