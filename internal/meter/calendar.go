package meter

import "math"

// calendar counts spending in a calendar's windows. State.N is the spending in the window whose ordinal is State.M, since
// State.At, the key's first decision there. Only a later ordinal begins a new window. So a key gets each window's units once,
// even if the wall clock is set. If the clock is set back, the key's latest window lasts until the next one begins again.
//
// As in a fixed window, spending above units in one window runs over into the following windows. In each window at most units
// pass.
type calendar struct {
	windows Windows
	units   int64
	most    int64 // the maximum count
	per     int64 // the longest window
}

// roll moves the state to the window of now. All other methods roll first, so a state may be any number of windows
// behind. A state whose window is later than now's stays, because the window is booked or the wall clock was set back.
func (c *calendar) roll(s State, now int64) State {
	w := c.windows.At(now)
	if w.Ordinal <= s.M {
		return s
	}
	left := int64(0)
	if s.N > c.units {
		if past, over := Mul(c.windows.Count(s.M, w.Ordinal), c.units); !over {
			left = max(0, s.N-past)
		}
	}
	s.At, s.N, s.M = now, left, w.Ordinal
	return s
}

// If a cost does not fit in addition to earlier windows' overrun, it goes to the next window.
func (c *calendar) earliest(s State, now, cost int64) int64 {
	s = c.roll(s, now)
	if s.N+cost <= c.units {
		return s.behind(now)
	}
	k, used := s.N/c.units, s.N%c.units
	if used+cost > c.units {
		k++
	}
	return s.behind(max(now, c.begins(s, now, k)))
}

// begins returns the beginning of the k-th window after the state's. At the present instant
// it is usually the end of the present window, so the wall clock need not be read again.
func (c *calendar) begins(s State, now, k int64) int64 {
	if w := c.windows.At(now); k == 1 && s.M == w.Ordinal {
		return w.To
	}
	return c.windows.After(s.M, k).From
}

func (c *calendar) spend(s State, at, cost int64) State {
	s = c.roll(s, at)
	s.N = min(Add(s.N, cost), c.most)
	return s
}

// refund refunds a spending in the current window. On the wall clock's own axis the ordinal identifies the window, unless
// the limit has changed: then a window of another calendar may have begun at the same time. On other axes the instant of
// the spending identifies the window. Setting the wall clock moves windows on such an axis, but not keys' instants.
func (c *calendar) refund(s State, now int64, sp Spending, actual int64) State {
	s = c.roll(s, now)
	if sp.Part != 0 && (sp.Changed || sp.Part != s.M) || sp.Part == 0 && sp.At < s.At {
		return s // the spending no longer counts
	}
	return c.forgive(s, now, sp.Cost-actual)
}

func (c *calendar) charge(s State, now, n int64) State { return c.spend(s, now, n) }

// forgive keeps the ordinal: after a later window, a window whose spending was all given back is not granted again.
func (c *calendar) forgive(s State, now, n int64) State {
	s = c.roll(s, now)
	s.N = max(0, s.N-n)
	return s
}

func (c *calendar) advance(s State, now int64) State { return c.roll(s, now) }

func (c *calendar) remaining(s State, now int64) (n, debt int64) {
	s = c.roll(s, now)
	if s.behind(now) > now {
		return 0, max(0, c.spent(s, now)-c.units)
	}
	return left(c.units - s.N)
}

// regained returns the end of the spending's last window.
func (c *calendar) regained(s State) int64 {
	if s.N == 0 {
		return s.At
	}
	return c.fresh(s).From
}

// fresh returns the first window without any of the spending.
func (c *calendar) fresh(s State) Window { return c.windows.After(s.M, c.used(s)) }

// used counts the spending's windows.
func (c *calendar) used(s State) int64 { return (s.N + c.units - 1) / c.units }

// standing is remaining and regained, at a present instant.
func (c *calendar) standing(s State, now int64) (n, debt, regained int64) {
	if n, debt = c.remaining(s, now); s.N == 0 {
		return n, debt, s.At
	}
	return n, debt, c.begins(s, now, c.used(s))
}

// spent counts the windows before a booked one as full: nothing fits before a booking.
func (c *calendar) spent(s State, now int64) int64 {
	s = c.roll(s, now)
	if s.detail == nil {
		return s.N
	}
	w := c.windows.At(now)
	if s.M <= w.Ordinal {
		return s.N
	}
	n, over := Mul(c.windows.Count(w.Ordinal, s.M), c.units)
	if over {
		return math.MaxInt64
	}
	return Add(s.N, n)
}
