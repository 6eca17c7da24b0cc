package ratelimit

import "math"

// fixedWindow counts what is spent in windows: state.n in the one that begins at
// state.at. The first begins with a key's first spending, the next with the first
// spending after its end. What is above units in one window, by debt or by a lowered
// limit, runs over: the windows that follow it without a gap are used up by it.
//
// In each window at most units pass. A span of two windows may see twice that in a
// shorter time, around the end of the first.
type fixedWindow struct {
	per, units int64
	most       int64 // what is counted at most
}

// roll moves the state on to the window that now is in. If the windows that have passed
// since took all that was spent, there is no window: the next spending begins one.
func (w *fixedWindow) roll(s state, now int64) state {
	if now-s.at < w.per {
		return s
	}
	k := (now - s.at) / w.per
	if past, over := mul(k, w.units); !over && s.n > past {
		s.at, s.n = s.at+k*w.per, s.n-past
		return s
	}
	s.at, s.n = now, 0
	return s
}

// earliest: a cost never straddles two windows, so one that does not fit beside what runs
// over into a window goes to the next.
func (w *fixedWindow) earliest(s state, now, cost int64) int64 {
	s = w.roll(s, now)
	if s.n+cost <= w.units {
		return s.behind(max(now, s.at))
	}
	k, used := s.n/w.units, s.n%w.units
	if used+cost > w.units {
		k++
	}
	return s.behind(satAdd(s.at, k*w.per))
}

// spend counts up to most: what a booked window holds under a changed limit may be more.
func (w *fixedWindow) spend(s state, at, cost int64) state {
	s = w.roll(s, at)
	if s.n == 0 {
		s.at = at
	}
	s.n = min(satAdd(s.n, cost), w.most)
	return s
}

// refund gives back what the current window counts. A change of limit keeps the window's
// beginning, so a spending since then is in its count whatever the limit was.
func (w *fixedWindow) refund(s state, now int64, sp spending, actual int64) state {
	s = w.roll(s, now)
	if sp.at < s.at {
		return s // it no longer counts
	}
	return w.forgive(s, now, sp.cost-actual)
}

func (w *fixedWindow) charge(s state, now, n int64) state { return w.spend(s, now, n) }

// forgive ends the window with the last that it counts, so that the key is fresh at once.
func (w *fixedWindow) forgive(s state, now, n int64) state {
	s = w.roll(s, now)
	if s.n -= n; s.n <= 0 {
		s.at, s.n = now, 0
	}
	return s
}

func (w *fixedWindow) advance(s state, now int64) state { return w.roll(s, now) }

// remaining: a window that is booked for later has to be waited for.
func (w *fixedWindow) remaining(s state, now int64) int64 {
	s = w.roll(s, now)
	if s.behind(now) > now || s.at > now {
		return 0
	}
	return max(0, w.units-s.n)
}

// regained returns the end of the last window that is needed for what is spent.
func (w *fixedWindow) regained(s state) int64 {
	return satAdd(s.at, (s.n+w.units-1)/w.units*w.per)
}

func (w *fixedWindow) spent(s state, now int64) int64 {
	s = w.roll(s, now)
	return satAdd(s.n, ahead(s, now, w.per, w.units))
}

// ahead returns what the windows hold that lie between now and a window that is booked for
// later. They count as full: nothing fits before a booking.
func ahead(s state, now, per, units int64) int64 {
	if s.at <= now {
		return 0
	}
	n, over := mul((s.at-now+per-1)/per, units)
	if over {
		return math.MaxInt64
	}
	return n
}

// slidingCounter estimates what was spent in the last window's length from two
// counts: state.n of the window that begins at state.at, and state.m of the one
// before it, weighed by how much of it still overlaps. A cost passes while
//
//	n + ceil(m · overlap) + cost ≤ units
//
// as in the approximation that Cloudflare described in 2017 ("How we built rate
// limiting capable of scaling to millions of domains"), rounded up instead of
// to a float. The first window begins with a key's first spending; the others
// follow without a gap until the key is fresh.
//
// In each window at most units pass, and at most units in the last window's length if what
// the window before counted was spent evenly. If it was not, up to twice units may pass.
type slidingCounter struct {
	per, units int64
	most       int64 // what is counted at most in one window
}

// roll moves the state on to the window that now is in. What is above units in one
// window runs over into the next, so the window before never counts more than units.
func (c *slidingCounter) roll(s state, now int64) state {
	if now-s.at < c.per {
		return s
	}
	k := (now - s.at) / c.per
	start := s.at + k*c.per
	past, over := mul(k, c.units)
	s.m = min(max(0, s.n-(past-c.units)), c.units)
	s.n = max(0, s.n-past)
	s.at = start
	if over || s.n == 0 && s.m == 0 {
		s.at, s.n, s.m = now, 0, 0
	}
	return s
}

// weight returns what of the window before still counts at an instant: all of it at the
// beginning of this one or earlier, nothing at its end, and rounded up in between.
func (c *slidingCounter) weight(s state, now int64) int64 {
	if s.m == 0 {
		return 0
	}
	q, r := mulDiv(s.m, s.at+c.per-max(now, s.at), c.per)
	if r > 0 {
		q++
	}
	return q
}

// earliest: in a window the weight of the one before only falls, so either the cost fits
// as soon as the weight is low enough, or its own count is full and a later window is.
func (c *slidingCounter) earliest(s state, now, cost int64) int64 {
	s = c.roll(s, now)
	if s.n+cost > c.units {
		s = c.following(s, cost)
	}
	start := max(now, s.at)
	room := c.units - cost - s.n
	if room >= s.m {
		return s.behind(start)
	}
	// m·(end − t)/per ≤ room, solved for t.
	left, _ := mulDiv(room, c.per, s.m)
	return s.behind(max(start, satAdd(s.at, c.per)-left))
}

// following returns the state at the start of the first window to come in which
// the cost fits beside what runs over into it.
func (c *slidingCounter) following(s state, cost int64) state {
	k, used := s.n/c.units, s.n%c.units
	before := c.units
	if used+cost > c.units {
		k++
		before, used = used, 0
	}
	return state{at: satAdd(s.at, k*c.per), n: used, m: before, detail: s.detail}
}

// spend begins a window if the key is fresh, and else counts in the one that is open.
func (c *slidingCounter) spend(s state, at, cost int64) state {
	s = c.roll(s, at)
	if s.n == 0 && s.m == 0 {
		s.at = at
	}
	s.n = min(satAdd(s.n, cost), c.most)
	return s
}

// refund takes the spending out of the count that it is in. Until the window before has
// left, a refund of what it counts takes effect with its weight.
func (c *slidingCounter) refund(s state, now int64, sp spending, actual int64) state {
	s = c.roll(s, now)
	switch back := sp.cost - actual; {
	case sp.at >= s.at:
		s.n = max(0, s.n-back)
	case sp.at >= s.at-c.per && !sp.changed:
		// If the limit has changed, the window before may have been shorter, and the
		// spending may lie before it.
		s.m = max(0, s.m-back)
	}
	return c.fresh(s, now)
}

// fresh forgets where the window began once nothing counts any more: a fresh key's first
// spending begins one.
func (c *slidingCounter) fresh(s state, now int64) state {
	if s.n == 0 && s.m == 0 {
		s.at = now
	}
	return s
}

func (c *slidingCounter) charge(s state, now, n int64) state { return c.spend(s, now, n) }

// forgive takes from this window's count first, and then lowers the one before by so much
// that it weighs n less now.
func (c *slidingCounter) forgive(s state, now, n int64) state {
	s = c.roll(s, now)
	if n <= s.n {
		s.n -= n
		return c.fresh(s, now)
	}
	n -= s.n
	s.n = 0
	if weight := c.weight(s, now) - n; weight > 0 {
		s.m, _ = mulDiv(weight, c.per, s.at+c.per-max(now, s.at))
	} else {
		s.m = 0
	}
	return c.fresh(s, now)
}

func (c *slidingCounter) advance(s state, now int64) state { return c.roll(s, now) }

func (c *slidingCounter) remaining(s state, now int64) int64 {
	s = c.roll(s, now)
	if s.behind(now) > now || s.at > now {
		return 0
	}
	return max(0, c.units-s.n-c.weight(s, now))
}

// regained: what is in a window counts to the end of the next one, with its weight.
func (c *slidingCounter) regained(s state) int64 {
	switch {
	case s.n > 0:
		return satAdd(satAdd(s.at, (s.n-1)/c.units*c.per), 2*c.per)
	case s.m > 0:
		return satAdd(s.at, c.per)
	}
	return s.at
}

func (c *slidingCounter) spent(s state, now int64) int64 {
	s = c.roll(s, now)
	return satAdd(s.n+c.weight(s, now), ahead(s, now, c.per, c.units))
}
