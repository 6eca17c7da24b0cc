package meter

import "slices"

// convert converts a debt in another bucket to this one: as many units,
// and the same fraction of one, rounded up to a fraction of a tick.
func (t *tokenBucket) convert(from *tokenBucket, s State, now int64) State {
	if t.per == from.per && t.units == from.units {
		return s
	}
	owed := t.worthUp(from, s.owed(now))
	if owed.ticks >= t.horizon {
		owed = span{ticks: t.horizon}
	}
	return State{At: now + owed.ticks, N: owed.frac}
}

// worthUp returns the span in which this bucket regains as many units as another bucket in a
// given span: whole units, and the same fraction of one, rounded up to a fraction of a tick.
func (t *tokenBucket) worthUp(from *tokenBucket, d span) span { return t.worthOf(from, d, 1) }

// worthDown is worthUp rounded down.
func (t *tokenBucket) worthDown(from *tokenBucket, d span) span { return t.worthOf(from, d, 0) }

func (t *tokenBucket) worthOf(from *tokenBucket, d span, up int64) span {
	n, rem := from.worth(d)
	part, left := MulDiv(rem, t.per, from.per)
	if left > 0 {
		part += up
	}
	return t.plus(t.price(n), span{part / t.units, part % t.units})
}

// reopened gives a state, carried over from another token bucket, its open reservations from there. Their least debts are the
// same numbers of units. If some of these units neither count here nor are set aside, the reservations give nothing back.
func (to *Meter) reopened(from *Meter, before, s State, now int64) State {
	if before.detail == nil || before.ledger == nil || !before.ledger.isOpen() {
		return s
	}
	l := *before.ledger
	l.opens = slices.Clone(l.opens)
	base, _ := from.parted(before, now)
	if k := l.search(now + 1); k > 0 {
		l.due(from.token, l.list[:k])
	}
	total := l.total(from.token, now, base.owed(now))
	if s.detail == nil {
		s.detail = newOpens()
	}
	if s.ledger == nil {
		s.ledger = new(ledger)
	}
	is := s.owed(now)
	if to.bookings(s) != nil {
		is = s.ledger.base.owed(now)
	}
	is = s.ledger.total(to.token, now, is)
	if most := min(from.horizon, to.horizon); total.ticks >= most || is.ticks >= most {
		return to.trimmed(s)
	}
	if is.less(to.token.worthUp(from.token, total)) {
		return to.trimmed(s)
	}
	aside := from.token.price(l.rest.units)
	for i := range l.opens {
		o := &l.opens[i]
		later := i >= l.older && l.rest.units > 0
		switch {
		case later && total.less(o.least):
			o.least = from.token.less(total, aside)
		case later:
			o.least = from.token.less(o.least, aside)
		case o.least == unsampled:
			continue
		}
		if o.least = to.token.worthDown(from.token, o.least); s.ledger.rest.units > 0 { // whole units are given back first
			n, _ := to.token.worth(o.least)
			o.least = to.token.price(n)
		}
	}
	l.uneven = !slices.IsSortedFunc(l.opens, byLeast)
	l.dropPaid(now)
	s.ledger.opens, s.ledger.older, s.ledger.uneven = l.opens, len(l.opens), l.uneven
	return to.trimmed(s)
}
