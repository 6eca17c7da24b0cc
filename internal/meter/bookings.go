package meter

import "math"

// This file is what a plan does to a state that may have bookings. The algorithms know
// nothing of bookings but the instant of the last one, except the sliding log: its bookings
// are entries like all others.

// bookings returns the ledger of a state, nil if it has none.
func (m *Meter) bookings(s State) *ledger {
	if s.detail == nil || m.log {
		return nil
	}
	return s.ledger
}

// book spends at an instant after now, in such a way that it can be given back.
func (m *Meter) book(s State, sp Spending) State {
	if !m.log {
		// From the first booking on, the state is a fold: the base is what it was before.
		if s.detail == nil {
			s.detail = &detail{ledger: &ledger{base: s}}
		}
		s.ledger.add(sp)
	}
	return m.spend(s, sp.At, sp.Cost)
}

// catchUp returns the state with the bookings that are past among what is spent.
func (m *Meter) catchUp(s State, now int64) State {
	return m.popDue(m.refold(s), now)
}

// popDue moves the bookings that are past into the base. What the state says stays the
// same, and if it is stale, it is that still.
func (m *Meter) popDue(s State, now int64) State {
	l := m.bookings(s)
	if l == nil {
		return s
	}
	k := 0
	for ; k < l.entries.len() && l.entries.slot(k).at <= now; k++ {
		l.base = m.replay(l.base, l.get(k))
	}
	if k == l.entries.len() {
		return l.base // which is what the state is with no bookings on top, stale or not
	}
	if k > 0 {
		l.popFront(k, now)
	}
	return s
}

// refold brings the state up to date if bookings have been given back. Of many that are
// given back in a row only the last needs it.
func (m *Meter) refold(s State) State {
	l := m.bookings(s)
	if l == nil || !l.stale {
		return s
	}
	l.stale = false
	l.entries.summed()
	return m.fold(l)
}

// settle makes good the difference between the cost that was spent and what it
// actually was. The state may be stale, and is so after a cost was given back.
func (m *Meter) settle(s State, now int64, sp Spending, actual int64) State {
	l := m.bookings(s)
	switch {
	case actual > sp.Cost: // what was not foreseen need not fit
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

// giveBack gives back what the cost of a spending exceeds actual by, where there are
// bookings. What is not among them is in the base. The base is as of a time before the
// first booking, so nothing is taken out of it as of a later time; what was booked behind
// the spending keeps its instant.
func (m *Meter) giveBack(l *ledger, now int64, sp Spending, actual int64) {
	back := sp.Cost - actual
	if sp.At > now || sp.At >= l.oldest() {
		if back -= l.reduce(sp.At, back); back == 0 || sp.At > now {
			return
		}
		sp.Cost = actual + back
	}
	l.base, l.stale = m.refund(l.base, min(now, l.oldest()), sp, actual), true
}

// owe charges n behind all that is booked, as a debt if need be, and as far as a key
// may be in debt.
func (m *Meter) owe(s State, now, n int64) State {
	s = m.refold(s)
	n = min(n, m.maxDebt-m.spent(s, now))
	switch l := m.bookings(s); {
	case n <= 0:
		return s
	case l != nil:
		// At the last booking's instant, so that no booking is pushed back.
		return m.book(s, Spending{At: max(now, l.entries.newest()), Cost: n})
	}
	return m.charge(s, now, n)
}

// grant takes n from what is spent: bookings first, the last of all first.
func (m *Meter) grant(s State, now, n int64) State {
	l := m.bookings(s)
	if l == nil {
		return m.forgive(s, now, n)
	}
	if n -= l.reduceNewest(n); n > 0 {
		l.base = m.forgive(l.base, now, n)
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
