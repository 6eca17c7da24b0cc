package meter

// convert is Migrate for a state without former limits.
func (to *Meter) convert(from *Meter, s State, now int64) State {
	fromLog, isFrom := from.algorithm.(*slidingLog)
	toLog, isTo := to.algorithm.(*slidingLog)
	x := from.leave(s, now)
	var r rest
	switch {
	case isFrom && isTo:
		s, r = toLog.between(fromLog, s, now, x)
		s = s.capped(to)
	case isFrom: // n is the booked cost, and spent counts it too
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

// behind returns the instant behind which a later spending queues, or now if that is later.
func (m *Meter) behind(s State, now int64) int64 {
	if l, ok := m.algorithm.(*slidingLog); ok {
		return max(now, l.newest(s))
	}
	return s.behind(now)
}

// carrySums carries the spending by now over between algorithms with sums. It is exact
// where the new meter's state can express the spending, and rounds up otherwise.
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
			// The previous window would overlap by a smaller part, and each change of limit back and
			// forth would regain the difference. So all spending goes into a window from now on.
			s = State{At: now, N: from.spent(s, now)}
		}
		return s.aged(from, to, now).capped(to)
	}
	return to.charged(now, from.spent(s, now))
}

// between carries the present window's spending over from or to a calendar: it stays spent until the other limit's present
// window ends.
func between(from, to *Meter, s State, now int64) State {
	a, _ := from.algorithm.(*calendar)
	b, _ := to.algorithm.(*calendar)
	switch {
	case a != nil && b != nil && a.windows == b.windows:
		return s
	case from.spent(s, now) == 0:
		return State{At: now}
	case b == nil: // the other window begins now
		return State{At: now, N: s.N}
	}
	return State{At: s.At, N: from.spent(s, now), M: b.windows.At(now).Ordinal}
}

// shorter reports whether a meter's windows are shorter than another's.
func shorter(m, other *Meter) bool {
	a, _ := m.windows()
	b, _ := other.windows()
	return a < b
}

// charged returns the state after spending n now, up to the meter's maximum debt.
func (m *Meter) charged(now, n int64) State {
	if n = min(n, m.maxDebt); n > 0 {
		return m.charge(State{At: now}, now, n)
	}
	return State{At: now}
}

// capped returns a state with at most the meter's maximum debt.
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
