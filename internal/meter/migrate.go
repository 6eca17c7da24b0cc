package meter

import "slices"

// Migrate converts a state of another meter to this one. Bookings keep their instants, as do a log's spendings and the
// beginnings of windows. It leaves the given state as it is, for a Peek. It takes time linear in the number of bookings, and
// should not be called if both count alike. The state is up to date: see Refresh.
//
// The meaning of a state depends on the algorithm, so there are three ways. Between two logs each spending keeps its instant.
// Between a log and any other, the spendings become a sum, or a sum becomes one spending. All others keep sums: see carrySums.
// Bookings are parted first and booked again at their instants.
func (to *Meter) Migrate(from *Meter, s State, now int64) State {
	if (to.held == nil) != (from.held == nil) {
		return State{At: now} // units in use are no spending
	}
	if to.held != nil {
		return to.convert(from, s, now)
	}
	return to.loosened(from, to.under(from, s, now), now)
}

// convert is Migrate without former limits.
func (to *Meter) convert(from *Meter, s State, now int64) State {
	fromLog, isFrom := from.algorithm.(*slidingLog)
	toLog, isTo := to.algorithm.(*slidingLog)
	x := from.leave(s, now)
	var r rest
	switch {
	case isFrom && isTo:
		s, r = toLog.between(fromLog, s, now, x)
		s = s.capped(to)
	case isFrom: // n is the booked cost, which spent counts too
		booked, n := fromLog.bookings(s, now)
		s, r = to.lowered(to.charged(now, from.spent(s, now)-n), now, from, x)
		s = to.fold(s, booked)
	case isTo:
		base, booked := from.split(s, now)
		base, r = to.lowered(to.charged(now, from.spent(base, now)), now, from, x)
		s = toLog.carried(base, now, booked).capped(to)
	case from.token != nil && to.token != nil:
		base, booked := from.split(s, now)
		base, r = to.lowered(carrySums(from, to, base, now), now, from, x)
		return to.reopened(from, s, to.fold(base, booked).setAside(r), now)
	default:
		base, booked := from.split(s, now)
		for i := range booked {
			booked[i].open = 0
		}
		base, r = to.lowered(carrySums(from, to, base, now), now, from, x)
		s = to.fold(base, booked)
	}
	return s.setAside(r)
}

// split separates the spending by now from the later bookings, in copies. A booking that is due was spent under the old limit,
// whether a decision has come since or not. Fractions of a tick are the old limit's, so each booking begins at its whole
// instant. The state is up to date.
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
	k := l.search(now + 1) // the first that is not due
	if base = l.base; k > 0 {
		base = l.list[k-1].after
	}
	return base, l.list[k:]
}

// Charge adds the spending in a state of another meter, as of now, to a state of this one, as a debt if necessary. Its bookings
// are booked here at the same instant or later. The other state is up to date, and stays as it is.
func (to *Meter) Charge(s *State, now int64, from *Meter, other State) {
	if to.held != nil || from.held != nil {
		return // of calls that have ended with their process
	}
	var booked []booking
	var n, debt int64 // the spending by now, and the debt of a log, which may lie behind bookings
	if l, isFrom := from.algorithm.(*slidingLog); isFrom {
		other = l.advance(l.aside(other), now)
		booked, n = l.bookings(other, now)
		debt = other.M
		n = from.spent(other, now) - n - debt
	} else {
		other, booked = from.split(other, now)
		n = from.spent(other, now)
	}
	// A window that was booked there may end later than the window here that contains its instant, so its count is booked for
	// the next window.
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
			// A log does not queue a charge: where the booking's window is full, it is spent when there is room, and a part
			// that never fits is a debt.
			over := max(0, cost-log.units)
			cost, debt = cost-over, debt+over
			at = max(at, log.earliest(*s, now, cost))
		}
		if at-now > to.horizon { // nothing is booked so far ahead, and ReadState reads nothing that is
			debt = Add(debt, cost)
		} else if cost = min(cost, to.maxDebt-to.spent(*s, now)); cost > 0 {
			*s = to.book(*s, Spending{At: at, Cost: cost})
		}
	}
	*s = to.owe(*s, now, debt)
}

// behind returns now, or the instant behind which a later spending queues if that is later.
func (m *Meter) behind(s State, now int64) int64 {
	if l, ok := m.algorithm.(*slidingLog); ok {
		return max(now, l.newest(s))
	}
	return s.behind(now)
}

// carrySums carries the spending by now over from and to an algorithm that keeps sums: exactly where the new meter's state can
// express it, and otherwise rounded up.
func carrySums(from, to *Meter, s State, now int64) State {
	s = from.advance(s, now)
	switch a, b := from.family(), to.family(); {
	case a == familyBucket && b == familyBucket:
		return to.bucket().convert(from.bucket(), s, now)
	case a == familyWindow && b == familyWindow:
		if from.kind == Calendar || to.kind == Calendar {
			return between(from, to, s, now).capped(to)
		}
		switch {
		case from.kind != to.kind:
			s = State{At: s.At, N: from.spent(s, now)}
		case from.kind == SlidingCounter && shorter(to, from):
			// The window before would overlap by a smaller part, and a limit that is changed back and forth would regain the
			// difference each time. So all that counts is in a window that begins now.
			s = State{At: now, N: from.spent(s, now)}
		}
		return s.aged(from, to, now).capped(to)
	}
	return to.charged(now, from.spent(s, now))
}

// shorter reports whether a meter's windows are shorter than another's.
func shorter(m, other *Meter) bool {
	a, _ := m.windows()
	b, _ := other.windows()
	return a < b
}

// charged returns the state of a key that has spent n at this instant, up to the most that
// the meter lets a key owe.
func (m *Meter) charged(now, n int64) State {
	if n = min(n, m.maxDebt); n > 0 {
		return m.charge(State{At: now}, now, n)
	}
	return State{At: now}
}

// capped returns a state with no more debt than the meter counts.
func (s State) capped(m *Meter) State {
	switch m.family() {
	case familyWindow:
		s.N = min(s.N, m.maxDebt)
	case familyLog:
		s.M = min(s.M, m.maxDebt)
	case familyBucket: // see convert
	}
	return s
}

// convert converts a debt in another bucket to this one: the same number of units, and the same fraction of one, rounded up to
// a fraction of a tick.
func (t *tokenBucket) convert(from *tokenBucket, s State, now int64) State {
	if t.per == from.per && t.units == from.units {
		return s
	}
	owed := t.worthUp(from, s.owed(now))
	if owed.ticks >= t.horizon {
		owed = span{ticks: t.horizon}
	}
	return State{At: now + owed.ticks, N: owed.frac}
}

// worthUp returns the span in which as many units are regained as in one of another bucket: whole units, and the same fraction of
// one, rounded up to a fraction of a tick.
func (t *tokenBucket) worthUp(from *tokenBucket, d span) span { return t.worthOf(from, d, 1) }

// worthDown is worthUp rounded down.
func (t *tokenBucket) worthDown(from *tokenBucket, d span) span { return t.worthOf(from, d, 0) }

func (t *tokenBucket) worthOf(from *tokenBucket, d span, up int64) span {
	n, rem := from.worth(d)
	part, left := MulDiv(rem, t.per, from.per)
	if left > 0 {
		part += up
	}
	return t.plus(t.price(n), span{part / t.units, part % t.units})
}
