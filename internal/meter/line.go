package meter

import (
	"sync/atomic"
	"time"
)

// Line is the queue of calls for one key's budget, first come, first served. Waiting calls book
// nothing. The first turn is served at the first instant when its cost fits, as if it were a decision
// at that instant. Then the next one is the first. So all waiters follow each change of the key's
// state or limit and each leaving waiter, and only the first one has to compute its instant again.
//
// [Meter.Advance] serves the due turns, each at its own instant, in order with due bookings. So no call
// overtakes the line. A read of the state has the same result as for a call at the line's end: see Meter.view.
//
// Bookings keep their instants. A turn is not served before an earlier booking.
//
// The state's lock guards its line.
type Line struct {
	first, last *Turn
	n           int
	cost        int64 // all turns' cost
	most        int64 // a turn's maximum cost
	uneven      int   // turns with another cost than the turn before
	now         int64 // an instant when no turn was due

	end end // the line's end

	At    int64        // an instant
	Due   time.Time    // the same instant in real time
	Owner atomic.Value // used by the caller
}

// end is a key's state after all turns of its line are served, if nothing changes.
type end struct {
	known  bool
	late   bool // turns have left since it was computed
	left   int  // how many turns have left since the end was exact: see Meter.shorter
	state  State
	detail detail
	ledger ledger // begins with a booking of cost 0. Later costs queue behind it, before or behind the bookings after it
	room   [1]booking
}

// Turn is a place in a line. The caller sets the first fields.
type Turn struct {
	Cost   int64
	Open   bool          // see Spending
	Wake   chan struct{} // has a buffer of one
	Number uint64        // the number of its arrival; 0 if it comes now
	// the caller is woken when the turn is due, and then tries to spend
	// its cost here and elsewhere; meanwhile the turn stays the first
	Tries bool
	Again bool // the caller tries as soon as the turn is the first, even if it is not due: see [Line.Urge]

	Over    bool     // it has left the line
	Refused bool     // its cost exceeds the capacity
	Free    bool     // it passed without a charge
	Spent   Spending // the spending once it was served; its cost is 0 if Free
	Line    *Line

	prev, next *Turn
	behind     int64 // the instant of the last booking made before it
}

var arrivals atomic.Uint64

// Arrival returns the number of a call arriving now.
func Arrival() uint64 { return arrivals.Add(1) }

// Rouse wakes the call.
func (t *Turn) Rouse() {
	select {
	case t.Wake <- struct{}{}:
	default: // the call is awake, or will be
	}
}

// First returns the first turn, nil if the line is empty.
func (l *Line) First() *Turn { return l.first }

// Rouse wakes the first call.
func (l *Line) Rouse() {
	if l.first != nil {
		l.first.Rouse()
	}
}

// Urge makes the second call of the line try as soon as it is the first.
func (l *Line) Urge() {
	if l.first != nil && l.first.next != nil {
		l.first.next.Again = true
	}
}

// forget makes turns follow no booking after newest, because the later ones were cancelled.
func (l *Line) forget(newest int64) {
	for t := l.last; t != nil && t.behind > newest; t = t.prev {
		t.behind = newest
	}
}

// exact forgets the line's end if turns have left since it was computed.
func (l *Line) exact() {
	if l.end.late {
		l.end.known = false
	}
}

// Drop is Leave for the line of a dropped key.
func (l *Line) Drop(t *Turn) {
	l.over(t)
	l.Rouse()
}

// ReleaseAll is Release for the line of a dropped key.
func (l *Line) ReleaseAll(refused bool) {
	for l.first != nil {
		l.first.Refused, l.first.Free = refused, !refused
		l.over(l.first)
	}
}

// insert puts a turn at its place.
func (l *Line) insert(t *Turn) {
	p := l.last
	for p != nil && p.Number > t.Number {
		p = p.prev
	}
	t.Line, t.prev = l, p
	if p == nil {
		t.next, l.first = l.first, t
	} else {
		t.next, p.next = p.next, t
	}
	if t.next == nil {
		l.last = t
	} else {
		t.next.prev = t
	}
	l.n++
	l.cost += t.Cost
	l.most = max(l.most, t.Cost)
	l.uneven += differ(p, t) + differ(t, t.next) - differ(p, t.next)
}

// differ returns 1 if two neighbours in a line have different costs.
func differ(a, b *Turn) int {
	if a == nil || b == nil || a.Cost == b.Cost {
		return 0
	}
	return 1
}

func (l *Line) unlink(t *Turn) {
	l.uneven += differ(t.prev, t.next) - differ(t.prev, t) - differ(t, t.next)
	if t.prev == nil {
		l.first = t.next
	} else {
		t.prev.next = t.next
	}
	if t.next == nil {
		l.last = t.prev
	} else {
		t.next.prev = t.prev
	}
	l.n--
	l.cost -= t.Cost
}

func (l *Line) over(t *Turn) {
	l.unlink(t)
	t.Over = true
	t.Rouse()
}
