package meter

import "math"

// Allow spends a cost if it fits now or can enter a leaky bucket's queue, and
// reports whether it did. It is Take for callers that need only the yes or no.
func (m *Meter) Allow(s *State, now, cost int64) bool {
	t := m.token
	if t == nil || s.detail != nil {
		return m.allow(s, now, cost)
	}
	// The most frequent case, without a call. The debt is counted from now,
	// because the sum of an instant and two horizons may be above 2^63.
	owed := span{s.At - now, s.N}
	if owed.ticks < 0 {
		owed = span{}
	}
	price := t.one
	if cost != 1 {
		price = t.price(cost)
	}
	if owed = t.plus(owed, price); t.full.less(owed) {
		return false
	}
	s.At, s.N = now+owed.ticks, owed.frac
	return true
}

// allow is Allow for any algorithm, and with bookings.
func (m *Meter) allow(s *State, now, cost int64) bool {
	m.Advance(s, now)
	if s.Line() != nil {
		return m.leaky != nil && !m.Take(s, Moment{now, now}, cost, math.MaxInt64, Final).Denied(now)
	}
	if m.first(*s, now, cost) > now {
		return false
	}
	if m.leaky == nil && (s.detail == nil || m.log && !s.loose()) {
		*s = m.spend(*s, now, cost)
		if m.log {
			s.passed(now, cost, Final)
		}
		return true
	}
	o := Offer{At: now}
	if m.leaky != nil {
		o.At, o.Part = m.leaky.place(*s, now, cost)
	}
	m.Accept(s, now, o, cost, Final)
	return true
}

// Simple reports whether the state has no bookings and the meter never delays a cost. If so, Spend is a shorter way.
func (m *Meter) Simple(s *State) bool { return s.detail == nil && m.leaky == nil }

// Spend is Take without bookings. If the cost fits now, it spends it and returns now.
// Otherwise it returns the instant when the cost fits. The state must be Simple.
func (m *Meter) Spend(s *State, now, cost int64) (at int64) {
	if m.advances {
		*s = m.advance(*s, now)
	}
	if at = m.earliest(*s, now, cost); at <= now {
		*s = m.spend(*s, now, cost)
	}
	return at
}

// SpendBucket is Spend for a Bucket. It also returns the debt in time, for StandingOf. The state is Simple.
func (m *Meter) SpendBucket(s *State, now, cost int64) (at int64, owed Owed) {
	t := m.token
	before := span{s.At - now, s.N} // as in Allow
	if before.ticks < 0 {
		before = span{}
	}
	price := t.one
	if cost != 1 {
		price = t.price(cost)
	}
	after := t.plus(before, price)
	if t.full.less(after) {
		over := t.minus(after, t.full)
		return now + t.regained(State{At: over.ticks, N: over.frac}), before
	}
	s.At, s.N = now+after.ticks, after.frac
	return now, after
}

// Offer describes how a cost would be spent, if it may be spent up to ahead after the
// reading. In a leaky bucket, ahead is the maximum delay in the queue; the instant when
// the cost enters the queue depends on the room there. The cost is from 1 to the capacity.
func (m *Meter) Offer(s State, mo Moment, cost, ahead int64) Offer {
	o := Offer{Retry: mo.Reading}
	if s.detail != nil {
		s = m.view(s)
	}
	switch t := m.token; {
	case s.detail != nil:
		o.At = m.first(s, mo.Now, cost)
	case t != nil: // as m.earliest, but a direct call takes less time
		o.At = t.earliest(s, mo.Now, cost)
	default:
		o.At = m.earliest(s, mo.Now, cost)
	}
	if m.leaky != nil {
		if o.At > mo.Now {
			o.Retry = o.At // when the queue has room
		}
		o.At, o.Part = m.leaky.place(s, mo.Now, cost)
	}
	if m.token != nil && s.detail != nil && o.At == mo.Now {
		o.Part = s.ledger.part(mo.Now)
	}
	if ahead = min(ahead, m.maxAhead); o.At > mo.Now && ahead < farAhead {
		o.Retry = max(o.Retry, o.At-ahead)
	}
	return o
}

// OfferAfter is Offer, but the cost may go before bookings. The cost comes no earlier than the instant after or the
// last booking, whichever is earlier. In a leaky bucket it is Offer, because nothing goes before bookings in the queue.
func (m *Meter) OfferAfter(s State, mo Moment, after, cost, ahead int64) Offer {
	o := m.Offer(s, mo, cost, ahead)
	if after <= mo.Now || s.detail == nil || m.leaky != nil {
		return o
	}
	s = m.view(s)
	if after = min(after, m.newest(s, mo.Now)); o.At >= after {
		return o
	}
	o = Offer{At: m.first(s, after, cost), Retry: mo.Reading}
	if ahead = min(ahead, m.maxAhead); ahead < farAhead {
		o.Retry = max(o.Retry, o.At-ahead)
	}
	return o
}

// Take is Advance, Offer, and Accept if the offer is not a denial.
func (m *Meter) Take(s *State, mo Moment, cost, ahead int64, keep Keep) Offer {
	m.Advance(s, mo.Now)
	if ahead > 0 && s.Line() != nil {
		s.Line().exact() // a booking keeps its instant
	}
	o := m.Offer(*s, mo, cost, ahead)
	switch {
	case o.Denied(mo.Reading):
	case s.detail == nil && keep == Final: // the first case of Accept: most decisions save the call
		*s = m.spend(*s, o.At, cost)
	default:
		m.Accept(s, mo.Now, o, cost, keep)
	}
	return o
}

// Accept spends a cost as it was offered, in a state advanced to now. No other call may come in
// between. Unless keep is Final, a spending later than now is booked: all can be given back until then.
func (m *Meter) Accept(s *State, now int64, o Offer, cost int64, keep Keep) {
	l := s.Line()
	if l != nil {
		l.forget(m.newest(*s, now))
		if s.loose() {
			l.end.known = false
		} else if l.end.known {
			defer l.end.spend(m, o.At, cost)
		}
	}
	p := s.formers()
	if p != nil && m.later(*s, now, o, keep) {
		if m.log || keep == Final {
			*s = m.forget(*s, now)
		}
		p = nil
	}
	switch {
	case s.loose() && m.newest(*s, now) > o.At:
		sp := o.Spending(cost)
		sp.Open = keep == Open
		*s = m.slip(*s, now, sp)
	case m.token != nil && s.detail == nil && keep == Final: // the next case by a direct call, which takes less time
		*s = m.token.spend(*s, o.At, cost)
	case m.log, s.detail == nil && keep == Final:
		*s = m.spend(*s, o.At, cost)
	case o.At > now && (keep != Final || l != nil || m.bookings(*s) != nil):
		sp := o.Spending(cost)
		sp.Open = keep == Open
		*s = m.book(*s, sp)
	case m.token != nil && o.At <= now:
		*s = m.spendNow(*s, now, cost, keep)
	default:
		*s = m.spend(*s, o.At, cost)
	}
	if p != nil {
		p.passed(*s, now, cost, keep)
	}
}

// later reports whether former limits are charged with an accepted offer only when its instant has come.
func (m *Meter) later(s State, now int64, o Offer, keep Keep) bool {
	return o.At > now && (m.leaky == nil || keep != Final || s.Line() != nil || m.bookings(s) != nil)
}

// ServeAhead serves the first turn at an instant still ahead of the clock, as a booking. If there is a later booking,
// it reports false. It is for clocks, for example in tests, that do not follow real time while calls wait on them.
func (m *Meter) ServeAhead(s *State) bool {
	l := s.Line()
	t := l.first
	at, part, _ := m.due(*s, l)
	if m.newest(*s, l.now) > at {
		return false
	}
	t.Spent = Spending{At: at, Part: part, Cost: t.Cost, Open: t.Open}
	if m.log {
		*s = m.forget(*s, l.now)
	}
	*s = m.book(*s, t.Spent)
	l.now = at
	if l.over(t); l.first != nil {
		l.first.Rouse()
	} else {
		s.ledger.line = nil
	}
	return true
}
