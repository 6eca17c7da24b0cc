package ratelimit

import "math"

// slidingLog remembers each spending for as long as the window is: the entries of
// detail.log, which cost state.n in sum. A booked one carries its future instant.
//
// In any window of length per, beginning or ending anywhere, at most units pass.
//
// A debt (state.m) that does not fit is spent by itself as soon as it does: units of
// it at state.at, and so on each per after that until it is used up. It is kept
// as one figure and not as entries, because it may last a century.
type slidingLog struct{ per, units int64 }

// lastDebt returns the last part of the debt to be spent. Before it nothing else
// fits. Once it is spent, the parts before it count no longer: they are a window older.
func (l *slidingLog) lastDebt(s state) entry {
	if s.m == 0 {
		return entry{at: math.MinInt64}
	}
	k := (s.m - 1) / l.units
	return entry{satAdd(s.at, k*l.per), s.m - k*l.units}
}

// newest returns the instant of the last spending, or one before all others.
func (l *slidingLog) newest(s state) int64 {
	if s.detail == nil {
		return math.MinInt64
	}
	return max(s.log.newest(), l.lastDebt(s).at)
}

// earliest: a spending goes behind all others, so only what has left the window by
// then makes room, the oldest first.
func (l *slidingLog) earliest(s state, now, cost int64) int64 {
	if s.detail == nil {
		return now
	}
	debt := l.lastDebt(s)
	now = max(now, s.log.newest(), debt.at)
	if excess := s.n + debt.cost - (l.units - cost); excess > 0 {
		now = max(now, l.freed(s, debt, excess))
	}
	return now
}

// freed returns when so much of what is spent will have left the window.
func (l *slidingLog) freed(s state, debt entry, excess int64) int64 {
	r := &s.log
	if debt.cost > 0 {
		before := total(r, r.search(satAdd(debt.at, 1)))
		if before < excess && before >= excess-debt.cost {
			return satAdd(debt.at, l.per)
		}
		if before < excess {
			excess -= debt.cost
		}
	}
	return satAdd(r.get(covering(r, excess)-1).at, l.per)
}

func (l *slidingLog) spend(s state, at, cost int64) state {
	if s.detail == nil {
		s.detail = new(detail)
	}
	s.log.add(entry{at, cost})
	s.n += cost
	return s
}

// refund takes the cost out of the entry of that instant, if it is still in the window.
func (l *slidingLog) refund(s state, now int64, sp spending, actual int64) state {
	if s = l.advance(s, now); s.detail != nil {
		s.n -= s.log.reduce(sp.at, sp.cost-actual)
	}
	return s
}

// charge makes an entry of what fits now, and a debt of what does not.
func (l *slidingLog) charge(s state, now, n int64) state {
	if s = l.advance(s, now); s.m == 0 && n <= l.units && l.earliest(s, now, n) == now {
		return l.spend(s, now, n)
	}
	return l.advance(l.indebt(s, now, n), now)
}

// indebt adds n to the debt, which begins anew where its first part fits.
func (l *slidingLog) indebt(s state, now, n int64) state {
	if s.detail == nil {
		s.detail = new(detail)
	}
	n += s.m
	s.m = 0
	s.at, s.m = l.earliest(s, now, min(n, l.units)), n
	return s
}

// forgive: the debt first, which is the newest of what is spent.
func (l *slidingLog) forgive(s state, now, n int64) state {
	s = l.advance(s, now)
	off := min(n, s.m)
	s.m -= off
	if s.detail != nil {
		s.n -= s.log.reduceNewest(n - off)
	}
	return s
}

// advance drops what the window has left behind, and spends what of the debt is due.
func (l *slidingLog) advance(s state, now int64) state {
	if s.detail == nil {
		return s
	}
	if s.m > 0 && s.at <= now {
		s = l.due(s, now)
	}
	r := &s.log
	if r.newest() <= now-l.per {
		s.n = 0
		r.popFront(r.len())
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

// due makes an entry of the part of the debt that is in the window now; the parts before
// it have left already. Bookings may lie behind it, but little lies before it.
func (l *slidingLog) due(s state, now int64) state {
	k := (now - s.at) / l.per
	if past, over := mul(k, l.units); over || past >= s.m {
		s.m = 0
		return s
	}
	s.m -= k * l.units
	s.at += k * l.per
	part := min(s.m, l.units)
	s.log.insert(entry{s.at, part})
	s.n += part
	s.m -= part
	s.at += l.per
	return s
}

func (l *slidingLog) remaining(s state, now int64) int64 {
	if s.detail == nil {
		return l.units
	}
	debt := l.lastDebt(s)
	if max(s.log.newest(), debt.at) > now {
		return 0
	}
	n := l.counts(s, now)
	if debt.at > now-l.per {
		n += debt.cost
	}
	return max(0, l.units-n)
}

// counts returns how much of the entries counts at an instant: all but those that the
// window has left behind, which a question does not drop.
func (l *slidingLog) counts(s state, now int64) int64 {
	r := &s.log
	switch since := now - l.per; {
	case r.newest() <= since:
		return 0
	case r.slot(0).at > since:
		return s.n
	default:
		return s.n - total(r, r.search(since+1))
	}
}

func (l *slidingLog) regained(s state) int64 {
	if at := l.newest(s); at != math.MinInt64 {
		return satAdd(at, l.per)
	}
	return math.MinInt64
}

func (l *slidingLog) spent(s state, now int64) int64 {
	if s.detail == nil {
		return 0
	}
	n := l.counts(s, now)
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

// aside returns a state that advance may change although the given one stays as
// it is: entries that leave at the front stay in the buffer, and only where a part of a
// debt is due is one written.
func (l *slidingLog) aside(s state, now int64) state {
	if s.detail == nil {
		return s
	}
	d := *s.detail
	if s.m > 0 && s.at <= now {
		d.log = d.log.clone()
	}
	s.detail = &d
	return s
}

// bookings returns what is booked for later, and its sum.
func (l *slidingLog) bookings(s state, now int64) (booked ring[stretch], n int64) {
	if s.detail == nil {
		return booked, 0
	}
	for i := s.log.search(now + 1); i < s.log.len(); i++ {
		if e := s.log.get(i); e.cost > 0 {
			booked.push(e)
			n += e.cost
		}
	}
	return booked, n
}

// carried spends what was booked under a limit of another kind: what a window holds at
// its instant, and the rest as a debt, which it was if it was more than one booking.
func (l *slidingLog) carried(s state, now int64, booked *ring[stretch]) state {
	debt := int64(0)
	for i := range booked.len() {
		e := booked.get(i)
		if e.cost == 0 {
			continue
		}
		fits := min(e.cost, l.units)
		s = l.spend(s, e.at, fits)
		debt = satAdd(debt, e.cost-fits)
	}
	if debt == 0 {
		return s
	}
	return l.indebt(s, now, debt)
}
