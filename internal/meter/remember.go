package meter

import "math"

// Remembered is the record of a forgotten state. Its two figures suffice for every algorithm. They are
// never below the key's spending, and are exact for a bucket. The zero Remembered means no spending.
//
// For a calendar, Until is not an instant. It is a window's ordinal, so a change of the wall clock does not matter.
type Remembered struct {
	Until int64 // the first instant when the key is fresh; for a calendar, the ordinal of the first such window
	Share uint8 // the spent part of the capacity, in 255ths, rounded up; 0 if nothing is spent
	Dated bool  // whether Until is an ordinal
}

// whole is the share of a key without remaining budget.
const whole = math.MaxUint8

// Remember returns a state's record. Bookings and debts count as far as the two figures can express them:
// spending above the capacity, and bookings' instants, are forgotten. The state is up to date: see Refresh.
func (m *Meter) Remember(s State, now int64) Remembered {
	r := Remembered{Until: m.regained(s)}
	if r.Until <= now || m.held != nil {
		return Remembered{}
	}
	spent := m.spent(s, now)
	if c, ok := m.algorithm.(*calendar); ok {
		r.Until, r.Dated = c.fresh(s).Ordinal, true
	}
	if c, ok := m.algorithm.(*slidingCounter); ok {
		// If only the previous window counts, its weight falls from now on, but Recall takes
		// the share for that window's count. So the present weight would be too little.
		if s = c.roll(s, now); s.N == 0 {
			spent = max(spent, s.M)
		}
	}
	r.Share = m.share(spent)
	return r
}

// Reached returns the ordinal of a key's latest calendar window
// by now. Bookings lie in later windows. The state is up to date.
func (m *Meter) Reached(s State, now int64) int64 {
	base, _ := m.parted(s, now)
	return base.M
}

// share returns n as a part of the capacity, in 255ths, rounded up and at least one.
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

// unitsOf is the inverse of share. It rounds down, but share rounds up: so unitsOf returns at least the argument of share.
func (m *Meter) unitsOf(share uint8) int64 {
	n, _ := MulDiv(int64(share), m.capacity(), whole)
	return max(n, 1)
}

// Recall returns a key's state from its record. A meter of another limit may have made the record. The
// state is never below the key's spending. It also takes at most as long to regain as the whole
// capacity: so a wrong clock or a slower limit locks no key for longer. Only a calendar's meter accepts
// an ordinal. The caller checks that the window is not over, and handles a change of the wall clock.
//
//   - Buckets: all is regained at Until. The share makes no difference.
//   - Fixed window: it ends at Until, and the share is spent in it.
//   - Calendar: the share is spent in the present window.
//   - Sliding counter: the share is spent in the window that ends one window before Until.
//   - Sliding log: the share is one spending, one window before Until.
func (m *Meter) Recall(r Remembered, now int64) State {
	s := State{At: now}
	if m.held != nil || r.Share == 0 || !r.Dated && r.Until <= now {
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

// Covers reports whether a records at least the spending of b. For a bucket the instant is sufficient, since its share is
// rounded up to whole units each time.
func (m *Meter) Covers(a, b Remembered) bool {
	return a.Until >= b.Until && (a.Share >= b.Share || m.family() == familyBucket)
}

// Merge returns a record of at least both records' spending. One may be an earlier record of the same
// key. Either both are ordinals or none is. Instants of both were rounded up to a multiple of grain.
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
			// The later record is from the open window. If the other one is from the previous
			// window, its weight falls, so it counts with its present weight. Otherwise a key
			// with a little spending in each window would always keep its highest share.
			if apart := a.Until - b.Until - c.per; -grain <= apart && apart <= grain {
				share = min(share, m.share(m.spent(m.Recall(b, now), now)))
			}
		}
	}
	a.Share = max(a.Share, share)
	return a
}
