package inflight

import (
	"container/heap"
	"sync"
	"time"

	"github.com/weir-go/ratelimit"
)

// pool is what keys draw permits from: with [Options.Total] one for all keys, else one
// for each. Its lock guards it and everything of its slots, so that a decision takes
// one lock in either case, and keys and Total have no lock order between them.
type pool struct {
	mu       sync.Mutex
	total    int // units, or noTotal
	inFlight int

	// order holds slots that somebody waits for. Between two calls it is empty, or there
	// is nothing left of Total, or its first slot waits for more than that: nobody
	// passes it.
	order   order
	virtual uint64 // virtual time: the latest finish that was served
	turns   uint64
}

// placeLocked puts a slot where it belongs after its first waiter or its weight has
// changed, or its room, if it had left for lack of that. Nobody passes the first one, which
// may be collecting what becomes free. The caller then calls dispatchLocked.
func (p *pool) placeLocked(s *slot) {
	w := s.queue.first
	switch {
	case w == nil:
		p.leaveLocked(s)
		return
	case s.placed == w:
		return
	}
	s.placed = w
	p.scheduleLocked(s, w.n)
	if len(p.order) > 0 && p.order[0] != s {
		s.delayTo(p.order[0].finish)
	}
	if s.at < 0 {
		heap.Push(&p.order, s)
	} else {
		heap.Fix(&p.order, s.at)
	}
}

// scheduleLocked sets the tags for the slot's first request. A slot that begins to wait
// starts at the present virtual time. One that was at its own limit for a while starts
// where it had got to, as if it had waited in order, but has saved up one request at most.
func (p *pool) scheduleLocked(s *slot, n int) {
	if !s.began {
		s.began = true
		s.startAt(p.virtual)
	}
	s.plan(n)
	s.delayTo(p.virtual)
	p.turns++
	s.turn = p.turns
}

// leaveLocked takes a slot out that nobody waits for, or that is at its own limit.
func (p *pool) leaveLocked(s *slot) {
	s.placed = nil
	s.began = s.began && s.queue.first != nil
	if s.at >= 0 {
		heap.Remove(&p.order, s.at)
	}
}

// dispatchLocked gives permits to those whose turn it is, until the next one does not fit
// into Total. A slot at its own limit leaves when its turn comes and there is something
// to pass on, unless its limit is not below Total: then Total is what it waits for.
// While there is nothing to pass on it keeps its place, and so loses no turn.
func (p *pool) dispatchLocked(clock ratelimit.Clock) {
	for len(p.order) > 0 && p.inFlight < p.total {
		s := p.order[0]
		switch w := s.queue.first; {
		case !s.fitsLocked(w.n) && s.limit < p.total:
			p.leaveLocked(s)
		case w.n > p.total-p.inFlight:
			return
		default:
			p.serveLocked(s, clock.Now())
		}
	}
}

// serveLocked gives the slot's first waiter what it waits for.
func (p *pool) serveLocked(s *slot, now time.Duration) {
	w := s.queue.first
	s.queue.remove(w)
	w.permit = s.takeLocked(w.n, now)
	s.waitedLocked(max(0, now-w.since))
	w.end(nil)
	if before(p.virtual, s.finish) {
		p.virtual = s.finish
	}
	s.spend(w.n)
	p.placeLocked(s)
}

// order is a heap of slots, the next one first.
type order []*slot

func (o order) Len() int { return len(o) }

func (o order) Less(i, j int) bool {
	a, b := o[i], o[j]
	if a.finish != b.finish {
		return before(a.finish, b.finish)
	}
	return a.turn < b.turn
}

func (o order) Swap(i, j int) {
	o[i], o[j] = o[j], o[i]
	o[i].at, o[j].at = i, j
}

func (o *order) Push(x any) {
	s := x.(*slot)
	s.at = len(*o)
	*o = append(*o, s)
}

func (o *order) Pop() any {
	last := len(*o) - 1
	s := (*o)[last]
	s.at = -1
	(*o)[last] = nil
	*o = (*o)[:last]
	return s
}
