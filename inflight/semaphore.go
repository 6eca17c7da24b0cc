package inflight

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/wait"
)

// semaphore counts one key's units. Its lock guards all fields except common: common never changes.
//
// A decision under a fixed limit without Total touches only the first 64 bytes: one
// line of the CPU's cache. With many keys or cores, such lines take most of the time.
type semaphore struct {
	common   *common
	limit    int     // the maximum units in flight now: bound, or the learnt limit
	inFlight int     // the units in flight
	first    *waiter // the queue's first waiter; nil if it is empty
	dead     bool    // whether the table has forgotten it; then look the key up again
	parked   bool    // whether unpark must put the key back among the forgettable ones, once it is idle
	losing   bool    // whether a waiter has left unserved since the queue was last empty
	mu       sync.Mutex
	timedAt  uint32 // with a fixed limit, the place of the timed work
	works    works  // begins with the place of the first permit, enough for most keys

	last   *waiter
	queued int  // waiters
	own    pool // the semaphore's own pool, if there is no Total

	bound   int      // the maximum number of units in flight; 0 if the key is blocked
	learner *learner // nil if the limit is fixed; with Options.Shared, one learner for all keys
	idleAt  uint64   // the value of common.idled when it became idle: nothing in flight, no waiter
	unpark  func()

	share
	priority   int
	at         int32  // its index in its level's heap, or -1
	busyAt     int32  // its index in learner.busy, or -1
	number     uint64 // the number of the call for bound, weight and priority
	configured int    // LimitFor's result: 0 means the limiter's own limit; if negative, the key is blocked
	shed       uint64
	wait       time.Duration // the mean of the recent waits of calls served from the queue
	waited     time.Duration // when the last waiter was served or gave up
	hold       time.Duration // the mean time of about the last 16 successes
	timedFrom  time.Duration // with a fixed limit, the time when the timed work began
	timedWork  uint64        // the timed work's serial; a key takes six cache lines, and begins on one
}

// common is a limiter's state for all its keys.
type common struct {
	clock      ratelimit.Clock
	maxQueue   int
	maxWaiting int
	adaptive   func() Algorithm
	pool       *pool // the pool for all keys; nil if each has its own
	timed      bool  // whether the clock is read for each permit
	shadow     bool

	// inOrder is true if keys get a number when they become idle. They get none
	// while the table is far from full, because all cores would share the counter.
	inOrder atomic.Bool

	_     [64]byte      // separates changing fields from constant ones, on different cache lines
	mu    sync.Mutex    // the lock for all keys, if they share a pool
	last  time.Duration // the latest reading used under mu
	idled atomic.Uint64 // the number of the latest instant when a key became idle
	shed  atomic.Uint64
	waits [len(wait.Buckets) + 1]atomic.Uint64
}

// mutex returns the semaphore's lock and its pool.
func (s *semaphore) mutex() *sync.Mutex {
	if s.common.pool != nil {
		return &s.common.mu
	}
	return &s.mu
}

// pool returns the semaphore's pool.
func (s *semaphore) pool() *pool {
	if p := s.common.pool; p != nil {
		return p
	}
	return &s.own
}

// init prepares an unconfigured semaphore. It calls Options.Adaptive.
func (s *semaphore) init(c *common, report func(old, new int)) {
	s.common, s.at, s.busyAt = c, -1, -1
	s.weight, s.until = 1, -maxReading // the configuration replaces these values
	s.own.total = noTotal
	s.own.bound.Store(noTotal)
	switch {
	case s.pool().learner != nil:
		s.learner = s.pool().learner
	case c.adaptive != nil:
		s.learner = newLearner(c.adaptive())
		s.learner.report = report
		s.learner.each = s.works.each
		_, s.learner.system = c.clock.(systemClock)
	}
}

// reading returns a reading of the clock if timed is set, and otherwise 0. The caller holds no lock.
func (c *common) reading(timed bool) time.Duration {
	if !timed {
		return 0
	}
	return min(max(c.clock.Now(), -maxReading), maxReading)
}

const maxReading = math.MaxInt64 / 4 // a bound without overflow of differences

// atLocked returns the instant of a clock reading. Callers read the clock before they
// lock, so readings may come out of order. The returned instants never decrease.
func (s *semaphore) atLocked(reading time.Duration) time.Duration {
	if s.common.pool != nil {
		return s.common.atLocked(reading)
	}
	s.advance(s.inFlight, reading)
	return s.until
}

// atLocked is like semaphore.atLocked, for keys with a common pool.
func (c *common) atLocked(reading time.Duration) time.Duration {
	c.last = max(c.last, reading)
	return c.last
}

// most is the maximum number of units in flight over all keys.
func (c *common) most() int {
	if c.pool == nil || c.shadow {
		return noTotal
	}
	return int(c.pool.bound.Load())
}

// checkUnits returns an error if n is invalid for every key. The total may change at any time.
func checkUnits(n, total int) error {
	switch {
	case n < 0:
		return errNegative(n)
	case n > total:
		return errExceeds(n, total, "total")
	}
	return nil
}

// fitsLocked reports whether the key has room for n units. A request above an adaptive limit, but not above its bound,
// is admitted alone. Otherwise it could wait forever, because the limit does not grow while nothing is in flight.
func (s *semaphore) fitsLocked(n int) bool {
	return n <= s.limit-s.inFlight || s.inFlight == 0 && n <= s.bound || s.common.adaptive != nil && s.fitsBesideLocked(n)
}

// fitsBesideLocked is like fitsLocked, for a key with ignored work in flight. Ignored work counts only in the bound.
func (s *semaphore) fitsBesideLocked(n int) bool {
	if s.common.pool != nil { // the pool's learner ignores it
		return false
	}
	counts := s.inFlight - s.learner.ignored
	return n <= s.bound-s.inFlight && (counts == 0 || n <= s.limit-counts)
}

// possibleLocked returns an error if n units can never be in flight.
func (s *semaphore) possibleLocked(n int) error {
	if n > s.bound {
		return errExceeds(n, s.bound, "key's limit")
	}
	return checkUnits(n, s.common.most())
}

// freeLocked reports whether n units may be taken now: there is room, and no earlier waiter can use it.
func (s *semaphore) freeLocked(n int) bool {
	if s.first != nil || !s.fitsLocked(n) {
		return false
	}
	p := s.common.pool
	return p == nil || p.fitsLocked(n, s.priority) && !p.passedLocked(s.priority)
}

// takeLocked takes n free units.
func (s *semaphore) takeLocked(n int, now time.Duration) Permit {
	if s.common.timed {
		return s.takeTimedLocked(n, now)
	}
	s.inFlight += n
	place, serial := s.works.begin(n)
	return Permit{s, place, serial}
}

func (s *semaphore) takeTimedLocked(n int, now time.Duration) Permit {
	s.advance(s.inFlight, now)
	s.share.began(n)
	s.pool().sortLocked(s)
	s.inFlight += n
	p := s.common.pool
	if p != nil {
		p.inFlight += n
		if p.learner != nil {
			p.learner.levels.add(s.priority, n, now)
		}
	}
	place, serial := s.works.begin(n)
	permit := Permit{s, place, serial}
	switch l := s.learner; {
	case l == nil:
		s.works.note(place, now, 0)
		return permit
	case p == nil:
		s.works.note(place, now, l.began(now, s.inFlight-l.ignored, s.limit))
	default:
		if s.busyAt < 0 {
			s.busyAt = int32(len(l.busy))
			l.busy = append(l.busy, s)
		}
		s.works.note(place, now, l.began(now, p.inFlight-l.ignored, p.total))
	}
	s.works.link(place)
	return permit
}

// endLocked removes a permit's work and returns it.
func (s *semaphore) endLocked(p Permit) (w work) {
	if w.n = s.works.end(p.place, p.serial); w.n == 0 || !s.common.timed {
		if s.timedAt == p.place {
			s.timedAt = 0
		}
		return w
	}
	x := s.works.begunAt(p.place)
	w.start, w.seq = x.start, x.seq
	if s.learner != nil && x.seq != 0 {
		s.works.unlink(p.place)
	}
	return w
}

// chargeLocked charges the slot-time of ended work.
func (s *semaphore) chargeLocked(w *work, now time.Duration) {
	s.advance(s.inFlight, now)
	s.share.ended(w.n, now-w.start)
	if p := s.pool(); p.learner != nil && w.seq != 0 {
		p.learner.levels.add(s.priority, -w.n, now)
	}
	s.pool().sortLocked(s)
}

// releasedLocked gives units back, and admits the next waiters. The caller must call unlockVacated afterwards.
func (s *semaphore) releasedLocked(n int, now time.Duration) {
	s.inFlight -= n
	p := s.common.pool
	if p == nil {
		if s.first != nil {
			s.handOnLocked(now)
		}
		return
	}
	p.inFlight -= n
	if s.inFlight == 0 && s.busyAt >= 0 {
		s.learner.idleLocked(s)
	}
	if p.waiting > 0 {
		s.handOnLocked(now)
	}
}

// handOnLocked gives permits to fitting waiters after the semaphore has changed.
func (s *semaphore) handOnLocked(now time.Duration) {
	s.pool().placeLocked(s, now)
	s.pool().dispatchLocked(now)
}

// countShedLocked counts a refused call, for the key and over all keys.
func (s *semaphore) countShedLocked() {
	s.shed++
	s.common.shed.Add(1)
}

// waitedLocked records a wait in the mean of about the last eight.
func (s *semaphore) waitedLocked(d, now time.Duration) {
	i, _ := slices.BinarySearch(wait.Buckets[:], d.Seconds())
	s.common.waits[i].Add(1)
	if s.wait > 0 {
		d = s.wait + (d-s.wait)/8
	}
	s.wait, s.waited = d, now
}

// agedLocked returns the mean of recent waits. While no call waits, the mean
// halves after a time as long as itself, but at the earliest after a second.
func (s *semaphore) agedLocked(now time.Duration) time.Duration {
	if s.wait == 0 || s.first != nil || now <= s.waited {
		return s.wait
	}
	return time.Duration(float64(s.wait) * math.Exp2(-float64(now-s.waited)/float64(max(s.wait, time.Second))))
}

// delayedLocked records a late call for n units, unless only the key's own limit delays it.
func (s *semaphore) delayedLocked(n int) {
	if p := s.pool(); p.learner != nil && s.fitsLocked(n) {
		p.learner.levels.delayed(s.priority)
	}
}

// limitLocked sets the limit in force.
func (s *semaphore) limitLocked(limit int) { s.limit = min(max(limit, min(1, s.bound)), s.bound) }

// shedUnlock counts a refused call, unlocks and returns the error.
func (s *semaphore) shedUnlock(n int, why error) error {
	defer s.mutex().Unlock()
	if err := s.possibleLocked(n); err != nil {
		return err
	}
	s.countShedLocked()
	s.delayedLocked(n)
	return why
}

// unlockVacated unlocks after work or a waiter has left the semaphore. The semaphore becomes idle if nothing else is left.
func (s *semaphore) unlockVacated() {
	var unpark func()
	if s.idleLocked() {
		if s.common.inOrder.Load() {
			s.idleAt = s.common.idled.Add(1)
		}
		if s.parked {
			unpark, s.unpark, s.parked = s.unpark, nil, false
		}
	}
	s.mutex().Unlock()
	if unpark != nil {
		unpark()
	}
}

// unlockAfter unlocks. It calls unlockVacated if the semaphore was busy before.
func (s *semaphore) unlockAfter(busy bool) {
	if busy {
		s.unlockVacated()
		return
	}
	s.mutex().Unlock()
}

func (s *semaphore) idleLocked() bool { return s.inFlight == 0 && s.first == nil }
