package meter

// Attach gives a state another state's line. That state belonged to another limit, or to the same key before it was
// dropped. If the state already has a line, the other line's turns go behind it. Turns above the capacity are refused.
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

// Join puts a turn at the line's end. o is the offer for its cost.
func (m *Meter) Join(s *State, now int64, t *Turn, o Offer) {
	l := m.lineOf(s, now)
	t.Number = Arrival()
	t.behind = m.newest(*s, l.now)
	if l.insert(t); l.end.known {
		l.end.spend(m, o.At, t.Cost)
	}
}

// Insert puts a turn into the line, at its number's place. Its booking, at the instant at, has been given back.
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
		t.next.Rouse() // t.next is no longer the first
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

// shorter is called when a turn has left. It reports whether the line's end is kept as
// it is, although that is now too late. Otherwise each turn of a long line would have
// to be examined each time. A kept end is late by less than a 64th of the line's turns.
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

// sums reports whether the end of a long line can be computed without examining each turn: see skip.
func (m *Meter) sums(l *Line) bool {
	if t := m.bucket(); t != nil {
		return m.leaky != nil || l.uneven == 0 || t.one.frac == 0 || t.minus(t.full, t.price(l.most)).ticks > 0
	}
	return l.uneven == 0 && !m.log
}

// Release ends all turns without a charge.
func (m *Meter) Release(s *State, refused bool) {
	l := s.Line()
	l.ReleaseAll(refused)
	*s = m.moved(*s)
}

// moved is called after a change of the state or the line, because the first turn's instant may have changed.
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

// Due returns the instant when the first turn is served if nothing changes. The line is not empty.
func (m *Meter) Due(s *State) int64 {
	*s = m.closeGaps(*s)
	at, _, _ := m.due(*s, s.Line())
	return at
}

// due returns the instant when the first turn is served, and the instant of the last booking before it.
func (m *Meter) due(s State, l *Line) (at, part, after int64) { return m.dueAs(s, l, l.first) }

// dueAs is due as if t were the first turn.
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

// OfferBefore is Offer for a cost before the whole line. After accepting it, call Passed.
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

// serve serves all turns due by now.
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
		l.first.Rouse() // the first caller sets its timer
	}
	return s
}

// spendTurn spends the cost of the first turn before all remaining bookings.
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
		s = m.spendBefore(s, Spending{At: at, Part: part, Cost: t.Cost, Open: t.Open})
	case m.token != nil:
		s = m.spendNow(s, at, t.Cost, keep)
	default:
		s = m.spend(s, at, t.Cost)
	}
	s.passed(at, t.Cost, keep)
	t.Spent = Spending{At: at, Part: part, Cost: t.Cost, Open: t.Open}
	return s
}

// view returns the state for calls that only read it: the line's end if there is one. The state must be up to date.
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
