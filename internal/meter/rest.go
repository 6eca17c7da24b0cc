package meter

// This file counts spending under a lowered limit. Spending stays, but a lowered limit counts at most its
// capacity, and debts. The units above that are set aside. They count again if the limit is raised before
// the old limit would have regained them. So after a lowered limit, a key waits no longer than if it had
// spent the whole new capacity. And if a limit is lowered and raised again, no more is left than before.
//
// A single figure does not suffice: it would either bar the key under the lowered limit,
// or forget units under the raised one. The counted units and the units set aside always
// add up to the spending, so changing a limit back and forth regains nothing.

// lapsed drops an ended rest.
func (m *Meter) lapsed(s State, now int64) State {
	if s = m.outlived(s, now); s.detail == nil || s.ledger == nil || s.ledger.rest.units == 0 {
		return s
	}
	if m.token != nil { // the open reservations give back less, too
		owed := s.owed(now)
		if l := m.bookings(s); l != nil {
			owed = l.base.owed(now)
		}
		s.ledger.total(m.token, now, owed)
	}
	if s.ledger.rest = s.ledger.rest.alive(now); s.ledger.rest.units > 0 {
		return s
	}
	return m.trimmed(s)
}

// outlived drops lost units and former limits once they no longer count.
func (m *Meter) outlived(s State, now int64) State {
	if s.detail == nil || s.ledger == nil {
		return s
	}
	l := s.ledger
	dropped := l.dropLost(now)
	if l.formers != nil && l.formers.over(now) && l.lost == nil {
		l.formers, dropped = nil, true
	}
	if dropped {
		return m.trimmed(s)
	}
	return s
}

// Forgotten returns the first instant when the key is like a new one:
// all is regained, and nothing is set aside. Waiting calls do not count.
func (m *Meter) Forgotten(s State) int64 {
	at := m.regained(s)
	if s.detail != nil && s.ledger != nil && s.ledger.rest.units > 0 {
		at = max(at, s.ledger.rest.until)
	}
	if x := s.lostAt(never); x.units > x.over { // all the key's units are regained, or count under the limit in force
		at = max(at, x.until)
	}
	if s.detail != nil && s.ledger != nil && s.ledger.formers != nil {
		at = max(at, s.ledger.formers.held())
	}
	return at
}

// leaving is a key's spending under its old limit.
type leaving struct {
	base   State // without bookings; without detail, except a log's
	spent  int64
	debt   int64 // the part of base above the capacity
	before rest
}

// leave returns the spending by now. The state is up to date, and stays as it is.
func (m *Meter) leave(s State, now int64) leaving {
	x := leaving{before: s.asideAt(now)}
	if l, ok := m.algorithm.(*slidingLog); ok {
		x.base = l.advance(l.aside(s), now)
		if x.base.detail != nil {
			x.base.log = x.base.log.clone()
			x.base.ledger = nil
			_, n := l.bookings(x.base, now)
			x.base.N -= x.base.log.reduceNewest(n)
		}
	} else {
		x.base, _ = m.split(s, now)
		x.base.detail = nil
		x.base = m.advance(x.base, now)
	}
	x.spent = m.spent(x.base, now)
	x.debt = max(0, x.spent-m.capacity())
	return x
}

// until returns the instant when all but the debt would have been regained.
func (x leaving) until(m *Meter, now int64) int64 {
	if x.debt > 0 {
		x.base = m.forgive(x.base, now, x.debt)
	}
	return max(m.regained(x.base), x.before.until)
}

// lowered takes a state without bookings, carried over to this meter. It returns the state with at
// most its capacity and debts counted, and the units to set aside. Units set aside before count first.
func (m *Meter) lowered(s State, now int64, from *Meter, x leaving) (State, rest) {
	total, most := Add(x.spent, x.before.units), Add(m.capacity(), x.debt)
	counted := m.spent(s, now)
	switch n := min(total, most, m.maxDebt) - counted; {
	case n > 0 && x.before.units > 0:
		s = m.charge(s, now, min(n, x.before.units))
	case counted > most:
		s = m.forgive(s, now, counted-most)
	}
	if total <= most { // all counts
		return s, rest{}
	}
	r := rest{units: total - m.spent(s, now), until: x.until(from, now)}
	if r.units <= 0 || r.until <= now {
		return s, rest{}
	}
	return s, r
}

// aged returns a window's state for a shorter window. Until now the key has regained
// by its old limit, so earlier shorter windows have regained nothing of a debt.
func (s State) aged(from, to *Meter, now int64) State {
	per, _ := to.windows()
	_, units := from.windows()
	k := (now - s.At) / per
	if k <= 0 || s.N <= units {
		return s
	}
	s.At, s.N, s.M = s.At+k*per, s.N-units, 0
	if c, ok := to.algorithm.(*slidingCounter); ok && k == 1 {
		s.M = min(units, c.units)
	}
	return s
}

// settleAside gives back units of the rest first, if the spending is from before the
// change of limit and still counts. It returns the actual cost still to be settled.
func (m *Meter) settleAside(s *State, now int64, sp Spending, actual int64) int64 {
	r, lost := s.asideAt(now), s.lostAt(now).units
	if r.units == 0 && lost == 0 || !sp.Changed || actual >= sp.Cost || sp.At > now {
		return actual
	}
	if r.log != nil && lost == 0 {
		return m.settleOlder(s, now, sp, actual)
	}
	base := *s
	switch l := m.bookings(*s); {
	case l != nil:
		base = l.base
	case m.log:
		d := *s.detail
		d.log = d.log.clone()
		base.detail = &d
	default:
		base.detail = nil
	}
	was := m.spent(base, now)
	if m.spent(m.refund(base, now, sp, actual), now) >= was {
		return actual
	}
	if lost > 0 {
		actual += s.ledger.takeLost(sp.Cost - actual)
	}
	if r.log != nil {
		return m.settleOlder(s, now, sp, actual)
	}
	off := min(sp.Cost-actual, r.units)
	s.ledger.rest.reduce(off)
	return actual + off
}

// settleOlder is settleAside for a log's rest. A spending is given back where its entry is. If the entry counts,
// older entries take its place, because a log of this limit would count them if it had known the real cost.
func (m *Meter) settleOlder(s *State, now int64, sp Spending, actual int64) int64 {
	*s = m.lapsed(*s, now)
	r, l := &s.ledger.rest, m.algorithm.(*slidingLog)
	off := r.log.totals.reduce(sp.At, sp.Cost-actual)
	r.less(off)
	if actual += off; r.units == 0 || actual >= sp.Cost {
		return actual
	}
	*s = l.advance(*s, now)
	i := s.log.search(sp.At)
	if i == s.log.len() || s.log.mark(i).at != sp.At {
		return actual
	}
	n := min(sp.Cost-actual, s.log.get(i).cost)
	for n > 0 && r.units > 0 && r.log.newest() > now-l.per {
		e := r.log.get(r.log.len() - 1)
		part := min(n, e.cost)
		r.reduce(part)
		s.log.insert(e.at, part)
		s.N, n = s.N+part, n-part
	}
	return actual
}
