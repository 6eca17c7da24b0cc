package redislimit

// The sliding counter: n spent in the window that begins at at, and m in the one
// before, weighed by how much of that still overlaps, rounded up.

func (p *plan) rollCounter(s state, now int64) state {
	if now-s.at < p.per {
		return s
	}
	k := (now - s.at) / p.per
	past := p.worthOf(k)
	s.m = min(max(0, s.n-(past-p.units)), p.units)
	s.n = max(0, s.n-past)
	s.at += k * p.per
	if s.n == 0 && s.m == 0 {
		s.at = now
	}
	return s
}

func (p *plan) weight(s state, now int64) int64 {
	if s.m == 0 {
		return 0
	}
	q, r := mulDiv(s.m, s.at+p.per-max(now, s.at), p.per)
	return q + min(r, 1)
}

func (p *plan) earliestCounter(s state, now, cost int64) int64 {
	s = p.rollCounter(s, now)
	if s.n+cost > p.units {
		s = p.following(s, cost)
	}
	start, room := max(now, s.at), p.units-cost-s.n
	if room >= s.m {
		return start
	}
	left, _ := mulDiv(room, p.per, s.m) // m·(end − t)/per ≤ room, solved for t
	return max(start, s.at+p.per-left)
}

// following returns the state at the start of the first window to come in which the
// cost fits beside what runs over into it.
func (p *plan) following(s state, cost int64) state {
	k, used, before := s.n/p.units, s.n%p.units, p.units
	if used+cost > p.units {
		k, before, used = k+1, used, 0
	}
	return state{at: s.at + k*p.per, n: used, m: before}
}

func (p *plan) spendCounter(s state, at, cost int64) state {
	s = p.rollCounter(s, at)
	if s.n == 0 && s.m == 0 {
		s.at = at
	}
	s.n += cost
	return s
}

func (p *plan) remainingCounter(s state, now int64) int64 {
	s = p.rollCounter(s, now)
	if s.at > now {
		return 0
	}
	return max(0, p.units-s.n-p.weight(s, now))
}

func (p *plan) regainedCounter(s state) int64 {
	switch {
	case s.n > 0:
		return s.at + (s.n-1)/p.units*p.per + 2*p.per
	case s.m > 0:
		return s.at + p.per
	}
	return s.at
}
