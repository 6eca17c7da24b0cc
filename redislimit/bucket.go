package redislimit

// The buckets, as the root package counts them, in microseconds: a debt in time.
// The state's at, and its n in 1/units µs, say when all is regained. The scripts
// decide with the same arithmetic; this half says how the key stands.

// price returns the time in which n units are regained, at most a century.
func (p *plan) price(n int64) span {
	if n == 1 {
		return p.one
	}
	return p.quotient(n)
}

func (p *plan) quotient(n int64) span {
	us, frac := mulDiv(n, p.per, p.units)
	if us >= century {
		return span{us: century}
	}
	return span{us, frac}
}

// owed returns how long all that is spent still takes to regain.
func (s state) owed(now int64) span {
	if s.at < now {
		return span{}
	}
	return span{s.at - now, s.n}
}

// fits returns the first instant at which owed + price ≤ full, rounded up.
func (p *plan) fits(s state, now, cost int64) int64 {
	us, frac := s.at, s.n
	if us < now {
		us, frac = now, 0
	}
	price := p.price(cost)
	at := us - p.full.us + price.us
	if frac += price.frac - p.full.frac; frac > p.units {
		at += 2
	} else if frac > 0 {
		at++
	}
	return max(at, now)
}

// leaves returns when what enters a leaky bucket now may leave: after all before it.
// If that is not a whole microsecond it is rounded up, and part says of what.
func (p *plan) leaves(s state, now int64) (at, part int64) {
	if at = s.bucketRegained(); at <= now {
		return now, 0
	}
	return at, s.n
}

// owe adds a cost that is spent at an instant to what is owed, never more than a century.
func (p *plan) owe(s state, at, cost int64) state {
	if s.bucketRegained() < at || p.kind == kindToken && s.at < at {
		s.at, s.n = at, 0
	}
	price := p.price(cost)
	d := span{s.at + price.us, s.n + price.frac}
	if d.frac >= p.units {
		d.us, d.frac = d.us+1, d.frac-p.units
	}
	if d.us-at >= century {
		d = span{us: at + century}
	}
	s.at, s.n = d.us, d.frac
	return s
}

// room returns the largest cost that fits at now.
func (p *plan) room(s state, now int64) int64 {
	owed := s.owed(now)
	if owed == (span{}) {
		return p.capacity
	}
	left := span{p.full.us - owed.us, p.full.frac - owed.frac}
	if left.frac < 0 {
		left.us, left.frac = left.us-1, left.frac+p.units
	}
	if left.us < 0 {
		return 0
	}
	n, rem := mulDiv(left.us, p.units, p.per)
	return n + (rem+left.frac)/p.per
}

func (s state) bucketRegained() int64 {
	if s.n > 0 {
		return s.at + 1
	}
	return s.at
}
