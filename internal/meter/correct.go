package meter

// Settle corrects a spending from its estimated cost to its real cost. A difference above the estimate is charged, as a debt if
// necessary. A difference below is refunded, as far as it has not been regained and no later spending depends on it.
func (m *Meter) Settle(s *State, now int64, sp Spending, actual int64) {
	if s.Line() != nil {
		*s = m.serve(*s, now)
	}
	*s = m.popDue(*s, now)
	p := s.formers()
	if p != nil {
		s.ledger.dropLost(now)
		p.drop(now)
	}
	if p == nil || len(p.list) == 0 {
		m.settleHere(s, now, sp, actual)
		*s = m.moved(*s)
		return
	}
	*s = m.refold(*s)
	before := m.spent(*s, now) + s.asideAt(now).units
	m.settleHere(s, now, sp, actual)
	if *s = m.refold(*s); actual <= sp.Cost && sp.At <= now {
		back := before - m.spent(*s, now) - s.asideAt(now).units
		if m.bucket() != nil && back < sp.Cost-actual {
			back-- // both figures are rounded up
		}
		p.settleFormer(now, sp, max(0, min(back, sp.Cost-actual)))
	}
	m.lasts(*s, now)
	*s = m.moved(*s)
}

// Adjust charges a delta above 0, as a debt if necessary. A delta below 0 is forgiven: see [Meter.grant].
func (m *Meter) Adjust(s *State, now, delta int64) {
	m.Advance(s, now)
	*s = m.adjust(*s, now, delta)
	m.lasts(*s, now)
	*s = m.moved(*s)
}

// End gives back all units of a reservation, as far as they have not lapsed, and returns their number.
func (m *Meter) End(s *State, now int64, sp Spending) (n int64) {
	if m.held == nil {
		return 0
	}
	*s = m.held.advance(*s, now)
	if s.detail != nil {
		n = s.log.reduce(sp.At, sp.Cost)
		s.N -= n
	}
	return n
}

// Extend restarts the hold of a reservation's units, and reports whether all
// were still held. If some have lapsed, it restarts the hold of the others.
func (m *Meter) Extend(s *State, now int64, sp *Spending) bool {
	if m.held == nil {
		return true
	}
	*s = m.held.advance(*s, now)
	if s.detail == nil || sp.Cost == 0 {
		return false
	}
	n := s.log.reduce(sp.At, sp.Cost)
	if n > 0 {
		s.log.add(now, n)
		sp.At = now
	}
	lost := n < sp.Cost
	sp.Cost = n
	return !lost
}
