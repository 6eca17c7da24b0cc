package meter

import "math"

// settleHere is Settle under this limit alone.
func (m *Meter) settleHere(s *State, now int64, sp Spending, actual int64) {
	open := m.token != nil && sp.Open
	if sp.Changed && sp.Part != 0 && sp.At <= now && !open {
		// In a leaky bucket the spending began before its rounded instant. A part of it may have
		// left before the limit changed. A refund of this part would give back others' spending.
		actual = max(actual, sp.Cost)
	}
	if !open {
		actual = m.settleAside(s, now, sp, actual)
	}
	*s = m.settle(*s, now, sp, actual)
}

// settle corrects a spending from its estimated cost to its real cost. The state may be stale, and a refund makes it stale.
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
		// A grant has given the booking back.
	case l == nil:
		return m.refund(s, now, sp, actual)
	default:
		m.giveBack(l, now, sp, actual)
	}
	return s
}

// giveBack refunds the difference between a spending's cost and its real cost, in a
// state with bookings, all after now. A spending without a booking is in the base.
func (m *Meter) giveBack(l *ledger, now int64, sp Spending, actual int64) {
	if sp.At > now {
		l.reduce(sp.At, sp.Cost-actual, false)
		return
	}
	l.base = m.refund(l.base, now, sp, actual)
	l.touch(0)
}

// settleToken settles a token bucket's spending.
func (m *Meter) settleToken(s State, now int64, sp Spending, actual int64) State {
	switch l := m.bookings(s); {
	case sp.At <= now:
		s = m.settleSpent(s, now, sp, actual)
	case l != nil:
		l.reduce(sp.At, max(0, sp.Cost-actual), sp.Open)
	}
	if actual > sp.Cost {
		return m.owe(s, now, actual-sp.Cost)
	}
	return s
}

// settleSpent gives back the excess of the cost of a token bucket's spending over actual, as far as the key would
// owe less. The spending's instant is not after now. A cost above the spending's is not charged here.
func (m *Meter) settleSpent(s State, now int64, sp Spending, actual int64) State {
	if actual >= sp.Cost && !sp.Open || s.detail == nil && sp.Open {
		return s
	}
	if s.detail == nil {
		return m.token.refund(s, now, sp, actual)
	}
	l, base := s.ledger, s
	booked := m.bookings(s) != nil
	if booked {
		base = l.base
	}
	total := l.total(m.token, now, base.owed(now))
	i := l.openAt(sp)
	if back := m.token.refundable(l, i, total, now, sp, actual); back != (span{}) {
		counted := back
		if sp.Changed && l.rest.units > 0 { // with a lower cost, the change would have set less aside
			n, _ := m.token.worth(back)
			n = min(n, l.rest.units)
			l.rest.reduce(n)
			counted = m.token.minus(back, m.token.price(n))
		}
		if sp.Changed {
			counted = l.fromLost(m.token, counted)
		}
		base = m.token.regain(base, now, counted)
		first := max(i, 0)
		if i >= 0 && !sp.Open && (l.opens[i].from < sp.At || l.opens[i].part < sp.Part) {
			first = i + 1
		}
		l.gaveBack(m.token, first, now, back)
		if booked {
			l.base = base
			l.touch(0)
		} else {
			s = base
		}
	}
	if i = l.openAt(sp); i >= 0 && sp.Open {
		l.closed(i, now)
	}
	return m.trimmed(s)
}

// owe charges n behind all bookings, as a debt if necessary, up to the maximum debt.
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
		// At the last booking's instant: so no booking is pushed back.
		return m.book(s, Spending{At: max(now, l.newest()), Cost: n})
	}
	s.adjusted(now, n)
	if m.token != nil {
		return m.spendNow(s, now, n, Final)
	}
	return m.charge(s, now, n)
}

// grant takes n from the spending: first from the spending by now, and then from the bookings, the last one
// first. So it moves waiters for bookings up, as a refund does, and loses nothing when a caller leaves.
func (m *Meter) grant(s State, now, n int64) State {
	l := m.bookings(s)
	if r := s.asideAt(now); r.units > 0 {
		if over := n - m.spent(s, now); over > 0 { // the grant exceeds the counted spending
			s.ledger.rest.reduce(min(over, r.units))
		}
	}
	if l == nil {
		s.adjusted(now, -n)
		if s = m.forgive(s, now, n); m.token != nil && s.detail != nil {
			s.ledger.granted(now, s.ledger.total(m.token, now, s.owed(now)))
		}
		return m.trimmed(s)
	}
	if n -= l.reduceNewest(n - min(n, m.forgivable(l.base, now))); n > 0 {
		s.adjusted(now, -n)
		l.base = m.forgive(l.base, now, n)
		l.touch(0)
		if m.token != nil {
			l.granted(now, l.total(m.token, now, l.base.owed(now)))
		}
	}
	return s
}

// forgivable returns how much a grant takes from the base before it takes from bookings. In a leaky bucket
// it takes nothing from the base, because all waiting work is booked. A window before bookings keeps one
// unit: without it the window would end, and the first booking would have to begin the next one.
func (m *Meter) forgivable(base State, now int64) int64 {
	switch {
	case m.leaky != nil:
		return 0
	case m.kind == FixedWindow, m.kind == SlidingCounter:
		return max(0, m.spent(base, now)-1)
	}
	return m.spent(base, now)
}

// adjust charges a delta above 0, and forgives a delta below 0.
func (m *Meter) adjust(s State, now, delta int64) State {
	if delta > 0 {
		return m.owe(s, now, delta)
	}
	return m.grant(s, now, -max(delta, -math.MaxInt64))
}
