package meter

// between converts the state of another log to this one. It also returns the entries that
// count only there: they have left this log's window, or exceed its units. Each spending
// keeps its instant, so frequent changes delay nothing. The given state stays as it is.
func (l *slidingLog) between(from *slidingLog, s State, now int64, x leaving) (State, rest) {
	s = from.advance(from.aside(s), now)
	if s.detail == nil {
		return s, rest{}
	}
	if l.held { // no call ends because the limit is lowered
		return l.advance(s, now), rest{}
	}
	all := from.oldest(s, x.before, now)
	for i := range s.log.len() {
		e := s.log.get(i)
		all.add(e.at, e.cost)
	}
	// The booked entries come last, and stay.
	past := all.sum(all.search(now + 1))
	off := max(all.sum(all.search(now-l.per+1)), past+s.M-Add(l.units, x.debt))
	over := max(0, off-past) // a part of the debt
	off -= over
	s.log = all.clone()
	s.log.reduceOldest(off)
	s.N, s.M = s.log.sum(s.log.len()), s.M-over
	if all.reduceNewest(all.sum(all.len()) - off); over > 0 {
		all.add(now, over)
	}
	s.ledger = nil
	s = l.replaced(s, now)
	if all.len() == 0 {
		return s, rest{}
	}
	return s, restOf(all, now)
}

// replaced returns a state of another log with its debt placed again. A fitting part
// is placed as if it had just been charged, and the rest behind everything else. A
// debt behind a booking may be a part of that booking, so it is not placed before it.
func (l *slidingLog) replaced(s State, now int64) State {
	debt, at := s.M, s.At
	if debt == 0 {
		return s
	}
	s.M = 0
	s = l.advance(s, now)
	if i := s.log.search(now + 1); i == s.log.len() || at <= s.log.mark(i).at {
		if part := min(debt, l.units-s.N); part > 0 {
			s.log.insert(now, part)
			s.N += part
			debt -= part
		}
	}
	if debt == 0 {
		return s
	}
	return l.indebt(s, now, debt)
}

// carried spends the bookings made under a limit of another kind. At its instant a booking keeps as much as a
// window holds, and the excess becomes a debt. A debt behind a booking is a part of it, and so remains a debt.
func (l *slidingLog) carried(s State, now int64, booked []booking) State {
	debt := int64(0)
	for _, b := range booked {
		fits := min(b.cost, l.units)
		s = l.spend(s, b.at, fits)
		debt = Add(debt, b.cost-fits)
	}
	if debt == 0 {
		return s
	}
	return l.indebt(s, now, debt)
}
