package redislimit

// The fixed window: n spent in the window that begins at at. What is above units runs
// over into the windows that follow.

func (p *plan) rollFixed(s state, now int64) state {
	if now-s.at < p.per {
		return s
	}
	k := (now - s.at) / p.per
	if past := p.worthOf(k); s.n > past {
		s.at, s.n = s.at+k*p.per, s.n-past
		return s
	}
	s.at, s.n = now, 0
	return s
}

// worthOf returns what k windows take in, at most 2^52 and so all that is counted.
func (p *plan) worthOf(k int64) int64 {
	if k > most/p.units {
		return most
	}
	return k * p.units
}

func (p *plan) earliestFixed(s state, now, cost int64) int64 {
	s = p.rollFixed(s, now)
	if s.n+cost <= p.units {
		return max(now, s.at)
	}
	k, used := s.n/p.units, s.n%p.units // a cost never straddles two windows
	if used+cost > p.units {
		k++
	}
	return s.at + k*p.per
}

func (p *plan) spendFixed(s state, at, cost int64) state {
	s = p.rollFixed(s, at)
	if s.n == 0 {
		s.at = at
	}
	s.n += cost
	return s
}

func (p *plan) remainingFixed(s state, now int64) int64 {
	s = p.rollFixed(s, now)
	if s.at > now {
		return 0
	}
	return max(0, p.units-s.n)
}
