package meter

import "math/bits"

// Remaining returns the largest cost that fits now, 0 if there is none.
func (m *Meter) Remaining(s State, now int64) int64 {
	n, _ := m.left(s, m.view(s), now)
	return n
}

// Debt returns the units above the capacity, spent or booked and not regained by now, rounded up.
func (m *Meter) Debt(s State, now int64) int64 {
	_, debt := m.left(s, m.view(s), now)
	return debt
}

// Regained returns the first instant when the key is fresh: all its spending is regained. The instant may be past.
func (m *Meter) Regained(s State) int64 { return m.regained(m.view(s)) }

// Standing returns Remaining, Debt and Regained.
func (m *Meter) Standing(s State, now int64) (remaining, debt, regained int64) {
	if t := m.token; t != nil && s.detail == nil {
		remaining, debt, _, _ = m.StandingOf(s.owed(now), now)
		return remaining, debt, t.regained(s)
	}
	v := m.view(s)
	if c, ok := m.algorithm.(*calendar); ok && !v.loose() {
		return c.standing(v, now)
	}
	remaining, debt = m.left(s, v, now)
	if m.held != nil {
		return remaining, debt, m.held.back(v, now)
	}
	return remaining, debt, m.regained(v)
}

// left returns the remaining budget at the end of a state's line, or the debt there. The view of a
// log's line has dropped entries that count now, because they will have left the window by then.
func (m *Meter) left(s, view State, now int64) (remaining, debt int64) {
	if view.loose() {
		remaining, debt = m.among(view, now)
	} else {
		remaining, debt = m.remaining(view, now)
	}
	if line := s.Line(); m.log && line != nil && remaining == 0 {
		debt = max(0, m.spent(s, now)+line.cost-m.capacity())
	}
	return remaining, debt
}

// Owed is a token bucket's debt in time: the time to regain all spending.
type Owed = span

// StandingOf returns a Bucket's Standing with this debt, and the instant when a unit
// remains. It reads no state, so the caller can unlock the state before the division.
func (m *Meter) StandingOf(owed Owed, now int64) (remaining, debt, regained, next int64) {
	t := m.token
	regained = now + t.regained(State{At: owed.ticks, N: owed.frac})
	left := t.minus(t.full, owed)
	if left.less(t.one) { // most denials end here, without a division
		if left.ticks < 0 {
			debt = t.spent(State{At: now + owed.ticks, N: owed.frac}, now) - t.capacity
		}
		lacks := t.minus(t.one, left)
		return 0, debt, regained, now + t.regained(State{At: lacks.ticks, N: lacks.frac})
	}
	// As in worth, without a call.
	if hi, lo := bits.Mul64(uint64(left.ticks), uint64(t.units)); hi == 0 && lo < 1<<62 {
		return int64((lo + uint64(left.frac)) / uint64(t.per)), 0, regained, now
	}
	remaining, _ = t.worth(left)
	return remaining, 0, regained, now
}

// Earliest returns the first instant, from now on, when a cost fits after all spending, bookings and waiting
// calls. The cost is from 1 to the capacity. The instant is now if and only if Remaining is at least the cost.
func (m *Meter) Earliest(s State, now, cost int64) int64 {
	if s.detail != nil {
		s = m.view(s)
	}
	return m.first(s, now, cost)
}

// Refresh updates a state after a booking has been cancelled, without advancing
// it. Call it before reading the state, unless the state is advanced first.
func (m *Meter) Refresh(s *State) {
	if s.detail != nil {
		*s = m.refold(*s)
	}
}
