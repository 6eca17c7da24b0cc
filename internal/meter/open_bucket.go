package meter

// total returns the debt at an instant, including the units set aside. The open list keeps its minimum.
// Reservations from before the change give the units set aside back first. Later reservations have no part
// in these units, and give back less, so the two are never merged. Once the units have lapsed, their old
// limit has regained all spending under it, and reservations from before the change give nothing back.
func (l *ledger) total(t *tokenBucket, at int64, owed span) span {
	if l.rest.units == 0 {
		return owed
	}
	aside := t.price(l.rest.units)
	if l.rest.until > at {
		return t.plus(owed, aside)
	}
	l.rest = rest{}
	l.remove(0, l.older)
	for i := range l.opens {
		if p := &l.opens[i].least; *p != unsampled {
			*p = t.less(*p, aside)
		}
	}
	l.uneven = false
	l.dropPaid(at)
	return owed
}

// gaveBack lowers the least debts after an amount was given back at now. The amount belongs to
// a spending in the i-th element, or between it and the one before. The least debts of earlier
// reservations are at most the i-th one's. Reservations of now stay, as after a grant.
//
// A spending without an open reservation has no element. Its refund is at most its unregained part. So without the spending,
// the debt would still have been at least the debt sampled just before it, and earlier reservations keep their least debts.
func (l *ledger) gaveBack(t *tokenBucket, i int, now int64, back span) {
	for k := i; k < len(l.opens); k++ {
		if p := &l.opens[k].least; *p != unsampled {
			*p = t.less(*p, back)
		}
	}
	switch {
	case i == len(l.opens) || l.opens[i].least == unsampled:
	case l.opens[i].from == now:
		l.lower(i, l.opens[i].least)
	default:
		l.lower(i+1, l.opens[i].least)
	}
}

// refundable returns the amount to give back for a spending in the i-th
// element. A spending since the last change has no part in the units set aside.
func (t *tokenBucket) refundable(l *ledger, i int, total span, now int64, sp Spending, actual int64) span {
	back, most, aside := t.price(max(0, sp.Cost-actual)), total, span{}
	if !sp.Changed && l.rest.units > 0 {
		aside = t.price(l.rest.units)
	}
	switch {
	case !sp.Open:
		most = t.minus(t.price(sp.Cost), span{ticks: max(0, now-sp.At)})
	case i < 0:
		return span{}
	default:
		if l.opens[i].least.less(most) {
			most = l.opens[i].least
		}
		most = t.minus(most, aside)
	}
	if most.less(back) {
		back = most
	}
	if owed := t.minus(total, aside); owed.less(back) {
		back = owed
	}
	if back.ticks < 0 {
		return span{}
	}
	return back
}

// fromLost subtracts a refund's uncounted part under a token bucket, and returns the rest.
func (l *ledger) fromLost(t *tokenBucket, back span) span {
	if l.lost == nil {
		return back
	}
	n, part := t.worth(back)
	off := l.takeLost(n)
	if part > 0 {
		off++
	}
	return t.less(back, t.price(off))
}

// less returns a − b, at least 0.
func (t *tokenBucket) less(a, b span) span {
	if a = t.minus(a, b); a.ticks < 0 {
		return span{}
	}
	return a
}

// spendNow spends at now under a token bucket without bookings, and keeps the list of open reservations.
func (m *Meter) spendNow(s State, now, cost int64, keep Keep) State {
	if s.detail != nil {
		s.ledger.sample(now, s.ledger.total(m.token, now, s.owed(now)))
	}
	s = m.token.spend(s, now, cost)
	if keep == Open {
		if s.detail == nil {
			s.detail = newOpens()
		}
		s.ledger.opened(now, 1)
	}
	return m.trimmed(s)
}

// newOpens returns a detail with room for a few open reservations, in one allocation.
func newOpens() *detail {
	x := new(struct {
		detail
		ledger
		room [2]open
	})
	x.detail.ledger = &x.ledger
	x.ledger.opens = x.room[:0]
	return &x.detail
}
