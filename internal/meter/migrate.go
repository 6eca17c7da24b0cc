package meter

import "slices"

// Migrate converts a state of another meter to this one. Bookings keep their instants, as do a log's spendings
// and the beginnings of windows. It leaves the given state as it is, for a Peek. It takes time linear in the
// number of bookings. Do not call it if both meters count alike. The state is up to date: see Refresh.
//
// The meaning of a state depends on the algorithm, so there are three ways. Between two logs each spending keeps
// its instant. Between a log and any other, the spendings become a sum, or a sum becomes one spending. All others
// keep sums: see carrySums. Migrate first separates the bookings, and then books them again at their instants.
func (to *Meter) Migrate(from *Meter, s State, now int64) State {
	if (to.held == nil) != (from.held == nil) {
		return State{At: now} // units in use do not count as spending
	}
	if to.held != nil {
		return to.convert(from, s, now)
	}
	return to.loosened(from, to.under(from, s, now), now)
}

// under is Migrate for a state with former limits, or a state about to have one. With
// future bookings, all former limits are forgotten, because the bookings would count twice.
func (to *Meter) under(from *Meter, s State, now int64) State {
	alike := from.alike(to)
	if alike && s.formers() == nil {
		return to.convert(from, s, now)
	}
	s = from.cloned(s)
	from.Advance(&s, now)
	if !alike && from.hasBookings(s, now) {
		return to.convert(from, from.forget(s, now), now)
	}
	s, was := from.parting(s)
	f := formers{m: to, list: was.list, hold: was.hold, idle: was.idle, full: alike && was.full}
	if !alike {
		left, old := from, s
		if was.full {
			f.hold = max(f.hold, left.Forgotten(old))
		}
		if i := slices.IndexFunc(f.list, func(f former) bool { return f.m.alike(to) }); i >= 0 {
			from, s = f.list[i].m, f.list[i].s
			from.Advance(&s, now)
			if was.hold <= now {
				s = from.reduced(s, now, Add(left.spent(old, now), old.asideAt(now).units))
			}
			f.list = slices.Delete(f.list, i, i+1)
		}
		f.list = append(f.list, former{left, old, Add(now, formerFor*min(left.refill(), left.horizon/formerFor))})
		if len(f.list) > mostFormer {
			f.list = f.list[1:]
		}
	}
	var r State
	if from.alike(to) {
		r = to.convert(from, s, now)
		x := s.lostAt(now)
		if more := min(x.units-x.over, to.capacity()-from.capacity(), to.capacity()-to.spent(r, now)); more > 0 {
			x.units -= more // a limit of this capacity would have counted them
			r = to.owe(r, now, more)
		}
		r = r.withLost(x)
	} else { // the window begins with all spending
		r = to.convert(from, from.found(s, now), now)
	}
	r = r.withFormers(f)
	to.lasts(r, now)
	return to.outlived(r, now)
}

// alike reports whether a state keeps its instants of regaining when it is converted from one
// meter to the other. Of several former limits alike, only the last one goes on counting.
func (m *Meter) alike(other *Meter) bool {
	switch {
	case m.family() != other.family():
		return false
	case m.family() != familyWindow:
		return true
	case m.kind != other.kind:
		return false
	case m.kind == Calendar: // the windows of both end at the same instants
		return true
	}
	a, _ := m.windows()
	b, _ := other.windows()
	return a == b
}

// reduced returns a state with at most the key's spending under its old limit: the rest is regained.
func (m *Meter) reduced(s State, now, most int64) State {
	n := m.spent(s, now)
	if t := m.bucket(); t != nil && most > 0 { // rounded down: the key keeps a part of a unit, unless it is fresh
		n, _ = t.worth(s.owed(now))
	}
	r := s.asideAt(now)
	if s.detail != nil && s.ledger != nil && s.ledger.lost != nil {
		x := s.ledger.lost
		x.over = max(x.over, x.units-max(0, most-n-r.units))
	}
	over := n + r.units - most
	if off := min(over, r.units); off > 0 {
		s.ledger.rest.reduce(off)
		over -= off
		s = m.trimmed(s)
	}
	if over <= 0 {
		return s
	}
	until := m.regained(s)
	if l, ok := m.algorithm.(*slidingLog); ok {
		off := min(over, s.M)
		s.M -= off
		s.N -= s.log.reduceOldest(over - off)
		s = l.advance(s, now)
	} else {
		s = m.grant(s, now, over)
	}
	s = s.lose(over, until)
	s.ledger.lost.over += over
	return s
}

// loosened marks the bookings of a state from another limit.
func (m *Meter) loosened(from *Meter, s State, now int64) State {
	switch {
	case m.held != nil, from.leaky != nil && m.leaky == nil:
	case m.log && s.detail != nil && s.log.newest() > now:
		if s.ledger == nil {
			d := *s.detail
			d.ledger = new(ledger)
			s.detail = &d
		}
		s.ledger.loose = true
	case m.bookings(s) != nil:
		s.ledger.loose = true
	}
	return s
}

// MigrateView returns the view of a state of another meter as if this meter
// had its line. It leaves the given state as it is. The state is up to date.
func (to *Meter) MigrateView(from *Meter, s State, now int64) State {
	l := s.Line()
	if l == nil {
		return to.Migrate(from, s, now)
	}
	aside, left, f := s.ledger.rest, s.lostAt(now), s.formers().cloned()
	// Due turns are served under the old limit.
	r, t := from.replayed(s, l.now), l.first
	rest := Line{last: l.last, now: now, n: l.n, cost: l.cost, most: l.most, uneven: l.uneven}
	for ; t != nil; t = t.next {
		booked := r.booked
		at, _ := r.place(t)
		for _, b := range booked[:len(booked)-len(r.booked)] {
			f.passed(r.s, b.at, b.cost, Final)
		}
		if at > now {
			break
		}
		r.spendTurn(t.Cost, at)
		f.passed(r.s, at, t.Cost, Final)
		rest.n, rest.cost = rest.n-1, rest.cost-t.Cost
	}
	if s = r.whole().setAside(aside).withLost(left); f != nil {
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

// Charge adds the spending in another meter's state, as of now, to a state of this one, as a debt if necessary. It books
// the other state's bookings here, at the same instants or later. The other state must be up to date. It does not change.
func (to *Meter) Charge(s *State, now int64, from *Meter, other State) {
	if to.held != nil || from.held != nil {
		return // the calls have ended with their process
	}
	var booked []booking
	var n, debt int64 // the spending by now, and a log's debt, possibly behind bookings
	if l, isFrom := from.algorithm.(*slidingLog); isFrom {
		other = l.advance(l.aside(other), now)
		booked, n = l.bookings(other, now)
		debt = other.M
		n = from.spent(other, now) - n - debt
	} else {
		other, booked = from.split(other, now)
		n = from.spent(other, now)
	}
	// A window booked there may end later than its instant's window here, so its count is booked for the next window.
	var late int64
	switch a := to.algorithm.(type) {
	case *fixedWindow:
		late = a.per
	case *slidingCounter:
		late = a.per
	}
	to.Advance(s, now)
	if to.log && len(booked) > 0 {
		*s = to.forget(*s, now)
	}
	*s = to.owe(*s, now, n)
	for _, b := range booked {
		at, cost := max(Add(b.at, late), to.behind(*s, now)), b.cost
		if log, ok := to.algorithm.(*slidingLog); ok {
			// A log does not queue a charge. If the booking's window is full,
			// the charge is spent when there is room, and the excess is a debt.
			over := max(0, cost-log.units)
			cost, debt = cost-over, debt+over
			at = max(at, log.earliest(*s, now, cost))
		}
		if at-now > to.horizon { // no booking is farther ahead, and ReadState rejects such a booking
			debt = Add(debt, cost)
		} else if cost = min(cost, to.maxDebt-to.spent(*s, now)); cost > 0 {
			*s = to.book(*s, Spending{At: at, Cost: cost})
		}
	}
	*s = to.owe(*s, now, debt)
}

// Loosen makes costs go before the bookings of a state, advanced to
// now, until Tighten. It reports whether it has made the state loose.
func (m *Meter) Loosen(s *State, now int64) bool {
	if s.loose() {
		return false
	}
	*s = m.loosened(m, *s, now)
	return s.loose()
}

// Tighten makes costs queue behind the last booking again. It reports whether the state was loose before.
func (m *Meter) Tighten(s *State) bool {
	if !s.loose() {
		return false
	}
	s.ledger.loose = false
	*s = m.trimmed(*s)
	return true
}
