package meter

import "slices"

// This file holds a meter's operations on states with bookings. The algorithms see only the instant
// of the last booking. The sliding log is an exception: its bookings are entries like all others.

// bookings returns a state's ledger, nil if nothing is booked.
func (m *Meter) bookings(s State) *ledger {
	if s.detail == nil || m.log || s.ledger == nil {
		return nil
	}
	if l := s.ledger; len(l.list) > 0 || l.stale() {
		return l
	}
	return nil
}

// book spends at an instant after now. The spending can be given back until then.
func (m *Meter) book(s State, sp Spending) State {
	if m.log {
		return m.spend(s, sp.At, sp.Cost)
	}
	s.booked(sp.At)
	// From the first booking on, the state is a fold: its former value becomes the base.
	if s.detail == nil {
		s.detail = &detail{ledger: &ledger{base: s}}
	} else if m.bookings(s) == nil {
		s.ledger.base = s.alone()
	}
	s = m.spend(s, sp.At, sp.Cost)
	s.ledger.add(sp, s)
	return s
}

// replay spends a booking on top of the earlier ones.
func (m *Meter) replay(s State, b *booking) State {
	if m.leaky != nil {
		return m.leaky.replay(s, Spending{At: b.at, Part: b.part, Cost: b.cost})
	}
	return m.spend(s, b.at, b.cost)
}

// fold returns the state of a key with these bookings on top of a base.
func (m *Meter) fold(base State, booked []booking) State {
	if len(booked) == 0 {
		return base
	}
	base.detail = &detail{ledger: &ledger{base: base, list: booked, unchanged: int32(len(booked))}}
	return m.refold(base)
}

// catchUp returns the state with due bookings counted as spending.
func (m *Meter) catchUp(s State, now int64) State {
	return m.popDue(m.refold(s), now)
}

// popDue moves due bookings into the base. The state's value does not
// change: if it is stale and no booking is due, it remains stale.
func (m *Meter) popDue(s State, now int64) State {
	l := m.bookings(s)
	if l == nil || l.oldest() > now {
		return s
	}
	s = m.closeGaps(s)
	if k := l.search(now + 1); k > 0 { // all bookings may have been given back
		l.popFront(m, k)
	}
	return m.trimmed(s) // the state itself, not the base, because a calendar's state may have reached a later window
}

// popFront forgets the oldest k bookings. The base is the state after them.
func (l *ledger) popFront(m *Meter, k int) {
	l.due(m.token, l.list[:k])
	for i := 0; i < k && l.formers != nil; i++ {
		b := &l.list[i]
		l.passed(b.after, b.at, b.cost, Final)
	}
	l.base = l.list[k-1].after
	l.list = l.list[k:]
	if l.gone += int32(k); int(l.gone) > len(l.list) { // removed bookings still take memory
		l.list, l.gone = slices.Clone(l.list), 0
	}
}

// due samples the debts at due bookings, and opens their reservations.
func (l *ledger) due(t *tokenBucket, list []booking) {
	if t == nil {
		return
	}
	s := &l.base
	for i := range list {
		b := &list[i]
		if l.sample(b.at, l.total(t, b.at, s.owed(b.at))); b.open > 0 {
			l.opened(b.at, b.open)
		}
		s = &b.after
	}
}

// refold brings the state up to date after bookings have been given back.
func (m *Meter) refold(s State) State { return m.closeGaps(s) }

// closeGaps brings the state up to date after bookings have been given
// back. The state keeps its ledger as long as there are bookings.
func (m *Meter) closeGaps(s State) State {
	l := m.bookings(s)
	if l == nil || !l.stale() {
		return s
	}
	after := &l.base
	if l.refold(m); len(l.list) > 0 {
		after = &l.list[len(l.list)-1].after
	}
	s.At, s.N, s.M = after.At, after.N, after.M
	return m.trimmed(s)
}

// refold spends the bookings after a change again, until the state equals its former value. So the gaps close.
func (l *ledger) refold(m *Meter) {
	kept := min(int(l.changed), len(l.list))
	s := l.base
	if kept > 0 {
		s = l.list[kept-1].after
	}
	for i := kept; i < len(l.list); i++ {
		b := l.list[i]
		if b.cost == 0 {
			continue
		}
		s = m.replay(s, &b)
		same := s == b.after && i+1 >= int(l.unchanged)
		b.after = s
		l.list[kept] = b
		kept++
		if same {
			kept += copy(l.list[kept:], l.list[i+1:])
			break
		}
	}
	l.list = l.list[:kept]
	l.changed, l.unchanged = 0, 0
}

// split separates the spending by now from the later bookings, in copies. A due booking was
// spent under the old limit, even if no decision has come since. Fractions of a tick belong
// to the old limit, so each booking begins at its whole instant. The state is up to date.
func (m *Meter) split(s State, now int64) (base State, booked []booking) {
	base, booked = m.parted(s, now)
	booked = slices.Clone(booked)
	for i := range booked {
		if booked[i].part = 0; m.token == nil {
			booked[i].open = 0
		}
	}
	return base, booked
}

// parted returns the spending by now and the later bookings in the state's own form. The state is up to date.
func (m *Meter) parted(s State, now int64) (base State, booked []booking) {
	l := m.bookings(s)
	if l == nil {
		if !m.log {
			s.detail = nil
		}
		return s, nil
	}
	k := l.search(now + 1) // the first one in the future
	if base = l.base; k > 0 {
		base = l.list[k-1].after
	}
	return base, l.list[k:]
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

// hasBookings reports whether anything is booked after now.
func (m *Meter) hasBookings(s State, now int64) bool {
	switch {
	case s.detail == nil:
		return false
	case m.log:
		return s.log.newest() > now
	}
	return s.ledger.newest() > now
}

// BookedUntil returns the instant of the last booking of a state, now if it has none.
func (m *Meter) BookedUntil(s State, now int64) int64 {
	if m.Delays() || !m.hasBookings(s, now) {
		return now
	}
	return m.newest(s, now)
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
