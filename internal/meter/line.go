package meter

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Line is the queue of the calls that wait for one key's budget, first come, first served. The k-th turn is served at the instant
// of the k-th booking in the key's state. When a turn leaves, all turns behind it move up.
//
// If all turns are alike, any booking serves any turn: the last one is given back, in constant time. Otherwise the bookings from the
// vacant one on are given back, and at once only the first turn is booked again. The others are booked in order by the next
// call that depends on them: a decision on the key, or a question about it. Many turns that leave in a row therefore cost no
// more than a single turn that leaves, and one question.
//
// The first turn is always booked. So a new call queues behind the line, whether the others are booked or not.
//
// The lock that guards the key's state guards its line. The caller sleeps in real time, and keeps the correspondence of the two
// clocks in At and Due.
type Line struct {
	turns    []*Turn    // in order
	bookings []Spending // of the first turns, in order
	next     uint64     // the number of the next turn
	cost     int64      // of most turns, if most are alike
	open     bool       // the same
	unlike   int        // the number of turns that differ from it

	At  int64     // an instant
	Due time.Time // the same instant in real time
}

// Turn is a place in a line. The caller sets the first fields.
type Turn struct {
	Cost   int64
	Open   bool          // see Spending
	Latest time.Time     // the real time at which it is served at the latest
	Wake   chan struct{} // has room for one element
	Over   bool          // it has left the line: it was served, or its cost was settled
	Spent  Spending      // once it was served: its booking

	Line   *Line
	number uint64 // increases along the line
	at     int64  // if it has no booking: the instant of its former booking; the next booking is not later
}

// Len returns the number of turns.
func (l *Line) Len() int { return len(l.turns) }

// First returns the first turn, nil if the line is empty, and the instant of its booking. In the line of a dropped key
// it may have none.
func (l *Line) First() (t *Turn, at int64, booked bool) {
	switch {
	case len(l.turns) == 0:
		return nil, 0, false
	case len(l.bookings) == 0:
		return l.turns[0], 0, false
	}
	return l.turns[0], l.bookings[0].At, true
}

// Line returns the line of a state, nil if it has none.
func (s *State) Line() *Line {
	if s.detail == nil || s.ledger == nil {
		return nil
	}
	return s.ledger.line
}

// attach gives the line to a state with bookings.
func (s *State) attach(l *Line) {
	if s.ledger == nil { // of a log, which has no other use for one
		s.ledger = new(ledger)
	}
	s.ledger.line = l
}

// Attach gives the line to a state that has been migrated to this meter.
func (m *Meter) Attach(s *State, l *Line) {
	for i := range l.bookings {
		l.bookings[i].Part = 0 // as in split
	}
	if s.detail != nil && l.Len() > 0 {
		s.attach(l)
	}
}

// Join puts a turn into the state's line, at the place that the instant of its booking determines. It reports false if
// nothing is booked for that instant: a grant may have given it back.
func (m *Meter) Join(s *State, t *Turn, sp Spending) bool {
	if s.detail == nil {
		return false
	}
	if *s = m.refold(*s); !m.hasBooking(*s, sp.At) {
		return false
	}
	l := s.Line()
	if l == nil {
		l = new(Line)
		s.attach(l)
	}
	l.add(t, sp)
	return true
}

// likes reports whether a turn is like most.
func (l *Line) likes(t *Turn) bool { return t.Cost == l.cost && t.Open == l.open }

// hasBooking reports whether anything is booked for an instant. The state is up to date.
func (m *Meter) hasBooking(s State, at int64) bool {
	switch {
	case s.detail == nil:
		return false
	case m.log:
		i := s.log.search(at)
		return i < s.log.len() && s.log.mark(i).at == at
	}
	i := s.ledger.search(at)
	return i < len(s.ledger.list) && s.ledger.list[i].at == at
}

// add inserts a turn and its booking behind all that are not later.
func (l *Line) add(t *Turn, sp Spending) {
	if len(l.turns) == 0 {
		l.cost, l.open, l.unlike = t.Cost, t.Open, 0
	}
	if !l.likes(t) {
		l.unlike++
	}
	i := len(l.bookings)
	for i > 0 && l.bookings[i-1].At > sp.At {
		i--
	}
	t.Line, t.number = l, l.next
	l.next++
	l.turns, l.bookings = slices.Insert(l.turns, i, t), slices.Insert(l.bookings, i, sp)
	for j := i + 1; j < len(l.turns); j++ {
		t.number, l.turns[j].number = l.turns[j].number, t.number
		t = l.turns[j]
	}
}

// Serve takes the first turn out of the line. Its booking stays spent.
func (m *Meter) Serve(s *State, now int64, l *Line) {
	if s.Line() == l && len(l.bookings) == 1 && len(l.turns) > 1 {
		*s = m.bookTurns(m.closeGaps(*s), l, now, 2)
	}
	l.Pop()
	l.close(m, s)
}

// Pop is Serve for the line of a key that was dropped.
func (l *Line) Pop() {
	t := l.turns[0]
	l.remove(0)
	if len(l.bookings) > 0 {
		t.Spent, l.bookings = l.bookings[0], l.bookings[1:]
	}
}

// Leave takes a turn out of the line and gives its cost back. It reports whether the turn was the first one.
func (m *Meter) Leave(s *State, now int64, t *Turn) (first bool) {
	*s = m.popDue(*s, now)
	l := t.Line
	i, equal := l.index(t), l.unlike == 0
	switch n := len(l.bookings); {
	case i >= n: // nothing is booked for it
	case equal && n < len(l.turns): // the first turn without a booking gets the last one
	case equal:
		*s = m.settle(*s, now, l.bookings[n-1], 0)
		l.bookings = l.bookings[:n-1]
	case s.Line() != l: // nothing of the line is booked any more
		*s = m.settle(*s, now, l.bookings[i], 0)
		l.bookings = slices.Delete(l.bookings, i, i+1)
	default:
		*s = m.vacate(*s, now, l, i)
	}
	l.remove(i)
	if n := len(l.bookings); n < len(l.turns) && s.Line() == l && (n == 0 || l.bookings[n-1].At <= now) {
		*s = m.bookTurns(m.closeGaps(*s), l, now, n+1)
	}
	l.close(m, s)
	return i == 0
}

// vacate gives the bookings from the i-th on back, the last one first.
func (m *Meter) vacate(s State, now int64, l *Line, i int) State {
	for j := len(l.bookings) - 1; j >= i; j-- {
		l.turns[j].at = l.bookings[j].At
		s = m.settle(s, now, l.bookings[j], 0)
	}
	l.bookings = l.bookings[:i]
	return s
}

// Part takes a turn out of the line while its booking stays spent, and returns the booking. It reports whether the turn
// was the first one.
func (m *Meter) Part(s *State, t *Turn) (sp Spending, first bool) {
	if s.detail != nil {
		*s = m.refold(*s)
	}
	l := t.Line
	i := l.index(t)
	l.remove(i)
	if sp = (Spending{At: t.at, Cost: t.Cost, Open: t.Open}); i < len(l.bookings) {
		sp = l.bookings[i]
		l.bookings = slices.Delete(l.bookings, i, i+1)
	}
	l.close(m, s)
	return sp, i == 0
}

// Drop is Leave for the line of a key that was dropped: nothing is booked any more.
func (l *Line) Drop(t *Turn) (first bool) {
	i := l.index(t)
	equal := l.unlike == 0
	l.remove(i)
	if n := len(l.bookings); n > len(l.turns) { // which has one for each turn then
		j := i
		if equal {
			j = n - 1
		}
		l.bookings = slices.Delete(l.bookings, j, j+1)
	}
	return i == 0
}

// close removes the line from the state if it is empty.
func (l *Line) close(m *Meter, s *State) {
	if len(l.turns) > 0 || s.Line() != l {
		return
	}
	if s.ledger.line = nil; m.log {
		*s = m.trimmed(*s)
	}
}

// lineUp books all turns that have no booking.
func (m *Meter) lineUp(s State) State {
	if l := s.Line(); l != nil && 0 < len(l.bookings) && len(l.bookings) < len(l.turns) {
		return m.bookTurns(s, l, 0, len(l.turns))
	}
	return s
}

// bookTurns books turns until n of them have bookings. The state is up to date. The first booking of all is not before now.
//
// Bookings that are not of the line keep their instants, and their places between the turns. A turn is not
// booked behind its last booking: that would happen if the limit has become slower since.
func (m *Meter) bookTurns(s State, l *Line, now int64, n int) State {
	if k := len(l.bookings); k > 0 {
		now = l.bookings[k-1].At
	}
	s, others := m.cut(s, now)
	for len(l.bookings) < n {
		t := l.turns[len(l.bookings)]
		for ; len(others) > 0 && others[0].at < t.at; others = others[1:] {
			s = m.paste(s, &others[0])
		}
		sp := Spending{At: t.at, Cost: t.Cost, Open: t.Open}
		if at, part := m.place(s, now, t.Cost); at <= t.at {
			sp.At, sp.Part = at, part
		}
		s = m.book(s, sp)
		l.bookings, now = append(l.bookings, sp), sp.At
	}
	for i := range others {
		s = m.paste(s, &others[i])
	}
	if s.Line() != l {
		s.attach(l)
	}
	return s
}

// place returns where a cost is booked behind all that is booked.
func (m *Meter) place(s State, now, cost int64) (at, part int64) {
	switch {
	case cost > m.capacity(): // the limit has become lower since
		return math.MaxInt64, 0
	case m.leaky != nil:
		return m.leaky.leaves(s, now)
	}
	return m.earliest(s, now, cost), 0
}

// cut takes the bookings after an instant out of a state that is up to date, to be pasted. The debt of a log is one
// of them: nothing lies between its parts.
func (m *Meter) cut(s State, at int64) (_ State, others []booking) {
	if s.detail == nil {
		return s, nil
	}
	if !m.log {
		l := s.ledger
		k := l.search(at + 1)
		if k == len(l.list) {
			return s, nil
		}
		others = slices.Clone(l.list[k:])
		before := l.base
		if k > 0 {
			before = l.list[k-1].after
		}
		l.list, before.detail = l.list[:k], s.detail
		return before, others
	}
	sum := int64(0)
	for i := s.log.search(at + 1); i < s.log.len(); i++ {
		e := s.log.get(i)
		others, sum = append(others, booking{at: e.at, cost: e.cost}), sum+e.cost
	}
	if sum > 0 {
		s.N -= s.log.reduceNewest(sum)
	}
	if s.M > 0 && s.At > at {
		i := 0
		for i < len(others) && others[i].at < s.At {
			i++
		}
		others = slices.Insert(others, i, booking{at: s.At, part: s.M})
		s.M = 0
	}
	return s, others
}

// paste puts a booking back that was cut out, behind all others.
func (m *Meter) paste(s State, b *booking) State {
	switch {
	case !m.log:
		s = m.replay(s, b)
		s.ledger.add(Spending{At: b.at, Part: b.part, Cost: b.cost}, s)
		s.ledger.list[len(s.ledger.list)-1].open += b.open
	case b.part > 0: // a debt
		s.At, s.M = b.at, b.part
	default:
		s = m.spend(s, b.at, b.cost)
	}
	return s
}

// lastBooking returns the instant of the last booking, or one after all others if there is none.
func (l *Line) lastBooking() int64 {
	if len(l.bookings) == 0 {
		return math.MaxInt64
	}
	return l.bookings[len(l.bookings)-1].At
}

// index returns the index of a turn.
func (l *Line) index(t *Turn) int {
	i, _ := slices.BinarySearchFunc(l.turns, t.number, func(u *Turn, n uint64) int { return cmp.Compare(u.number, n) })
	return i
}

// remove takes out the i-th turn, from the end that is nearer.
func (l *Line) remove(i int) {
	t := l.turns[i]
	t.Over = true
	if !l.likes(t) {
		l.unlike--
	}
	if i > len(l.turns)/2 {
		l.turns = slices.Delete(l.turns, i, i+1)
	} else {
		copy(l.turns[1:i+1], l.turns[:i])
		l.turns[0] = nil
		l.turns = l.turns[1:]
	}
	if n := len(l.turns); n > 0 && l.unlike == n { // they are gone
		l.cost, l.open, l.unlike = l.turns[0].Cost, l.turns[0].Open, 0
		for _, t := range l.turns {
			if !l.likes(t) {
				l.unlike++
			}
		}
	}
}
