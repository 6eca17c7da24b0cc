package meter

import "math"

// This file finds room before bookings. Usually there is none, because bookings are made one behind the
// other, and a cost queues behind the last one. But once the limit has changed, bookings are loose: each
// keeps its instant, although it may need only a part of the units regained until then. A cost goes before
// loose bookings at the first instant when it fits and leaves room for each at its own instant. If a
// booking does not fit at its instant, for example after the limit was lowered, there is no room before it.
//
// If a booking would begin a window, it must still begin one. So if a cost would begin a window, it goes
// before the booking only if its window, and for a sliding counter the next one, has ended by then. In a
// leaky bucket a cost needs a gap of its whole length, and room in the queue for itself and all
// bookings. Bookings have entered the queue, so under a limit without a queue they are no longer loose.

// tight is called when a log's bookings may have passed.
func (m *Meter) tight(s State, now int64) State {
	if m.log && s.loose() && s.log.newest() <= now {
		s.ledger.loose = false
		return m.trimmed(s)
	}
	return s
}

// first is earliest for a state whose bookings may be loose.
func (m *Meter) first(s State, now, cost int64) int64 {
	if !s.loose() {
		return m.earliest(s, now, cost)
	}
	switch a := m.algorithm.(type) {
	case *slidingLog:
		return a.gap(s, now, cost)
	case *leakyBucket:
		return a.enters(s, now, cost)
	}
	l := s.ledger
	st, list, from := l.at(max(now, m.barred(l)))
	for i := range list {
		b := &list[i]
		if b.cost > 0 {
			if at := m.earliest(st, from, cost); at < b.at && m.harmless(st, at, cost, list[i:]) {
				return at
			}
		}
		st, from = b.after, b.at
	}
	return m.earliest(st, from, cost)
}

// barred returns the instant of the last booking that does not fit at its instant, or never if all fit.
func (m *Meter) barred(l *ledger) int64 {
	if !l.barKnown {
		l.bar, l.barKnown = math.MinInt64, true
		st := &l.base
		for i := range l.list {
			b := &l.list[i]
			if b.cost > m.capacity() || m.earliest(*st, b.at, max(1, b.cost)) > b.at {
				l.bar = b.at
			}
			st = &b.after
		}
	}
	return l.bar
}

// harmless reports whether all later bookings still fit at their instants if
// a cost is spent before them. The cost fits into the state at its instant.
func (m *Meter) harmless(s State, at, cost int64, later []booking) bool {
	if l, ok := m.algorithm.(*slidingLog); ok {
		return l.harmless(s, at, cost, later)
	}
	if m.leaky != nil {
		return len(later) == 0 || !later[0].begin().less(m.leaky.plus(m.leaky.end(s, at), m.leaky.price(cost)))
	}
	begins := m.kind == FixedWindow || m.kind == SlidingCounter
	open := m.regained(m.advance(s, at)) > at // after the window has ended, and without beginning another one
	with := m.spend(s, at, cost)
	for i := range later {
		b := &later[i]
		if b.cost > m.capacity() || m.earliest(with, b.at, b.cost) > b.at {
			return false
		}
		if begins {
			if s, with = m.advance(s, b.at), m.advance(with, b.at); s != with && s.N == 0 && s.M == 0 && !(open && with.At == b.at) {
				return false // the booking would not begin a window then
			}
		}
		if s, with = m.replay(s, b), m.replay(with, b); s == with {
			return true
		}
	}
	return true
}

// among returns the largest cost that can be spent now before loose bookings, 0 if there is none.
// Only if it is 0, among also returns the debt. A booking is not a debt if it fits at its instant.
func (m *Meter) among(s State, now int64) (n, debt int64) {
	st, list, _ := s.ledger.at(now)
	switch {
	case m.leaky == nil && !m.log && m.barred(s.ledger) > now:
		return m.remaining(s, now)
	case m.log:
		return m.algorithm.(*slidingLog).among(s, now)
	case len(list) > 0 && list[0].cost == 0: // a line's end
		st, list = list[0].after, list[1:]
	case m.leaky != nil:
		n = m.leaky.among(st, now, list)
	default:
		if n, _ = m.remaining(st, now); n > 0 && !m.harmless(st, now, n, list) {
			no := n
			for n = 0; no-n > 1; {
				if mid := n + (no-n)/2; m.harmless(st, now, mid, list) {
					n = mid
				} else {
					no = mid
				}
			}
		}
	}
	if n > 0 {
		return n, 0
	}
	debt = m.spent(st, now) - m.capacity()
	if m.leaky != nil {
		for i := range list {
			debt = Add(debt, list[i].cost)
		}
	}
	return 0, max(0, debt)
}

// slip spends a cost, as it was offered, before bookings. The state is up to date.
func (m *Meter) slip(s State, now int64, sp Spending) State {
	switch {
	case m.log:
		s.log.insert(sp.At, sp.Cost)
		s.N += sp.Cost
		return s
	case sp.At <= now:
		return m.spendBefore(s, sp)
	}
	s.booked(sp.At)
	s.ledger.insert(sp)
	return m.closeGaps(s)
}

// spendBefore spends a cost before all bookings.
func (m *Meter) spendBefore(s State, sp Spending) State {
	l := s.ledger
	if m.token != nil {
		if l.sample(sp.At, l.total(m.token, sp.At, l.base.owed(sp.At))); sp.Open {
			l.opened(sp.At, 1)
		}
	}
	l.base = m.replay(l.base, &booking{at: sp.At, part: sp.Part, cost: sp.Cost})
	l.touch(0)
	return m.closeGaps(s)
}

// gap returns a queue's state with its end where the cost fits: before loose bookings, or behind all.
func (l *leakyBucket) gap(s State, now, cost int64) State {
	st, list, _ := s.ledger.at(now)
	price := l.price(cost)
	for i := range list {
		b := &list[i]
		if b.cost > 0 {
			if end := l.end(st, now); !b.begin().less(l.plus(end, price)) {
				return State{At: end.ticks, N: end.frac}
			}
		}
		if st = b.after; b.cost == 0 {
			now = max(now, b.at)
		}
	}
	end := l.end(st, now)
	return State{At: end.ticks, N: end.frac}
}

// end returns the instant when the next cost in the queue begins.
func (l *leakyBucket) end(s State, now int64) span {
	if s.At >= now {
		return span{s.At, s.N}
	}
	return span{ticks: now}
}

// enters returns the first instant when a cost can enter the queue: it then leaves within a full queue's time.
func (l *leakyBucket) enters(s State, now, cost int64) int64 {
	st, list, _ := s.ledger.at(now)
	all := cost
	for i := range list {
		all += list[i].cost
	}
	for i := 0; i < len(list) && all > l.capacity; i++ { // until this booking leaves
		all -= list[i].cost
		st = list[i].after
	}
	now = l.fits(st, now, all)
	return l.fits(l.gap(s, now, cost), now, cost)
}

// among returns the largest cost that can enter the queue now.
func (l *leakyBucket) among(st State, now int64, list []booking) int64 {
	last := span{now + l.full.ticks, l.full.frac}
	most, _ := l.worth(l.less(last, l.end(st, now)))
	n := int64(0)
	for i := range len(list) + 1 {
		end := l.end(st, now)
		room := l.minus(last, end)
		if room.ticks < 0 {
			break
		}
		if i < len(list) {
			if gap := l.minus(list[i].begin(), end); gap.less(room) {
				room = gap
			}
			st = list[i].after
		}
		if room.ticks >= 0 {
			fit, _ := l.worth(room)
			n = max(n, fit)
		}
	}
	for i := range list {
		most -= list[i].cost
	}
	return max(0, min(n, most))
}

// gap returns the first instant when a cost fits beside the entries before it and
// leaves room for all entries after it. Nothing goes before the last part of a debt.
func (l *slidingLog) gap(s State, now, cost int64) int64 {
	if s.M > 0 {
		now = max(now, l.lastDebt(s).at)
		s = l.afterDebt(s)
	}
	r := &s.log
	at := max(now, s.ledger.newest()) // a line's end
next:
	for {
		i, j := r.search(at+1), r.search(at-l.per+1)
		if excess := r.sum(i) - r.sum(j) - (l.units - cost); excess > 0 {
			at = Add(r.mark(r.covering(r.sum(j)+excess)-1).at, l.per)
			continue
		}
		// The last entry without room before it comes first: the cost goes behind it.
		for k := r.search(at+l.per) - 1; k >= i; k-- {
			if e := r.mark(k).at; r.sum(k+1)-r.sum(r.search(e-l.per+1)) > l.units-cost {
				at = e + 1
				continue next
			}
		}
		return at
	}
}

// afterDebt returns a state's copy at the instant of the debt's last part.
func (l *slidingLog) afterDebt(s State) State { return l.advance(l.aside(s), l.lastDebt(s).at) }

// among returns the largest cost that can be spent now, and the debt.
func (l *slidingLog) among(s State, now int64) (n, debt int64) {
	if s.M > 0 {
		s = l.advance(l.aside(s), now)
	}
	r := &s.log
	if s.M > 0 || s.ledger.newest() > now {
		return l.remaining(s, now)
	}
	i := r.search(now + 1) // the bookings
	n = l.units - (r.sum(i) - r.sum(r.search(now-l.per+1)))
	debt = max(0, -n)
	for k := r.search(now+l.per) - 1; k >= i && n > 0; k-- {
		n = min(n, l.units-(r.sum(k+1)-r.sum(r.search(r.mark(k).at-l.per+1))))
	}
	if n > 0 {
		return n, 0
	}
	for k := i; k < r.len(); k++ {
		if r.sum(k+1)-r.sum(r.search(r.mark(k).at-l.per+1)) > l.units { // then all count
			return 0, max(0, l.spent(s, now)-l.units)
		}
	}
	return 0, debt
}

// harmless is [Meter.harmless] for a state without the bookings.
func (l *slidingLog) harmless(s State, at, cost int64, later []booking) bool {
	if s.M > 0 {
		s = l.afterDebt(s)
	}
	first, sum := 0, int64(0)
	for i := range later {
		b := &later[i]
		if b.at >= at+l.per {
			break
		}
		for sum += b.cost; later[first].at <= b.at-l.per; first++ {
			sum -= later[first].cost
		}
		n := sum
		if s.detail != nil {
			n += s.log.sum(s.log.len()) - s.log.sum(s.log.search(b.at-l.per+1))
		}
		if n > l.units-cost {
			return false
		}
	}
	return true
}

// place returns when a cost may leave if it enters now: before loose bookings if there is room.
func (l *leakyBucket) place(s State, now, cost int64) (at, part int64) {
	if s.loose() {
		s = l.gap(s, now, cost)
	}
	return l.leaves(s, now)
}
