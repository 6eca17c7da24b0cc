package inflight

import (
	"cmp"
	"container/heap"
	"slices"
	"sync/atomic"
	"time"
)

// pool is the source of a key's permits. With [Options.Total] all keys share one pool; otherwise
// each key has its own. The lock of its semaphores guards it. Keys with a common pool also share
// a lock. So a decision always takes one lock, and the locks of keys and of Total need no order.
type pool struct {
	total    int // the units that may be in flight now, or noTotal
	inFlight int
	bound    atomic.Int64 // upper bound of total; changed under the lock
	waiting  int          // waiting callers
	came     uint64       // callers that have ever waited
	turns    uint64
	learner  *learner // set with Options.Shared, else nil

	levels     []*tier    // priorities with waiters, the highest first
	collecting *semaphore // the semaphore whose first waiter keeps freed units until it fits, or nil
}

// tier holds one priority's waiters.
type tier struct {
	priority int
	byUse    useHeap  // semaphores waiting for Total, not for their own limit
	waiters  arrivals // the waiters of all its semaphores
	// the least use when a semaphore was last served, plus one unit; the minimum for
	// a returning key, because otherwise a stream of new keys would delay the others
	served float64
}

// levelLocked returns a priority's tier. It adds one if there is none.
func (p *pool) levelLocked(priority int) *tier {
	i, ok := slices.BinarySearchFunc(p.levels, priority, func(l *tier, priority int) int {
		switch {
		case l.priority > priority:
			return -1
		case l.priority < priority:
			return 1
		}
		return 0
	})
	if !ok {
		p.levels = slices.Insert(p.levels, i, &tier{priority: priority})
	}
	return p.levels[i]
}

// fitsLocked reports whether n units of a priority fit. A request above a shared limit, but not above its bound, is
// admitted alone.
func (p *pool) fitsLocked(n, priority int) bool {
	bound := int(p.bound.Load())
	switch l := p.learner; {
	case p.total == noTotal, p.inFlight == 0 && n <= bound:
		return true
	case l == nil:
		return n <= p.total-p.inFlight
	default: // ignored work counts only in the bound
		counts := p.inFlight - l.ignored
		return n <= bound-p.inFlight && !l.levels.reached(n, priority) && (counts == 0 || n <= p.total-counts-l.levels.leaves(priority, l.queue, p.total) || l.levels.exceeds(n, priority, p.total))
	}
}

// passedLocked reports whether a caller of a priority would overtake a waiter of this priority or a higher one.
func (p *pool) passedLocked(priority int) bool {
	for _, l := range p.levels {
		if l.priority < priority {
			return false
		}
		if len(l.byUse) > 0 {
			return true
		}
	}
	return false
}

// joinLocked adds a waiter to its semaphore's queue.
func (p *pool) joinLocked(s *semaphore, w *waiter) {
	s.wait = s.agedLocked(w.since) // the wait decays until now, because no call waited
	s.push(w)
	p.came++
	w.came = p.came
	p.levelLocked(s.priority).waiters.push(w)
	p.waiting++
}

// leaveLocked removes a waiter from its semaphore's queue. The caller must call handOnLocked afterwards.
func (p *pool) leaveLocked(s *semaphore, w *waiter) {
	if p.collecting == s && s.first == w {
		p.collecting = nil
	}
	s.remove(w)
	l := p.levelLocked(s.priority)
	l.waiters.remove(w)
	p.waiting--
	if s.first == nil {
		p.outLocked(s, l)
		s.waits = false
	}
	p.prunedLocked(l)
}

// prunedLocked forgets a tier without waiters.
func (p *pool) prunedLocked(l *tier) {
	if l.waiters.newest == nil {
		p.levels = slices.DeleteFunc(p.levels, func(x *tier) bool { return x == l })
	}
}

// moveLocked moves a semaphore and its waiters to another priority. The caller must call handOnLocked afterwards.
func (p *pool) moveLocked(s *semaphore, priority int) {
	if p.learner != nil {
		p.learner.levels.move(s.priority, priority, s.inFlight-s.works.ignored())
	}
	if s.first == nil {
		s.priority = priority
		return
	}
	from, to := p.levelLocked(s.priority), p.levelLocked(priority)
	p.outLocked(s, from)
	s.priority, s.waits = priority, false
	for w := s.first; w != nil; w = w.next {
		from.waiters.remove(w)
		to.waiters.push(w)
	}
	p.prunedLocked(from)
}

// changedLocked admits fitting waiters after limits have changed. Some keys may now begin to wait for
// Total. It places the key with the least use first. Then the others are raised to this use in any order.
func (p *pool) changedLocked(now time.Duration) {
	all := p.waitersLocked()
	for _, s := range all {
		s.advance(s.inFlight, now)
		p.sortLocked(s)
	}
	slices.SortFunc(all, func(a, b *semaphore) int {
		switch {
		case a.waits == b.waits:
			return cmp.Compare(a.used, b.used)
		case a.waits: // the semaphore keeps its use
			return -1
		}
		return 1
	})
	for _, s := range all {
		p.placeLocked(s, now)
	}
	p.dispatchLocked(now)
}

// waitersLocked returns the semaphores with waiters.
func (p *pool) waitersLocked() (all []*semaphore) {
	for _, l := range p.levels {
		for w := l.waiters.newest; w != nil; w = w.older {
			if w.semaphore.first == w {
				all = append(all, w.semaphore)
			}
		}
	}
	return all
}

// outLocked removes a semaphore from its tier's heap.
func (p *pool) outLocked(s *semaphore, l *tier) {
	if s.at >= 0 {
		heap.Remove(&l.byUse, int(s.at))
	}
	if p.collecting == s {
		p.collecting = nil
	}
}

// placeLocked adds a semaphore to the ones waiting for Total. It removes the semaphore if there is no Total
// or no waiter, or if the key is at its own limit. When a key begins to wait, it is raised to the least use
// of the waiting keys. A key at its own limit keeps its use, but gets no advantage over the others.
func (p *pool) placeLocked(s *semaphore, now time.Duration) {
	w := s.first
	if w == nil || !s.fitsLocked(w.n) && (p.total == noTotal || int64(s.limit) < p.bound.Load()) {
		if s.at >= 0 {
			p.outLocked(s, p.levelLocked(s.priority))
		}
		return
	}
	if s.at >= 0 {
		return
	}
	l := p.levelLocked(s.priority)
	s.advance(s.inFlight, now)
	least := l.served
	if len(l.byUse) > 0 {
		least = max(least, l.first(now).used)
	}
	if s.used < least || !s.waits && len(l.byUse) > 0 {
		s.used = least
	}
	s.waits = true
	p.turns++
	s.turn = p.turns
	heap.Push(&l.byUse, s)
}

// advanceLocked counts the semaphore's work in flight until now.
func (p *pool) advanceLocked(s *semaphore, now time.Duration) {
	s.advance(s.inFlight, now)
	p.sortLocked(s)
}

// sortLocked restores the heap's order after the semaphore has used more.
func (p *pool) sortLocked(s *semaphore) {
	if s.at >= 0 {
		heap.Fix(&p.levelLocked(s.priority).byUse, int(s.at))
	}
}

// first returns the semaphore with the least use. Uses grow while work is in flight, so the
// heap's are too low. first updates the heap's first semaphore until it stays the first.
func (l *tier) first(now time.Duration) *semaphore {
	for {
		s := l.byUse[0]
		before := s.used
		s.advance(s.inFlight, now)
		if s.used == before {
			return s
		}
		heap.Fix(&l.byUse, 0)
		if l.byUse[0] == s {
			return s
		}
	}
}

// dispatchLocked serves the waiters in turn, until one does not fit. This waiter's semaphore
// collects freed units until the waiter fits, or until a caller of a higher priority comes.
func (p *pool) dispatchLocked(now time.Duration) {
	for p.total == noTotal || p.inFlight < p.total || p.learner != nil {
		s := p.nextLocked(now)
		if s == nil {
			return
		}
		if n := s.nextLocked().n; !p.fitsLocked(n, s.priority) {
			if p.collecting = nil; n > 1 { // a single unit need not be collected, and a collecting key must serve its oldest waiter
				p.collecting = s
			}
			return
		}
		p.serveLocked(s, now)
	}
}

// nextLocked returns the semaphore whose turn has come, or nil.
func (p *pool) nextLocked(now time.Duration) *semaphore {
	for _, l := range p.levels {
		switch {
		case len(l.byUse) == 0:
		case p.collecting != nil && p.collecting.priority == l.priority:
			return p.collecting
		default:
			return l.first(now)
		}
	}
	return nil
}

// serveLocked gives the semaphore's first waiter its permit.
func (p *pool) serveLocked(s *semaphore, now time.Duration) {
	w := s.nextLocked()
	if s.tooLateLocked(w, now) {
		p.leaveLocked(s, w)
		s.losing = true
		s.countShedLocked()
		s.delayedLocked(w.n)
		w.end(errTooLate)
		p.placeLocked(s, now)
		return
	}
	if p.collecting == s {
		p.collecting = nil
	}
	l := p.levelLocked(s.priority)
	l.served = max(l.served, l.first(now).used+float64(leastHeld)/s.weight) // the use of s has grown if it has collected for long
	p.leaveLocked(s, w)
	w.permit = s.takeLocked(w.n, now)
	if waited := now - w.since; waited > min((w.ends-w.since)/4, max(time.Second, 4*s.hold)) {
		s.delayedLocked(1)
	}
	if !s.common.timed && s.timedAt == 0 { // only one permit at a time is timed while others wait; otherwise no clock is read
		s.timedAt, s.timedWork, s.timedFrom = w.permit.place, w.permit.serial, now
	}
	s.waitedLocked(max(0, now-w.since), now)
	w.end(nil)
	p.placeLocked(s, now)
}

// shedLocked removes the newest waiter of the lowest level if this level is below a priority. It reports whether it has.
func (p *pool) shedLocked(priority int) bool {
	if len(p.levels) == 0 {
		return false
	}
	l := p.levels[len(p.levels)-1]
	if l.priority >= priority {
		return false
	}
	w := l.waiters.newest
	s := w.semaphore
	p.leaveLocked(s, w)
	s.countShedLocked()
	w.end(errShed)
	p.placeLocked(s, s.until)
	return true
}

// setLocked changes the limit and its upper bound. The caller must call placeLocked for all semaphores afterwards, and
// then dispatchLocked.
func (p *pool) setLocked(total, bound int) {
	p.bound.Store(int64(bound))
	p.total = min(max(total, 1), bound)
}

// useHeap is a heap of semaphores. The first has the least use.
type useHeap []*semaphore

func (o useHeap) Len() int { return len(o) }

func (o useHeap) Less(i, j int) bool {
	a, b := o[i], o[j]
	if a.used != b.used {
		return a.used < b.used
	}
	return a.turn < b.turn
}

func (o useHeap) Swap(i, j int) {
	o[i], o[j] = o[j], o[i]
	o[i].at, o[j].at = int32(i), int32(j)
}

func (o *useHeap) Push(x any) {
	s := x.(*semaphore)
	s.at = int32(len(*o))
	*o = append(*o, s)
}

func (o *useHeap) Pop() any {
	last := len(*o) - 1
	s := (*o)[last]
	s.at = -1
	(*o)[last] = nil
	*o = (*o)[:last]
	return s
}
