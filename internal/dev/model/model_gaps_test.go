package model

import "github.com/weir-go/ratelimit"

// The models' rules for bookings made before the limit changed. Such bookings
// keep their instants. A later cost goes before them if it leaves room for them.

// due returns the spending up to an instant, the bookings after it, and the instant.
func (m *model) due(now int64) (s spending, left []*booking, from int64) {
	s, left = m.base.clone(), m.ahead
	for len(left) > 0 && left[0].at <= now {
		s.spend(left[0])
		left = left[1:]
	}
	return s, left, now
}

// first returns the first instant when a cost fits, behind all bookings or between
// them. A booking that no longer fits at its own instant leaves no room before it.
func (m *model) first(now, cost int64) int64 {
	s, left, from := m.due(now)
	full, log := len(left), m.limit.Algorithm == ratelimit.AlgorithmSlidingLog
	if m.loose {
		full = 0
		for i, c := 0, s.clone(); i < len(left); i++ {
			if !log && !fitsAt(m, c, left[i]) {
				full = i + 1
			}
			c.spend(left[i])
		}
	}
	for i, b := range left {
		if i >= full {
			if at := s.earliest(from, cost); at < b.at && m.leavesRoom(s, &booking{at: at, cost: cost}, left[i:]) {
				return at
			}
		}
		s.spend(b)
		from = b.at
	}
	return s.earliest(from, cost)
}

func fitsAt(m *model, s spending, b *booking) bool {
	return b.cost <= int64(m.limit.Capacity()) && s.earliest(b.at, b.cost) <= b.at
}

// leavesRoom reports whether later bookings still fit after b. A booking that begins a window must still begin one.
func (m *model) leavesRoom(s spending, b *booking, later []*booking) bool {
	begins := m.limit.Algorithm == ratelimit.AlgorithmFixedWindow || m.limit.Algorithm == ratelimit.AlgorithmSlidingCounter
	open := s.reset(b.at) > b.at // open: b begins no window
	with := s.clone()
	with.spend(b)
	s = s.clone()
	for _, l := range later {
		if m.limit.Algorithm == ratelimit.AlgorithmSlidingLog && l.at >= b.at+int64(m.limit.Rate.Per) {
			return true // no window contains both bookings
		}
		if begins && s.reset(l.at) <= l.at && with.reset(l.at) > l.at && !(open && beginsAt(with, l.at)) {
			return false
		}
		if !fitsAt(m, with, l) {
			return false
		}
		s.spend(l)
		with.spend(l)
	}
	return true
}

// beginsAt reports whether a sliding counter's next window begins at an instant.
func beginsAt(s spending, t int64) bool {
	c, ok := s.clone().(*modelCounter)
	if !ok {
		return false
	}
	c.pass(t)
	return c.start == t
}
