package meter

import "slices"

// Migrate returns what a state of another meter is under this one. Bookings keep their instants;
// a log's spendings, and the windows that are counted in, keep theirs too. It leaves
// the given state as it is, for a Peek. It takes time linear in the number of bookings, and
// should not be called if both count alike. The state is up to date: see Refresh.
func (to *Meter) Migrate(from *Meter, s State, now int64) State {
	fromLog, isFrom := from.algorithm.(*slidingLog)
	toLog, isTo := to.algorithm.(*slidingLog)
	switch {
	case isFrom && isTo:
		// Each spending keeps its age, but what the old window has left behind is over.
		return toLog.replaced(fromLog.advance(fromLog.aside(s), now), now).capped(to)
	case isFrom:
		booked, n := fromLog.bookings(s, now)
		return to.fold(to.charged(now, from.spent(s, now)-n), booked)
	case isTo:
		base, booked := from.split(s, now)
		return toLog.carried(to.charged(now, from.spent(base, now)), now, booked).capped(to)
	}
	base, booked := from.split(s, now)
	return to.fold(carrySums(from, to, base, now), booked)
}

// split parts what is spent by now from what is booked for later, in copies. A booking that
// is due was spent under the old limit, whether a decision has come since or not. Fractions of
// a tick are the old limit's, so each booking begins at its whole instant. The state is up to date.
func (m *Meter) split(s State, now int64) (base State, booked []booking) {
	l := m.bookings(s)
	if l == nil {
		return s, nil
	}
	k := l.search(now + 1)
	if base = l.base; k > 0 {
		base = l.list[k-1].after
	}
	booked = slices.Clone(l.list[k:])
	for i := range booked {
		booked[i].part = 0
	}
	return base, booked
}

// carrySums carries over what is spent by now from and to an algorithm that keeps
// sums: exactly where the new plan's state can express it, and else rounded up.
func carrySums(from, to *Meter, s State, now int64) State {
	s = from.advance(s, now)
	switch a, b := from.family(), to.family(); {
	case a == familyBucket && b == familyBucket:
		return to.drain().convert(from.drain(), s, now)
	case a == familyWindow && b == familyWindow:
		if from.kind == Calendar || to.kind == Calendar {
			return between(from, to, s, now).capped(to)
		}
		if from.kind != to.kind {
			s = State{At: s.At, N: from.spent(s, now)}
		}
		return s.capped(to)
	}
	return to.charged(now, from.spent(s, now))
}

// charged returns the state of a key that has spent n at this instant, up to the most that
// the plan lets a key owe.
func (m *Meter) charged(now, n int64) State {
	if n = min(n, m.maxDebt); n > 0 {
		return m.charge(State{At: now}, now, n)
	}
	return State{At: now}
}

// capped returns a state with no more debt than the plan counts.
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

// convert returns what is owed to another bucket as owed to this one: the same number of
// units, and the same fraction of one, rounded up to a fraction of a tick.
func (t *tokenBucket) convert(from *tokenBucket, s State, now int64) State {
	if t.per == from.per && t.units == from.units {
		return s
	}
	n, rem := from.worth(s.owed(now))
	part, left := MulDiv(rem, t.per, from.per)
	if left > 0 {
		part++
	}
	owed := t.plus(t.price(n), span{part / t.units, part % t.units})
	if owed.ticks >= t.horizon {
		owed = span{ticks: t.horizon}
	}
	return State{At: now + owed.ticks, N: owed.frac}
}
