package meter

import "math"

// This file holds the operations of a meter on a state that may have bookings. The algorithms know only the instant of the last
// booking, except the sliding log: its bookings are entries like all others.

// bookings returns the ledger of a state, nil if nothing is booked.
func (m *Meter) bookings(s State) *ledger {
	if s.detail == nil || m.log || s.ledger == nil {
		return nil
	}
	if l := s.ledger; len(l.list) > 0 || l.stale() {
		return l
	}
	return nil
}

// book spends at an instant after now, in such a way that it can be given back.
func (m *Meter) book(s State, sp Spending) State {
	if m.log {
		return m.spend(s, sp.At, sp.Cost)
	}
	if p := s.formers(); p != nil {
		p.booked(m, sp.At)
	}
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

// fold returns the state of a key that has these bookings on top of a base.
func (m *Meter) fold(base State, booked []booking) State {
	if len(booked) == 0 {
		return base
	}
	base.detail = &detail{ledger: &ledger{base: base, list: booked, unchanged: len(booked)}}
	return m.refold(base)
}

// catchUp returns the state with past bookings counted as spending.
func (m *Meter) catchUp(s State, now int64) State {
	return m.popDue(m.refold(s), now)
}

// popDue moves past bookings into the base. The value of the state does not change: if it is stale and no booking is past, it
// remains stale.
func (m *Meter) popDue(s State, now int64) State {
	l := m.bookings(s)
	if l == nil || l.oldest() > now {
		return s
	}
	s = m.closeGaps(s)
	if k := l.search(now + 1); k > 0 { // all of it may have been given back
		l.popFront(m, k)
	}
	return m.trimmed(s) // the state itself, and not the base: a calendar's may have come to a later window
}

// alone returns the state without its detail.
func (s State) alone() State {
	s.detail = nil
	return s
}

// refold brings the state up to date: bookings that were given back are gone.
func (m *Meter) refold(s State) State { return m.closeGaps(s) }

// closeGaps brings the state up to date if bookings have been given back. The ledger stays with
// it as long as there are bookings.
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

// settle corrects a spending from its estimated cost to its real cost. The state may be stale, and becomes stale by a refund.
func (m *Meter) settle(s State, now int64, sp Spending, actual int64) State {
	if m.token != nil && (sp.Open || !sp.Changed) {
		return m.settleToken(s, now, sp, actual)
	}
	l := m.bookings(s)
	switch {
	case actual > sp.Cost: // an unforeseen cost need not fit
		return m.owe(s, now, actual-sp.Cost)
	case actual == sp.Cost:
	case l == nil && !m.log && sp.At > now:
		// It was booked, and is not any more: a grant has given it back.
	case l == nil:
		return m.refund(s, now, sp, actual)
	default:
		m.giveBack(l, now, sp, actual)
	}
	return s
}

// giveBack refunds the difference between the cost of a spending and its real cost, in a state with bookings, all of them after
// now. A spending that is not among them is in the base.
func (m *Meter) giveBack(l *ledger, now int64, sp Spending, actual int64) {
	if sp.At > now {
		l.reduce(sp.At, sp.Cost-actual, false)
		return
	}
	l.base = m.refund(l.base, now, sp, actual)
	l.touch(0)
}

// owe charges n behind all that is booked, as a debt if need be, and as far as a key
// may be in debt.
func (m *Meter) owe(s State, now, n int64) State {
	s = m.refold(s)
	if most := m.maxDebt - m.spent(s, now); n > most {
		if n = most; m.token != nil && s.detail != nil {
			s.ledger.granted(now, span{})
		}
	}
	switch l := m.bookings(s); {
	case n <= 0:
		return s
	case l != nil:
		// At the last booking's instant, so that no booking is pushed back.
		return m.book(s, Spending{At: max(now, l.newest()), Cost: n})
	}
	s.adjustFormer(now, n)
	if m.token != nil {
		return m.spendNow(s, now, n, Final)
	}
	return m.charge(s, now, n)
}

// grant takes n from the spending: from bookings first, beginning with the last.
func (m *Meter) grant(s State, now, n int64) State {
	l := m.bookings(s)
	if r := s.asideAt(now); r.units > 0 {
		if over := n - m.spent(s, now); over > 0 { // a grant of more than counts
			s.ledger.rest.reduce(min(over, r.units))
		}
	}
	if l == nil {
		s.adjustFormer(now, -n)
		if s = m.forgive(s, now, n); m.token != nil && s.detail != nil {
			s.ledger.granted(now, s.ledger.total(m.token, now, s.owed(now)))
		}
		return m.trimmed(s)
	}
	if n -= l.reduceNewest(n); n > 0 {
		s.adjustFormer(now, -n)
		l.base = m.forgive(l.base, now, n) // there are no bookings left
		if m.token != nil {
			l.granted(now, l.total(m.token, now, l.base.owed(now)))
		}
	}
	return s
}

// adjust charges a delta above 0, and forgives one below.
func (m *Meter) adjust(s State, now, delta int64) State {
	if delta > 0 {
		return m.owe(s, now, delta)
	}
	return m.grant(s, now, -max(delta, -math.MaxInt64))
}
