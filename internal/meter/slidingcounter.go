package meter

// slidingCounter estimates the spending of an interval as long as a window, up to now. It has
// two counts. State.N is the count of the window from State.At. State.M is the count of the
// previous window, weighted by the part of it that is still in the interval. A cost passes while
//
//	n + ceil(m · overlap) + cost ≤ units
//
// Cloudflare described this approximation in 2017 ("How we built rate limiting capable of scaling to millions of
// domains"), with a float where this one rounds up. The first window begins with a key's first spending. The others
// follow without a gap until the key is fresh.
//
// At most units pass in each window. In any other interval of the same length at most units
// pass if the spending in the previous window was even, and up to twice units otherwise.
//
// A fresh key has no phase: fresh and roll set State.At to now as soon as
// both counts are 0. Otherwise an idle key would differ from a new one.
type slidingCounter struct {
	per, units int64
	most       int64 // one window's maximum count
}

// roll moves the state to the window of now. Spending above units in one window
// runs over into the next, so the previous window never counts more than units.
func (c *slidingCounter) roll(s State, now int64) State {
	if now-s.At < c.per {
		return s
	}
	k := (now - s.At) / c.per
	start := s.At + k*c.per
	past, over := Mul(k, c.units)
	// Each past window took units of the count. The last of them took the rest, now the previous window's count.
	s.M = min(max(0, s.N-(past-c.units)), c.units)
	s.N = max(0, s.N-past)
	s.At = start
	if over || s.N == 0 && s.M == 0 {
		s.At, s.N, s.M = now, 0, 0
	}
	return s
}

// weight returns the previous window's weighted count at an instant, rounded
// up: all at this window's beginning or earlier, and nothing at its end.
func (c *slidingCounter) weight(s State, now int64) int64 {
	if s.M == 0 {
		return 0
	}
	q, r := MulDiv(s.M, s.At+c.per-max(now, s.At), c.per)
	if r > 0 {
		q++
	}
	return q
}

// earliest returns the instant when the cost fits. Within a window, the weight of the
// previous window only falls. So the cost fits as soon as the weight is low enough. If
// the window's own count is too high for the cost, the cost fits only in a later window.
func (c *slidingCounter) earliest(s State, now, cost int64) int64 {
	s = c.roll(s, now)
	if s.N+cost > c.units {
		s = c.following(s, cost)
	}
	start := max(now, s.At)
	room := c.units - cost - s.N
	if room >= s.M { // the cost fits even if all the previous window counts
		return s.behind(start)
	}
	// m·(end − t)/per ≤ room, solved for t. The weight is rounded up. This makes no difference, because room is an integer.
	left, _ := MulDiv(room, c.per, s.M)
	return s.behind(max(start, Add(s.At, c.per)-left))
}

// following returns the state at the start of the first future window in which the cost fits in addition
// to the overrun of earlier windows. The window before is full, unless the overrun ended there.
func (c *slidingCounter) following(s State, cost int64) State {
	k, used := s.N/c.units, s.N%c.units
	before := c.units
	if used+cost > c.units {
		k++
		before, used = used, 0
	}
	return State{At: Add(s.At, k*c.per), N: used, M: before, detail: s.detail}
}

// spend begins a window if the key is fresh, and otherwise counts in the open window.
func (c *slidingCounter) spend(s State, at, cost int64) State {
	s = c.roll(s, at)
	if s.N == 0 && s.M == 0 {
		s.At = at
	}
	s.N = min(Add(s.N, cost), c.most)
	return s
}

// refund subtracts the spending from its window's count. In the previous
// window's count, a refund takes effect with the window's weight.
func (c *slidingCounter) refund(s State, now int64, sp Spending, actual int64) State {
	s = c.roll(s, now)
	switch back := sp.Cost - actual; {
	case sp.At >= s.At:
		s.N = max(0, s.N-back)
	case sp.At >= s.At-c.per && !sp.Changed:
		// If the limit has changed, the previous window may have been shorter, and the spending may
		// lie before it. Then it no longer counts, and its refund would refund the spending of others.
		s.M = max(0, s.M-back)
	}
	return c.fresh(s, now)
}

// fresh forgets the beginning of the window once nothing counts: a fresh key's first spending begins one.
func (c *slidingCounter) fresh(s State, now int64) State {
	if s.N == 0 && s.M == 0 {
		s.At = now
	}
	return s
}

func (c *slidingCounter) charge(s State, now, n int64) State { return c.spend(s, now, n) }

// forgive takes from this window's count first, and then lowers the previous count until it weighs n less now.
func (c *slidingCounter) forgive(s State, now, n int64) State {
	s = c.roll(s, now)
	if n <= s.N {
		s.N -= n
		return c.fresh(s, now)
	}
	n -= s.N
	s.N = 0
	if weight := c.weight(s, now) - n; weight > 0 {
		// The count is rounded down, so its weight, rounded up, is not above weight.
		s.M, _ = MulDiv(weight, c.per, s.At+c.per-max(now, s.At))
	} else {
		s.M = 0
	}
	return c.fresh(s, now)
}

func (c *slidingCounter) advance(s State, now int64) State { return c.roll(s, now) }

func (c *slidingCounter) remaining(s State, now int64) (n, debt int64) {
	s = c.roll(s, now)
	if s.behind(now) > now || s.At > now {
		return 0, max(0, c.spent(s, now)-c.units)
	}
	return left(c.units - s.N - c.weight(s, now))
}

// Spending in a window counts, with its weight, until the end of the next window.
func (c *slidingCounter) regained(s State) int64 {
	switch {
	case s.N > 0:
		return Add(Add(s.At, (s.N-1)/c.units*c.per), 2*c.per)
	case s.M > 0:
		return Add(s.At, c.per)
	}
	return s.At
}

// spent counts the present weight of the previous window. The window's
// lost weight is regained, and does not come back under another limit.
func (c *slidingCounter) spent(s State, now int64) int64 {
	s = c.roll(s, now)
	return Add(s.N+c.weight(s, now), ahead(s, now, c.per, c.units))
}
