package ratelimit

import "math"

// slidingLog remembers each spending for as long as the window is: the ledger's
// entries, in order, state.n in sum. A booked one carries its future instant.
//
// In any window of length per, beginning or ending anywhere, at most units pass.
//
// A debt (state.m) that does not fit is spent by itself as soon as it does: units
// of it at state.at, and so on each per after that until it is used up.
type slidingLog struct{ per, units int64 }

// lastDebt returns the last part of the debt to be spent. Before it nothing
// else fits; once it is spent, the parts before it count no longer.
func (l *slidingLog) lastDebt(s state) entry {
	if s.m == 0 {
		return entry{at: math.MinInt64}
	}
	k := (s.m - 1) / l.units
	return entry{satAdd(s.at, k*l.per), s.m - k*l.units}
}

// newest returns the instant of the last spending, or one before all others.
func (l *slidingLog) newest(s state) int64 {
	if s.ledger == nil {
		return math.MinInt64
	}
	return max(s.entries.newest(), l.lastDebt(s).at)
}

func (l *slidingLog) earliest(s state, now, cost int64) int64 {
	if s.ledger == nil {
		return now
	}
	debt := l.lastDebt(s)
	now = max(now, s.entries.newest(), debt.at)
	return max(now, l.freed(s, debt, now, l.units-cost))
}

// freed returns when no more than room will count of what is spent by then: the
// oldest leaves first.
func (l *slidingLog) freed(s state, debt entry, then, room int64) (at int64) {
	at = math.MinInt64
	left := s.n + debt.cost
	for i := 0; left > 0; {
		e := debt
		if i < s.entries.n && (debt.cost == 0 || s.entries.slot(i).at <= debt.at) {
			e = s.entries.get(i)
			i++
		} else {
			debt.cost = 0
		}
		if left <= room && satAdd(e.at, l.per) > then {
			break
		}
		left -= e.cost
		at = satAdd(e.at, l.per)
	}
	return at
}

func (l *slidingLog) spend(s state, at, cost int64) state {
	if s.ledger == nil {
		s.ledger = new(ledger)
	}
	s.entries.add(entry{at, cost})
	s.n += cost
	return s
}

func (l *slidingLog) refund(s state, now int64, sp spending, actual int64) state {
	if s = l.advance(s, now); s.ledger != nil {
		s.n -= s.entries.reduce(sp.at, sp.cost-actual)
	}
	return s
}

func (l *slidingLog) charge(s state, now, n int64) state {
	if s = l.advance(s, now); s.m == 0 && n <= l.units && l.earliest(s, now, n) == now {
		return l.spend(s, now, n)
	}
	if s.ledger == nil {
		s.ledger = new(ledger)
	}
	return l.advance(l.owe(s, now, n), now)
}

// owe adds n to the debt, which begins anew where its first part fits.
func (l *slidingLog) owe(s state, now, n int64) state {
	n += s.m
	s.m = 0
	s.at, s.m = l.earliest(s, now, min(n, l.units)), n
	return s
}

// carried spends what was booked under a limit of another kind: as far as a window
// holds it at its instant, and the rest, which is the debt behind a booking, as a debt.
func (l *slidingLog) carried(s state, now int64, booked *ring) state {
	debt := int64(0)
	for i := range booked.n {
		e := booked.get(i)
		fits := min(e.cost, l.units)
		s = l.spend(s, e.at, fits)
		debt = satAdd(debt, e.cost-fits)
	}
	if debt == 0 {
		return s
	}
	return l.owe(s, now, debt)
}

func (l *slidingLog) forgive(s state, now, n int64) state {
	s = l.advance(s, now)
	off := min(n, s.m)
	s.m -= off
	if s.ledger != nil {
		s.n -= s.entries.reduceNewest(n - off)
	}
	return s
}

// advance drops what the window has left behind, and spends what of the debt is due.
func (l *slidingLog) advance(s state, now int64) state {
	if s.ledger == nil {
		return s
	}
	if s.m > 0 && s.at <= now {
		s = l.due(s, now)
	}
	r := &s.entries
	if r.newest() <= now-l.per {
		s.n = 0
		r.popFront(r.n)
		return s
	}
	k := 0
	for ; r.slot(k).at <= now-l.per; k++ {
		s.n -= r.slot(k).cost
	}
	if k > 0 {
		r.popFront(k)
	}
	return s
}

func (l *slidingLog) due(s state, now int64) state {
	k := (now - s.at) / l.per
	if past, over := mul(k, l.units); over || past >= s.m {
		s.m = 0
		return s
	}
	s.m -= k * l.units
	s.at += k * l.per
	part := min(s.m, l.units)
	s.entries.insert(entry{s.at, part})
	s.n += part
	s.m -= part
	s.at += l.per
	return s
}

func (l *slidingLog) remaining(s state, now int64) int64 {
	if s.ledger == nil {
		return l.units
	}
	debt := l.lastDebt(s)
	if max(s.entries.newest(), debt.at) > now {
		return 0
	}
	return max(0, l.units-l.counts(s, debt, now))
}

// counts returns how much of what is spent counts at that instant.
func (l *slidingLog) counts(s state, debt entry, now int64) int64 {
	n := s.n
	for i := 0; i < s.entries.n && s.entries.slot(i).at <= now-l.per; i++ {
		n -= s.entries.slot(i).cost
	}
	if debt.at > now-l.per {
		n += debt.cost
	}
	return n
}

func (l *slidingLog) regained(s state) int64 {
	if at := l.newest(s); at != math.MinInt64 {
		return satAdd(at, l.per)
	}
	return math.MinInt64
}

func (l *slidingLog) spent(s state, now int64) int64 {
	if s.ledger == nil {
		return 0
	}
	n := l.counts(s, entry{at: math.MinInt64}, now)
	if s.m == 0 {
		return n
	}
	if s.at > now {
		return n + s.m
	}
	past, over := mul((now-s.at)/l.per, l.units)
	if over {
		past = s.m
	}
	return n + max(0, s.m-past)
}
