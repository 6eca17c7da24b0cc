package ratelimit

import "math"

// This file is what a plan does to a state that may have bookings. The algorithms know
// nothing of bookings but the instant of the last one, except the sliding log: its bookings
// are entries like all others.

// bookings returns the ledger of a state, nil if it has none.
func (p *plan) bookings(s state) *ledger {
	if s.detail == nil || p.log {
		return nil
	}
	return s.ledger
}

// book spends at an instant after now, in such a way that it can be given back.
func (p *plan) book(s state, sp spending) state {
	if !p.log {
		// From the first booking on, the state is a fold: the base is what it was before.
		if s.detail == nil {
			s.detail = &detail{ledger: &ledger{base: s}}
		}
		s.ledger.add(sp)
	}
	return p.spend(s, sp.at, sp.cost)
}

// catchUp returns the state with the bookings that are past among what is spent.
func (p *plan) catchUp(s state, now int64) state {
	return p.popDue(p.refold(s), now)
}

// popDue moves the bookings that are past into the base. What the state says stays the
// same, and if it is stale, it is that still.
func (p *plan) popDue(s state, now int64) state {
	l := p.bookings(s)
	if l == nil {
		return s
	}
	k := 0
	for ; k < l.entries.len() && l.entries.slot(k).at <= now; k++ {
		l.base = p.replay(l.base, l.get(k))
	}
	if k == l.entries.len() {
		return l.base // which is what the state is with no bookings on top, stale or not
	}
	if k > 0 {
		l.popFront(k, now)
	}
	return s
}

// refold brings the state up to date if bookings have been given back. Of many that are
// given back in a row only the last needs it.
func (p *plan) refold(s state) state {
	l := p.bookings(s)
	if l == nil || !l.stale {
		return s
	}
	l.stale = false
	l.entries.summed()
	return p.fold(l)
}

// settle makes good the difference between the cost that was spent and what it
// actually was. The state may be stale, and is so after a cost was given back.
func (p *plan) settle(s state, now int64, sp spending, actual int64) state {
	l := p.bookings(s)
	switch {
	case actual > sp.cost: // what was not foreseen need not fit
		return p.owe(s, now, actual-sp.cost)
	case actual == sp.cost:
	case l == nil && !p.log && sp.at > now:
		// It was booked, and is not any more: a grant has given it back.
	case l == nil:
		return p.refund(s, now, sp, actual)
	default:
		p.giveBack(l, now, sp, actual)
	}
	return s
}

// giveBack gives back what the cost of a spending exceeds actual by, where there are
// bookings. What is not among them is in the base. The base is as of a time before the
// first booking, so nothing is taken out of it as of a later time; what was booked behind
// the spending keeps its instant.
func (p *plan) giveBack(l *ledger, now int64, sp spending, actual int64) {
	back := sp.cost - actual
	if sp.at > now || sp.at >= l.oldest() {
		if back -= l.reduce(sp.at, back); back == 0 || sp.at > now {
			return
		}
		sp.cost = actual + back
	}
	l.base, l.stale = p.refund(l.base, min(now, l.oldest()), sp, actual), true
}

// owe charges n behind all that is booked, as a debt if need be, and as far as a key
// may be in debt.
func (p *plan) owe(s state, now, n int64) state {
	s = p.refold(s)
	n = min(n, p.maxDebt-p.spent(s, now))
	switch l := p.bookings(s); {
	case n <= 0:
		return s
	case l != nil:
		// At the last booking's instant, so that no booking is pushed back.
		return p.book(s, spending{at: max(now, l.entries.newest()), cost: n})
	}
	return p.charge(s, now, n)
}

// grant takes n from what is spent: bookings first, the last of all first.
func (p *plan) grant(s state, now, n int64) state {
	l := p.bookings(s)
	if l == nil {
		return p.forgive(s, now, n)
	}
	if n -= l.reduceNewest(n); n > 0 {
		l.base = p.forgive(l.base, now, n)
	}
	return s
}

// adjust charges a delta above 0, and forgives one below.
func (p *plan) adjust(s state, now, delta int64) state {
	if delta > 0 {
		return p.owe(s, now, delta)
	}
	return p.grant(s, now, -max(delta, -math.MaxInt64))
}
