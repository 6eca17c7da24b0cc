package meter

import "math"

// Remembered is what is kept of a state that is forgotten: two figures, whatever the
// algorithm. They say no less than the key has spent, and of a bucket exactly that.
type Remembered struct {
	Until int64 // the first instant at which the key is fresh; if it is past, nothing is spent
	Share uint8 // how much of the capacity is spent, in 255ths, rounded up; at least one before Until
}

// whole is the share of a key that has spent all of its capacity, or more.
const whole = math.MaxUint8

// Remember returns what to keep of a state. Bookings and debts count as far as the two figures
// can tell: what is above the capacity, and at which instants it is booked, is forgotten. The
// state is up to date: see Refresh.
func (m *Meter) Remember(s State, now int64) Remembered {
	r := Remembered{Until: m.regained(s)}
	if r.Until <= now {
		return r
	}
	spent := m.spent(s, now)
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
// longer. A grain is what the instant was rounded up to.
//
//   - Buckets: all is regained at Until. The share makes no difference.
//   - Fixed window: it ends at Until, and the share is spent in it.
//   - Calendar: the share is spent in the present window, unless all was regained before that, but
//     for the grain.
//   - Sliding counter: the share is spent in the window that ends one window before Until.
//   - Sliding log: the share is one spending, one window before Until.
func (m *Meter) Recall(r Remembered, now, grain int64) State {
	s := State{At: now}
	if r.Until <= now {
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
			if w := c.windows.At(now); r.Until-w.From > grain {
				s.N, s.M = m.unitsOf(r.Share), w.Ordinal
			}
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

// Merge returns what says no less than both, of which one may be the same key's from before. A
// grain is what the two instants were rounded up to.
func (m *Meter) Merge(a, b Remembered, now, grain int64) Remembered {
	if a.Until < b.Until {
		a, b = b, a
	}
	if b.Until <= now {
		return a
	}
	share := b.Share
	if c, ok := m.algorithm.(*slidingCounter); ok && now < a.Until-c.per {
		// The later of the two is about the window that is open. If the other one is about the
		// window before that, it weighs less and less, and so it counts as what it weighs now.
		// Else a key that spends a little in each window would keep the share that it once had.
		if apart := a.Until - b.Until - c.per; -grain <= apart && apart <= grain {
			share = min(share, m.share(m.spent(m.Recall(b, now, grain), now)))
		}
	}
	a.Share = max(a.Share, share)
	return a
}
