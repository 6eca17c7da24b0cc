package meter

import (
	"sync/atomic"
	"time"
)

// Line is the queue of the calls that wait for one key's budget, first come, first served. Nothing is booked for them. The first
// turn is served at the first instant at which its cost fits, as if it were a decision of that instant; then the next one is the first. So
// whatever changes the key's state or limit, and whoever leaves, all who wait follow, and only the first one has to
// compute its instant anew.
//
// [Meter.Advance] serves the turns that are due, each at its own instant, in order with the bookings that become due. So no call
// overtakes the line. A question is answered as of the end of the line: see tail.
//
// Bookings keep their instants. A turn is not served before a booking that came before it.
//
// The lock that guards the key's state guards its line.
type Line struct {
	first, last *Turn
	n           int
	cost        int64 // of all turns
	most        int64 // no turn costs more
	uneven      int   // how many turns have another cost than the one before
	now         int64 // no turn was due by then

	end end // of the line

	At    int64        // an instant
	Due   time.Time    // the same instant in real time
	Owner atomic.Value // the caller's
}

// end is the state of a key once all of its line is served, if nothing changes.
type end struct {
	known  bool
	late   bool // turns have left since
	left   int  // the cost of an exact end that has been put off: see Line.shorter
	state  State
	detail detail
	ledger ledger // it begins with a booking of no cost: later costs queue behind it, before or behind all that follow
	room   [1]booking
}

// Turn is a place in a line. The caller sets the first fields.
type Turn struct {
	Cost   int64
	Open   bool          // see Spending
	Wake   chan struct{} // has room for one element
	Number uint64        // of its arrival, or 0: it comes now
	Tries  bool          // when it is due it is woken, and tries to spend its cost here and elsewhere; until then it stays the first

	Over    bool     // it has left the line
	Refused bool     // its cost is above the capacity
	Free    bool     // it was let through without a charge
	Spent   Spending // once it was served; no cost if it was free
	Line    *Line

	prev, next *Turn
	behind     int64 // the instant of the last booking that came before it
}

var arrivals atomic.Uint64

// Arrival returns the number of a call that comes now.
func Arrival() uint64 { return arrivals.Add(1) }

// Rouse wakes the call.
func (t *Turn) Rouse() {
	select {
	case t.Wake <- struct{}{}:
	default: // it is awake, or will be
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

// Line returns the line of a state, nil if it has none.
func (s *State) Line() *Line {
	if s.detail == nil || s.ledger == nil {
		return nil
	}
	return s.ledger.line
}

// attach gives the line to a state.
func (s *State) attach(l *Line) {
	if s.detail == nil {
		s.detail = new(detail)
	}
	if s.ledger == nil {
		s.ledger = new(ledger)
	}
	s.ledger.line = l
}

// Attach gives the line to a state that it did not belong to: of another limit, or of a new key. If that has a line, its turns
// come behind. Turns that cost more than the capacity are refused.
func (m *Meter) Attach(s *State, now int64, l *Line) {
	if other := s.Line(); other != nil && other != l {
		for t := other.first; t != nil; {
			next := t.next
			other.unlink(t)
			l.insert(t)
			t = next
		}
	}
	s.attach(l)
	l.now, l.end.known = now, false
	for t := l.first; t != nil; t = t.next {
		if t.Cost > m.capacity() {
			t.Refused = true
			l.over(t)
		}
	}
	*s = m.moved(*s)
}

// Join puts a turn for which an offer was made at the end of the line.
func (m *Meter) Join(s *State, now int64, t *Turn, o Offer) {
	l := m.lineOf(s, now)
	t.Number = Arrival()
	t.behind = m.newest(*s, l.now)
	if l.insert(t); l.end.known {
		l.end.spend(m, o.At, t.Cost)
	}
}

// Insert puts a turn into the line whose booking, at an instant, has been given back. Its place is by its number.
func (m *Meter) Insert(s *State, now int64, t *Turn, at int64) {
	l := m.lineOf(s, now)
	l.insert(t)
	if t.behind = min(at, m.newest(*s, l.now)); t.prev != nil {
		t.behind = max(t.behind, t.prev.behind)
	}
	if e := &l.end; e.known && t.next == nil {
		at, _ := m.place(e.state, l.now, t.Cost)
		e.spend(m, at, t.Cost)
	} else {
		e.known = false
	}
	if l.first == t && t.next != nil {
		t.next.Rouse() // it is not the first any more
	}
}

func (m *Meter) lineOf(s *State, now int64) *Line {
	l := s.Line()
	if l == nil {
		l = &Line{now: now}
		s.attach(l)
	}
	return l
}

// newest returns the instant of the last booking after an instant, or one before all others.
func (m *Meter) newest(s State, now int64) int64 {
	if !m.log {
		return s.ledger.newest()
	}
	if at := s.log.newest(); at > now {
		return at
	}
	return -farAhead
}

// forget takes bookings after the newest one off the turns: they were cancelled.
func (l *Line) forget(newest int64) {
	for t := l.last; t != nil && t.behind > newest; t = t.prev {
		t.behind = newest
	}
}

// Leave takes a turn out of the line.
func (m *Meter) Leave(s *State, t *Turn) {
	l := t.Line
	first := t == l.first
	if l.over(t); l.first != nil && m.shorter(l) {
		if first {
			l.first.Rouse()
		}
		return
	}
	*s = m.moved(*s)
}

// shorter is called when a turn has left. It reports true if the end of the line is kept although it is too late now: to look at each
// turn of a long line for each one that leaves takes too long. An end that is so kept is late by less than a 64th of the line's turns.
func (m *Meter) shorter(l *Line) bool {
	const long, share = 1024, 64
	e := &l.end
	if !e.known || l.n < long || m.sums(l) {
		return false
	}
	e.late = true
	if e.left++; e.left > l.n/share {
		e.left = 0
		return false
	}
	return true
}

// sums reports whether the end of a long line is computed without a look at each turn: see skip.
func (m *Meter) sums(l *Line) bool {
	if t := m.bucket(); t != nil {
		return m.leaky != nil || l.uneven == 0 || t.one.frac == 0 || t.minus(t.full, t.price(l.most)).ticks > 0
	}
	return l.uneven == 0 && !m.log
}

// exact forgets the end of the line if turns have left since it was computed.
func (l *Line) exact() {
	if l.end.late {
		l.end.known = false
	}
}

// Drop is Leave for the line of a key that was dropped.
func (l *Line) Drop(t *Turn) {
	l.over(t)
	l.Rouse()
}

// Release ends all turns without a charge.
func (m *Meter) Release(s *State, refused bool) {
	l := s.Line()
	l.ReleaseAll(refused)
	*s = m.moved(*s)
}

// ReleaseAll is Release for the line of a key that was dropped.
func (l *Line) ReleaseAll(refused bool) {
	for l.first != nil {
		l.first.Refused, l.first.Free = refused, !refused
		l.over(l.first)
	}
}

// HasBooking reports whether anything is booked for an instant.
func (m *Meter) HasBooking(s *State, at int64) bool {
	*s = m.closeGaps(*s)
	switch {
	case s.detail == nil:
		return false
	case m.log:
		i := s.log.search(at)
		return i < s.log.len() && s.log.mark(i).at == at
	case s.ledger == nil:
		return false
	}
	i := s.ledger.search(at)
	return i < len(s.ledger.list) && s.ledger.list[i].at == at
}

// moved is called after a change of the state, or of the line: the first turn's instant may be another.
func (m *Meter) moved(s State) State {
	l := s.Line()
	switch {
	case l == nil:
	case l.first == nil:
		s.ledger.line = nil
		return m.trimmed(s)
	default:
		l.end.known = false
		l.first.Rouse()
	}
	return s
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

// Due returns when the first turn is served if nothing changes. There is one.
func (m *Meter) Due(s *State) int64 {
	*s = m.closeGaps(*s)
	at, _, _ := m.due(*s, s.Line())
	return at
}

// due returns where the cost of the first turn is spent, and the instant of the last booking before it.
func (m *Meter) due(s State, l *Line) (at, part, after int64) { return m.dueAs(s, l, l.first) }

// dueAs is due for a turn that would be the first.
func (m *Meter) dueAs(s State, l *Line, t *Turn) (at, part, after int64) {
	if m.bookings(s) == nil && (!m.log || s.log.newest() <= l.now) {
		at, part = m.place(s, l.now, t.Cost)
		return at, part, l.now
	}
	r := m.replayed(s, l.now)
	at, part = r.place(t)
	return at, part, r.now
}

// OfferFirst is Offer for the cost of the first turn.
func (m *Meter) OfferFirst(s State, mo Moment) Offer { return m.offerAs(s, mo, s.Line().first) }

// OfferBefore is Offer for a cost that comes before the whole line. If it is accepted, the caller calls Passed.
func (m *Meter) OfferBefore(s State, mo Moment, cost int64) Offer {
	return m.offerAs(s, mo, &Turn{Cost: cost, behind: m.newest(s, s.Line().now)})
}

// Passed is called after a cost has been spent before a line.
func (m *Meter) Passed(s *State) { *s = m.moved(*s) }

func (m *Meter) offerAs(s State, mo Moment, t *Turn) Offer {
	at, part, _ := m.dueAs(s, s.Line(), t)
	o := Offer{At: max(at, mo.Now), Part: part, Retry: mo.Reading}
	if o.At > mo.Now {
		o.Retry = o.At
	}
	return o
}

// serve serves all turns that are due by now.
func (m *Meter) serve(s State, now int64) State {
	l := s.ledger.line
	s = m.closeGaps(s)
	served := false
	for l.first != nil {
		at, part, after := m.due(s, l)
		if at > now {
			break
		}
		if l.first.Tries {
			l.first.Rouse()
			break
		}
		s = m.spendTurn(m.popDue(s, after), l.first, at, part)
		l.now, served = at, true
		l.over(l.first)
	}
	if l.now = max(l.now, now); l.first == nil {
		s.ledger.line = nil
		return m.trimmed(s)
	}
	if served {
		l.first.Rouse() // to set its timer
	}
	return s
}

// ServeAhead serves the first turn at an instant that the clock has not reached, as a booking, or reports false if there is a later one.
// It is for a clock that does not follow real time, in which calls wait.
func (m *Meter) ServeAhead(s *State) bool {
	l := s.Line()
	t := l.first
	at, part, _ := m.due(*s, l)
	if m.newest(*s, l.now) > at {
		return false
	}
	t.Spent = Spending{At: at, Part: part, Cost: t.Cost, Open: t.Open}
	if m.log {
		*s = m.forget(*s, l.now)
	}
	*s = m.book(*s, t.Spent)
	l.now = at
	if l.over(t); l.first != nil {
		l.first.Rouse()
	} else {
		s.ledger.line = nil
	}
	return true
}

// spendTurn spends the cost of the first turn before all bookings that are left.
func (m *Meter) spendTurn(s State, t *Turn, at, part int64) State {
	l, keep := s.ledger, Final
	if t.Open {
		keep = Open
	}
	if m.token != nil {
		part = l.part(at)
	}
	switch {
	case m.log && s.detail.log.newest() > at:
		s.log.insert(at, t.Cost)
		s.N += t.Cost
	case m.bookings(s) != nil:
		s = m.spendBefore(s, at, t.Cost, t.Open)
	case m.token != nil:
		s = m.spendNow(s, at, t.Cost, keep)
	default:
		s = m.spend(s, at, t.Cost)
	}
	m.passed(s, at, t.Cost, keep)
	t.Spent = Spending{At: at, Part: part, Cost: t.Cost, Open: t.Open}
	return s
}

// view returns the state that a question is about: the end of the line if there is one. The state is up to date.
func (m *Meter) view(s State) State {
	l := s.Line()
	if l == nil {
		return s
	}
	e := &l.end
	if e.known {
		return e.state
	}
	r := m.replayed(s, l.now)
	r.end(l, e)
	e.known, e.late, e.left = true, false, 0
	return e.state
}

// MigrateView returns a view of a state of another meter under this one, with the line that it would have. It leaves the given state
// as it is. The state is up to date.
func (to *Meter) MigrateView(from *Meter, s State, now int64) State {
	l := s.Line()
	if l == nil {
		return to.Migrate(from, s, now)
	}
	aside, f := s.ledger.rest, s.ledger.formers.cloned()
	// Turns that are due are served under the limit that they leave.
	r, t := from.replayed(s, l.now), l.first
	rest := Line{last: l.last, now: now, n: l.n, cost: l.cost, most: l.most, uneven: l.uneven}
	for ; t != nil; t = t.next {
		booked := r.booked
		at, _ := r.place(t)
		for _, b := range booked[:len(booked)-len(r.booked)] {
			f.passed(from, r.s, b.at, b.cost, Final)
		}
		if at > now {
			break
		}
		r.spendTurn(t.Cost, at)
		f.passed(from, r.s, at, t.Cost, Final)
		rest.n, rest.cost = rest.n-1, rest.cost-t.Cost
	}
	if s = r.whole().setAside(aside); f != nil {
		s = s.withFormers(*f)
	}
	s = to.Migrate(from, s, now)
	if rest.first = t; t == nil {
		return s
	}
	r = to.replayed(s, now)
	e := new(end)
	r.end(&rest, e)
	return e.state
}
