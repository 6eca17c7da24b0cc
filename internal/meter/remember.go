package meter

import "math"

// Remembered is what is kept of a state that is forgotten: two figures, whatever the
// algorithm. They say no less than the key has spent, and of a bucket exactly that. The zero
// Remembered says that nothing is spent.
//
// Of a calendar Until is no instant, but says in which window the key has spent: what a wall clock
// that is set makes of instants is then no matter.
type Remembered struct {
	Until int64 // the first instant at which the key is fresh, or the ordinal of the first window in which it is
	Share uint8 // how much of the capacity is spent, in 255ths, rounded up; 0 if nothing is
	Dated bool  // Until is an ordinal
}

// whole is the share of a key that has spent all of its capacity, or more.
const whole = math.MaxUint8

// Remember returns what to keep of a state. Bookings and debts count as far as the two figures
// can tell: what is above the capacity, and at which instants it is booked, is forgotten. The
// state is up to date: see Refresh.
func (m *Meter) Remember(s State, now int64) Remembered {
	r := Remembered{Until: m.regained(s)}
	if r.Until <= now {
		return Remembered{}
	}
	spent := m.spent(s, now)
	if c, ok := m.algorithm.(*calendar); ok {
		r.Until, r.Dated = c.fresh(s).Ordinal, true
	}
	if c, ok := m.algorithm.(*slidingCounter); ok {
		// If only the window before counts, its weight falls from now on, and Recall takes the
		// share for that window's count. So the weight would be too little.
		if s = c.roll(s, now); s.N == 0 {
			spent = max(spent, s.M)
		}
	}
	r.Share = m.share(spent)
	return r
}

// Reached returns the ordinal of the window of a calendar that a key has come to by now. What is booked lies in
// later ones. The state is up to date.
func (m *Meter) Reached(s State, now int64) int64 {
	base, _ := m.parted(s, now)
	return base.M
}

// share returns how much of the capacity a number of units is, in 255ths, rounded up and at least
// one.
func (m *Meter) share(n int64) uint8 {
	capacity := m.capacity()
	if n >= capacity {
		return whole
	}
	q, r := MulDiv(max(n, 1), whole, capacity)
	if r > 0 {
		q++
	}
	return uint8(q)
}

// unitsOf is the inverse of share: it rounds down, and so returns what share was given, or more.
func (m *Meter) unitsOf(share uint8) int64 {
	n, _ := MulDiv(int64(share), m.capacity(), whole)
	return max(n, 1)
}

// capacity returns the most that can be spent at once.
func (m *Meter) capacity() int64 {
	if t := m.bucket(); t != nil {
		return t.capacity
	}
	if c, ok := m.algorithm.(*calendar); ok {
		return c.units
	}
	_, units := m.windows()
	return units
}

// windows returns the length of a window and its units, for the algorithms that have windows.
func (m *Meter) windows() (per, units int64) {
	switch a := m.algorithm.(type) {
	case *fixedWindow:
		return a.per, a.units
	case *slidingCounter:
		return a.per, a.units
	case *slidingLog:
		return a.per, a.units
	}
	panic("meter: no windows of that kind")
}

// Recall returns the state of a key that was remembered, perhaps by a meter of another limit. It
// says no less than the key has spent, and no more than what is regained in the time in which
// the whole capacity is: a clock that was wrong, or a limit that was slower, locks no key for
// longer. Only a calendar's meter may be told an ordinal. The caller sees to it that it is not over, and to what a wall
// clock has done that was set.
//
//   - Buckets: all is regained at Until. The share makes no difference.
//   - Fixed window: it ends at Until, and the share is spent in it.
//   - Calendar: the share is spent in the present window.
//   - Sliding counter: the share is spent in the window that ends one window before Until.
//   - Sliding log: the share is one spending, one window before Until.
func (m *Meter) Recall(r Remembered, now int64) State {
	s := State{At: now}
	if r.Share == 0 || !r.Dated && r.Until <= now {
		return s
	}
	switch m.family() {
	case familyBucket:
		if full := m.bucket().full; r.Until-now > full.ticks {
			s.At, s.N = now+full.ticks, full.frac
		} else {
			s.At = r.Until
		}
	case familyWindow:
		if c, ok := m.algorithm.(*calendar); ok {
			s.N, s.M = m.unitsOf(r.Share), c.windows.At(now).Ordinal
			return s
		}
		per, _ := m.windows()
		if m.kind == SlidingCounter {
			s.At = min(r.Until, now+2*per) - 2*per
		} else {
			s.At = min(r.Until, now+per) - per
		}
		s.N = m.unitsOf(r.Share)
		s = m.advance(s, now)
	case familyLog:
		per, _ := m.windows()
		s = m.spend(s, min(r.Until, now+per)-per, m.unitsOf(r.Share))
	}
	return s
}

// Covers reports whether a says no less than b. Of a bucket the instant says all, and its share
// is rounded up to whole units each time.
func (m *Meter) Covers(a, b Remembered) bool {
	return a.Until >= b.Until && (a.Share >= b.Share || m.family() == familyBucket)
}

// Merge returns what says no less than both, of which one may be the same key's from before. Both are
// ordinals, or neither is. A grain is what two instants were rounded up to.
func (m *Meter) Merge(a, b Remembered, now, grain int64) Remembered {
	if a.Share == 0 || b.Share != 0 && a.Until < b.Until {
		a, b = b, a
	}
	if b.Share == 0 {
		return a
	}
	share := b.Share
	if !a.Dated {
		if b.Until <= now {
			return a
		}
		if c, ok := m.algorithm.(*slidingCounter); ok && now < a.Until-c.per {
			// The later of the two is about the window that is open. If the other one is about the
			// window before that, it weighs less and less, and so it counts as what it weighs now.
			// Else a key that spends a little in each window would keep the share that it once had.
			if apart := a.Until - b.Until - c.per; -grain <= apart && apart <= grain {
				share = min(share, m.share(m.spent(m.Recall(b, now), now)))
			}
		}
	}
	a.Share = max(a.Share, share)
	return a
}
