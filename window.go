package ratelimit

import (
	"math"
)

// fixedWindow counts what is spent in windows: state.n of the one that begins at
// state.at. The first begins with a key's first spending, the next with the first
// spending after its end. What is above units in one window, by booking, debt or
// a lowered limit, runs over into those that follow it at once.
type fixedWindow struct {
	per, units int64
	most       int64 // what is counted at most
}

// roll moves the state on to the window that now is in.
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

func (w *fixedWindow) earliest(s state, now, cost int64) int64 {
	s = w.roll(s, now)
	if s.n+cost <= w.units {
		return s.behind(max(now, s.at))
	}
	// A cost never straddles two windows.
	k, used := s.n/w.units, s.n%w.units
	if used+cost > w.units {
		k++
	}
	return s.behind(satAdd(s.at, k*w.per))
}

func (w *fixedWindow) spend(s state, at, cost int64) state {
	s = w.roll(s, at)
	if s.n == 0 {
		s.at = at
	}
	s.n = min(satAdd(s.n, cost), w.most)
	return s
}

func (w *fixedWindow) refund(s state, now int64, sp spending, actual int64) state {
	s = w.roll(s, now)
	if sp.at < s.at {
		return s // it no longer counts
	}
	return w.forgive(s, now, sp.cost-actual)
}

func (w *fixedWindow) charge(s state, now, n int64) state { return w.spend(s, now, n) }

func (w *fixedWindow) forgive(s state, now, n int64) state {
	s = w.roll(s, now)
	if s.n -= n; s.n <= 0 {
		s.at, s.n = now, 0
	}
	return s
}

func (w *fixedWindow) advance(s state, now int64) state { return w.roll(s, now) }

func (w *fixedWindow) remaining(s state, now int64) int64 {
	s = w.roll(s, now)
	if s.behind(now) > now || s.at > now {
		return 0
	}
	return max(0, w.units-s.n)
}

func (w *fixedWindow) regained(s state) int64 {
	return satAdd(s.at, (s.n+w.units-1)/w.units*w.per)
}

func (w *fixedWindow) spent(s state, now int64) int64 {
	s = w.roll(s, now)
	return satAdd(s.n, ahead(s, now, w.per, w.units))
}

// ahead returns what the windows are worth that are booked before the state's.
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
// follow each other until the key is as good as new.
type slidingCounter struct {
	per, units int64
	most       int64 // what is counted at most in one window
}

// roll moves the state on to the window that now is in; what is above units in
// one window runs over into the next.
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

// weight returns what of the window before still counts at that instant.
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

func (c *slidingCounter) spend(s state, at, cost int64) state {
	s = c.roll(s, at)
	if s.n == 0 && s.m == 0 {
		s.at = at
	}
	s.n = min(satAdd(s.n, cost), c.most)
	return s
}

func (c *slidingCounter) refund(s state, now int64, sp spending, actual int64) state {
	s = c.roll(s, now)
	switch back := sp.cost - actual; {
	case sp.at >= s.at:
		s.n = max(0, s.n-back)
	case sp.at >= s.at-c.per && !sp.changed:
		// Had the limit changed, the window before could have been another length, and
		// the spending from before it.
		s.m = max(0, s.m-back)
	}
	return c.fresh(s, now)
}

// fresh forgets the window's phase once nothing counts any more.
func (c *slidingCounter) fresh(s state, now int64) state {
	if s.n == 0 && s.m == 0 {
		s.at = now
	}
	return s
}

func (c *slidingCounter) charge(s state, now, n int64) state { return c.spend(s, now, n) }

func (c *slidingCounter) forgive(s state, now, n int64) state {
	s = c.roll(s, now)
	if n <= s.n {
		s.n -= n
		return c.fresh(s, now)
	}
	n -= s.n
	s.n = 0
	// The most that the window before may have held to weigh n less than it does.
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
