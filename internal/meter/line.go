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
	now         int64 // no turn was due by then

	end end // of the line

	At    int64        // an instant
	Due   time.Time    // the same instant in real time
	Owner atomic.Value // the caller's
}

// end is the state of a key once all of its line is served, if nothing changes.
type end struct {
	known  bool
	state  State
	detail detail
	ledger ledger
	last   [1]booking // only its instant counts: later costs queue behind it
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
	l.end.known = false
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
	t.Line.end.known = false
	t.Line.over(t)
	*s = m.moved(*s)
}

// Drop is Leave for the line of a key that was dropped.
func (l *Line) Drop(t *Turn) {
	if l.over(t); l.first != nil {
		l.first.Rouse()
	}
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
		l.first.Refused = refused
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
}

func (l *Line) unlink(t *Turn) {
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
func (m *Meter) due(s State, l *Line) (at, part, after int64) {
	t := l.first
	if m.bookings(s) == nil && (!m.log || s.log.newest() <= l.now) {
		at, part = m.place(s, l.now, t.Cost)
		return at, part, l.now
	}
	r := m.replayed(s, l.now)
	at, part = r.place(t)
	return at, part, r.now
}

// OfferFirst is Offer for the cost of the first turn.
func (m *Meter) OfferFirst(s State, mo Moment) Offer {
	at, part, _ := m.due(s, s.Line())
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
		if l.sample(at, l.base.owed(at)); t.Open {
			l.opened(at, 1)
		}
		l.base = m.spend(l.base, at, t.Cost)
		l.touch(0)
		s = m.closeGaps(s)
	case m.token != nil:
		s = m.spendNow(s, at, t.Cost, keep)
	default:
		s = m.spend(s, at, t.Cost)
	}
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
	if t := m.token; t != nil && len(r.booked) == 0 && t.one.frac == 0 && r.s.N == 0 && r.s.At >= l.now {
		// Nothing is rounded, so the sum is exact, and the last turn leaves the bucket full.
		r.s.At += t.price(l.cost).ticks
		r.now = max(l.now, r.s.At-t.full.ticks)
	} else {
		for t := l.first; t != nil; t = t.next {
			at, _ := r.place(t)
			r.s, r.now = m.spend(r.s, at, t.Cost), at
		}
	}
	for i := range r.booked {
		r.spend(&r.booked[i])
	}
	e.state, e.known = r.s, true
	if e.detail.log = (totals{}); m.log && r.s.detail != nil {
		e.detail.log = r.s.log
	}
	e.detail.ledger, e.ledger.list, e.state.detail = &e.ledger, e.last[:], &e.detail
	e.last[0].at = r.now
	return e.state
}

// spend adds a spending at the end.
func (e *end) spend(m *Meter, at, cost int64) {
	e.state = m.spend(e.state, at, cost)
	e.last[0].at = max(e.last[0].at, at)
}

// replayed spends turns and bookings in their order, on a copy of a state.
type replayed struct {
	m      *Meter
	s      State
	now    int64
	booked []booking // the later ones
}

// replayed returns the state as of an instant, which is up to date.
func (m *Meter) replayed(s State, now int64) replayed {
	r := replayed{m: m, now: now}
	if !m.log {
		r.s, r.booked = m.parted(s, now)
		r.s.detail = nil
		return r
	}
	r.s = s
	if s.detail != nil {
		r.s.detail = &detail{log: s.log.clone()}
	}
	l := m.algorithm.(*slidingLog)
	var n int64
	if r.booked, n = l.bookings(r.s, now); n > 0 {
		r.s.N -= r.s.log.reduceNewest(n)
	}
	return r
}

// place returns where a turn is spent: behind the bookings that came before it, and the ones whose time comes first.
func (r *replayed) place(t *Turn) (at, part int64) {
	for {
		at, part = r.m.place(r.s, r.now, t.Cost)
		if len(r.booked) == 0 || r.booked[0].at > t.behind && r.booked[0].at >= at {
			return at, part
		}
		r.spend(&r.booked[0])
		r.booked = r.booked[1:]
	}
}

func (r *replayed) spend(b *booking) {
	r.s = r.m.replay(r.s, b)
	r.now = max(r.now, b.at)
}

// place returns where a cost is spent at once behind all else.
func (m *Meter) place(s State, now, cost int64) (at, part int64) {
	if m.leaky != nil {
		return m.leaky.leaves(s, now)
	}
	return m.earliest(s, now, cost), 0
}
