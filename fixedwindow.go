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
//
// All other methods roll first, so a state may be left as it was by any number of windows.
// A window that is booked for later stays as it is until its time has come.
func (w *fixedWindow) roll(s state, now int64) state {
	if now-s.at < w.per {
		return s
	}
	k := (now - s.at) / w.per
	if past, over := mul(k, w.units); !over && s.n > past {
		// The windows in between were full, so the next ones follow without a gap and
		// keep the phase.
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
	// k windows are full, and used runs over into the one after them.
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
