package ratelimit

// carry returns what a state of one plan is under another. Bookings keep their
// instants; the log's spendings, and the windows that are counted in, keep theirs too.
// It leaves the state's ledger alone.
func carry(from, to *plan, s state, now int64) state {
	if from.equals(to) {
		return s
	}
	base, booked := s, ring{}
	if s.ledger != nil {
		base, booked = from.split(s, now)
	}
	base = carrySpent(from, to, base, now)
	switch log, isLog := to.algorithm.(*slidingLog); {
	case !isLog:
		return to.fold(&ledger{entries: booked, bookings: &bookings{base: base}})
	case !from.log:
		return log.carried(base, now, &booked).capped(to)
	}
	for i := range booked.n {
		base = to.spend(base, booked.get(i).at, booked.get(i).cost)
	}
	return base
}

// split parts what is spent by now from what is booked for later, in copies.
func (p *plan) split(s state, now int64) (base state, booked ring) {
	if p.log {
		return p.splitLog(s, now)
	}
	base, booked = s.base, s.entries.clone()
	k := 0
	for ; k < booked.n && booked.slot(k).at <= now; k++ {
		base = p.replay(base, s.ledger.get(k))
	}
	if k > 0 {
		booked.popFront(k)
	}
	return base, booked
}

func (p *plan) splitLog(s state, now int64) (base state, booked ring) {
	base = s
	base.ledger = &ledger{entries: s.entries.clone()}
	base = p.advance(base, now)
	for r := &base.entries; r.newest() > now; {
		e := r.get(r.n - 1)
		base.n -= r.reduceNewest(e.cost)
		booked.insert(e)
	}
	return base, booked
}

// carrySpent carries over what is spent by now, exactly where the new plan's state
// can express it, and else rounded up.
func carrySpent(from, to *plan, s state, now int64) state {
	s = from.advance(s, now)
	switch a, b := from.limit.Algorithm, to.limit.Algorithm; {
	case a == b && a >= AlgorithmFixedWindow:
		return s.capped(to)
	case from.drain() != nil && to.drain() != nil:
		return to.drain().convert(from.drain(), s, now)
	case from.windowed() && to.windowed():
		return state{at: s.at, n: from.spent(s, now)}.capped(to)
	}
	if n := min(from.spent(s, now), to.maxDebt); n > 0 {
		return to.charge(state{at: now}, now, n)
	}
	return state{at: now}
}

// capped returns a window's state with no more debt than the plan counts.
func (s state) capped(p *plan) state {
	if p.log {
		s.m = min(s.m, p.maxDebt)
	} else {
		s.n = min(s.n, p.maxDebt)
	}
	return s
}

// convert returns what is owed to another bucket, owed to this one: as many units,
// and as much of one.
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
