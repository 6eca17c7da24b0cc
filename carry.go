package ratelimit

// carry returns what a state of one plan is under another. Bookings keep their instants;
// a log's spendings, and the windows that are counted in, keep theirs too. It leaves
// the given state as it is, for a Peek. It takes time linear in the number of bookings.
func carry(from, to *plan, s state, now int64) state {
	if from.equals(to) {
		return s
	}
	fromLog, isFrom := from.algorithm.(*slidingLog)
	toLog, isTo := to.algorithm.(*slidingLog)
	switch {
	case isFrom && isTo:
		// Each spending keeps its age, but what the old window has left behind is over.
		return toLog.replaced(fromLog.advance(fromLog.aside(s), now), now).capped(to)
	case isFrom:
		booked, n := fromLog.bookings(s, now)
		return to.fold(&ledger{entries: booked, base: to.charged(now, from.spent(s, now)-n)})
	case isTo:
		base, booked := from.split(s, now)
		return toLog.carried(to.charged(now, from.spent(base, now)), now, &booked).capped(to)
	}
	base, booked := from.split(s, now)
	return to.fold(&ledger{entries: booked, base: carrySums(from, to, base, now)})
}

// split parts what is spent by now from what is booked for later, in copies. A booking that
// is due was spent under the old limit, whether a decision has come since or not.
func (p *plan) split(s state, now int64) (base state, booked ring[stretch]) {
	l := p.bookings(s)
	if l == nil {
		return s, ring[stretch]{}
	}
	base, booked = l.base, l.entries.clone()
	k := 0
	for ; k < booked.len() && booked.slot(k).at <= now; k++ {
		base = p.replay(base, l.get(k))
	}
	if k > 0 {
		booked.popFront(k)
	}
	return base, booked
}

// carrySums carries over what is spent by now from and to an algorithm that keeps
// sums: exactly where the new plan's state can express it, and else rounded up.
func carrySums(from, to *plan, s state, now int64) state {
	s = from.advance(s, now)
	switch a, b := from.family(), to.family(); {
	case a == familyBucket && b == familyBucket:
		return to.drain().convert(from.drain(), s, now)
	case a == familyWindow && b == familyWindow:
		if from.limit.Algorithm != to.limit.Algorithm {
			s = state{at: s.at, n: from.spent(s, now)}
		}
		return s.capped(to)
	}
	return to.charged(now, from.spent(s, now))
}

// charged returns the state of a key that has spent n at this instant, up to the most that
// the plan lets a key owe.
func (p *plan) charged(now, n int64) state {
	if n = min(n, p.maxDebt); n > 0 {
		return p.charge(state{at: now}, now, n)
	}
	return state{at: now}
}

// capped returns a state with no more debt than the plan counts.
func (s state) capped(p *plan) state {
	switch p.family() {
	case familyWindow:
		s.n = min(s.n, p.maxDebt)
	case familyLog:
		s.m = min(s.m, p.maxDebt)
	case familyBucket: // see convert
	}
	return s
}

// convert returns what is owed to another bucket as owed to this one: the same number of
// units, and the same fraction of one, rounded up to a fraction of a nanosecond.
func (t *tokenBucket) convert(from *tokenBucket, s state, now int64) state {
	if t.per == from.per && t.units == from.units {
		return s
	}
	n, rem := from.worth(s.owed(now))
	part, left := mulDiv(rem, t.per, from.per)
	if left > 0 {
		part++
	}
	owed := t.plus(t.price(n), span{part / t.units, part % t.units})
	if owed.ns >= century {
		owed = span{ns: century}
	}
	return state{at: now + owed.ns, n: owed.frac}
}
