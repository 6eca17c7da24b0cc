package ratelimit

// ledger lists a key's spendings one by one: for the sliding log all that count,
// for the other algorithms what is booked for a later instant, so that a booking
// can be given back without selling its instant twice.
//
// For the latter, the bucket's state is always base with the entries spent on top
// in order. Entries of one instant are one, which makes no difference to any sum.
type ledger struct {
	entries ring
	base    state // before the oldest entry; unused by the sliding log
	stale   bool  // an entry has shrunk, and the state does not show it yet
}

// book spends at an instant after now, in such a way that it can be given back.
// The caller holds the lock.
func (b *bucket) book(at, cost int64) {
	if b.plan.log {
		b.state = b.plan.spend(b.state, at, cost)
		return
	}
	if b.ledger == nil {
		b.ledger = &ledger{base: b.state}
	}
	b.entries.add(entry{at, cost})
	b.state = b.plan.spend(b.state, at, cost)
}

// catchUp moves the bookings that are past into the base, and brings the state
// up to date. The caller holds the lock and has seen that there is a ledger.
func (b *bucket) catchUp(now int64) {
	if b.plan.log {
		return
	}
	if b.refold(); b.ledger == nil {
		return
	}
	k := 0
	for ; k < b.entries.n && b.entries.slot(k).at <= now; k++ {
		e := b.entries.get(k)
		b.base = b.plan.spend(b.base, e.at, e.cost)
	}
	if k == b.entries.n {
		b.state = b.base // the fold over no entries, which is what the state is already
	} else if k > 0 {
		b.entries.popFront(k)
	}
}

// refold brings the state up to date if bookings have been given back.
func (b *bucket) refold() {
	if b.ledger == nil || !b.stale {
		return
	}
	l := b.ledger
	l.stale = false
	b.state = b.plan.fold(l)
}

// fold returns the base with all entries spent on top. The ledger stays with it
// as long as it has entries.
func (p *plan) fold(l *ledger) state {
	s := l.base
	for i := range l.entries.n {
		e := l.entries.get(i)
		s = p.spend(s, e.at, e.cost)
	}
	if l.entries.n > 0 {
		s.ledger = l
	}
	return s
}

// settle makes good the difference between the cost that was spent at that
// instant and what it actually was. The caller holds the lock.
func (b *bucket) settle(now, at, cost, actual int64) {
	switch {
	case actual > cost:
		b.charge(now, actual-cost)
	case actual == cost:
	case b.ledger == nil || b.plan.log:
		b.state = b.plan.refund(b.state, now, at, cost, actual)
	case at > now:
		b.entries.reduce(at, cost-actual)
		b.stale = true
	default:
		b.base = b.plan.refund(b.base, now, at, cost, actual)
		b.stale = true
	}
}

// charge spends n behind all that is booked, into debt if need be.
func (b *bucket) charge(now, n int64) {
	n = min(n, b.plan.maxDebt-b.plan.spent(b.state, now))
	switch {
	case n <= 0:
	case b.ledger == nil || b.plan.log:
		b.state = b.plan.charge(b.state, now, n)
	default:
		b.book(b.entries.newest(), n)
	}
}

// forgive takes n from what is spent: bookings first, the last of all first.
func (b *bucket) forgive(now, n int64) {
	if b.ledger != nil && !b.plan.log {
		n -= b.entries.reduceNewest(n)
		b.base = b.plan.forgive(b.base, now, n)
		b.stale = true
		return
	}
	b.state = b.plan.forgive(b.state, now, n)
}
