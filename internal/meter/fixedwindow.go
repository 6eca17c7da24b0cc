package meter

import "math"

// fixedWindow counts spending in windows: State.N in the window that begins at State.At. The first begins
// with a key's first spending, the next with the first spending after its end. Spending above units in
// one window, by debt or by a lowered limit, runs over: it uses up the following windows, without a gap.
//
// In each window at most units pass. Within a span of two windows, twice
// as many may pass in a shorter time, around the end of the first.
type fixedWindow struct {
	per, units int64
	most       int64 // the maximum count
}

// roll moves the state to the window of now. If all spending has left
// with past windows, there is no window: the next spending begins one.
//
// All other methods roll first, so a state may be any number of windows
// behind. A window booked for later stays as it is until its time has come.
func (w *fixedWindow) roll(s State, now int64) State {
	if now-s.At < w.per {
		return s
	}
	k := (now - s.At) / w.per
	if past, over := Mul(k, w.units); !over && s.N > past {
		// The windows in between were full, so the next ones follow without a gap and
		// keep the phase.
		s.At, s.N = s.At+k*w.per, s.N-past
		return s
	}
	s.At, s.N = now, 0
	return s
}

// A cost never straddles two windows. So if it does not fit in
// addition to earlier windows' overrun, it goes to the next window.
func (w *fixedWindow) earliest(s State, now, cost int64) int64 {
	s = w.roll(s, now)
	if s.N+cost <= w.units {
		return s.behind(max(now, s.At))
	}
	if s.N <= w.units { // the cost does not fit into the window that has begun
		return s.behind(Add(s.At, w.per))
	}
	// The spending fills k windows from s.At on, and used runs over into the next:
	//
	//	s.At | full | … | full | used… |
	k, used := s.N/w.units, s.N%w.units
	if used+cost > w.units {
		k++
	}
	return s.behind(Add(s.At, k*w.per))
}

// spend counts up to most: under a changed limit, a booked window may hold more.
func (w *fixedWindow) spend(s State, at, cost int64) State {
	s = w.roll(s, at)
	if s.N == 0 {
		s.At = at
	}
	s.N = min(Add(s.N, cost), w.most)
	return s
}

// refund refunds a spending in the current window. A change of limit keeps the
// window's beginning, so a later spending is in its count under any limit.
func (w *fixedWindow) refund(s State, now int64, sp Spending, actual int64) State {
	s = w.roll(s, now)
	if sp.At < s.At {
		return s // the spending no longer counts
	}
	return w.forgive(s, now, sp.Cost-actual)
}

func (w *fixedWindow) charge(s State, now, n int64) State { return w.spend(s, now, n) }

// forgive ends the window once its count is 0, so the key is fresh at once.
func (w *fixedWindow) forgive(s State, now, n int64) State {
	s = w.roll(s, now)
	if s.N -= n; s.N <= 0 {
		s.At, s.N = now, 0
	}
	return s
}

func (w *fixedWindow) advance(s State, now int64) State { return w.roll(s, now) }

// remaining is 0 before a booked window.
func (w *fixedWindow) remaining(s State, now int64) (n, debt int64) {
	s = w.roll(s, now)
	if s.behind(now) > now || s.At > now {
		return 0, max(0, w.spent(s, now)-w.units)
	}
	return left(w.units - s.N)
}

// regained returns the end of the spending's last window.
func (w *fixedWindow) regained(s State) int64 {
	if 0 < s.N && s.N <= w.units { // the most frequent case, without a division
		return Add(s.At, w.per)
	}
	return Add(s.At, (s.N+w.units-1)/w.units*w.per)
}

func (w *fixedWindow) spent(s State, now int64) int64 {
	s = w.roll(s, now)
	return Add(s.N, ahead(s, now, w.per, w.units))
}

// ahead returns the units of the windows between now and a window
// booked for later. They count as full: nothing fits before a booking.
func ahead(s State, now, per, units int64) int64 {
	if s.At <= now {
		return 0
	}
	n, over := Mul((s.At-now+per-1)/per, units)
	if over {
		return math.MaxInt64
	}
	return n
}
