package ratelimit

// spending is a cost and the instant at which it is spent, or leaves a leaky bucket.
type spending struct {
	at   int64
	part int64 // if not 0, the turn begins that many 1/units of a nanosecond after at − 1
	cost int64

	changes uint32 // the bucket's
}

// begin returns the spending's instant before it was rounded up.
func (sp spending) begin() span {
	if sp.part == 0 {
		return span{ns: sp.at}
	}
	return span{sp.at - 1, sp.part}
}

// ledger lists a key's spendings one by one: for the sliding log all that count,
// for the other algorithms what is booked for a later instant, so that a booking
// can be given back without selling its instant twice.
//
// For the latter, the bucket's state is always base with the entries spent on top
// in order. Entries of one instant are one, which makes no difference to any sum.
type ledger struct {
	entries   ring
	*bookings // nil for the sliding log
}

// bookings is what a ledger keeps beside its entries if they are all booked ahead.
type bookings struct {
	base  state // before the oldest entry
	parts ring  // of a leaky bucket: the entries' spending.part, where it is not 0, as a cost
	stale bool  // an entry has shrunk, and the state does not show it yet
}

// book spends at an instant after now, in such a way that it can be given back.
// The caller holds the lock.
func (b *bucket) book(sp spending) {
	if !b.plan.log {
		if b.ledger == nil {
			b.ledger = &ledger{bookings: &bookings{base: b.state}}
		}
		b.ledger.add(sp)
	}
	b.state = b.plan.spend(b.state, sp.at, sp.cost)
}

// add appends a booking. Of several at one instant, the turn begins with the first.
func (l *ledger) add(sp spending) {
	if sp.part > 0 && l.entries.newest() < sp.at {
		l.parts.push(entry{sp.at, sp.part})
	}
	l.entries.add(entry{sp.at, sp.cost})
}

// get returns the i-th booking.
func (l *ledger) get(i int) spending {
	e := l.entries.get(i)
	sp := spending{at: e.at, cost: e.cost}
	if j := l.parts.search(e.at); j < l.parts.n && l.parts.slot(j).at == e.at {
		sp.part = l.parts.slot(j).cost
	}
	return sp
}

// replay spends a booking on top of those before it.
func (p *plan) replay(s state, sp spending) state {
	if p.leaky != nil {
		return p.leaky.replay(s, sp)
	}
	return p.spend(s, sp.at, sp.cost)
}

// catchUp moves the bookings that are past into the base, and brings the state
// up to date. The caller holds the lock and has seen that there is a ledger.
func (b *bucket) catchUp(now int64) {
	if b.plan.log {
		return
	}
	if b.refold(); b.ledger != nil {
		b.popDue(now)
	}
}

// popDue moves the bookings that are past into the base. The state is as before.
func (b *bucket) popDue(now int64) {
	l, k := b.ledger, 0
	for ; k < l.entries.n && l.entries.slot(k).at <= now; k++ {
		l.base = b.plan.replay(l.base, l.get(k))
	}
	if k == l.entries.n {
		b.state = l.base // the fold over no entries
	} else if k > 0 {
		l.entries.popFront(k)
		l.parts.popFront(l.parts.search(now + 1))
	}
}

// refold brings the state up to date if bookings have been given back.
func (b *bucket) refold() {
	if b.ledger == nil || b.plan.log || !b.stale {
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
		s = p.replay(s, l.get(i))
	}
	if l.entries.n > 0 {
		s.ledger = l
	}
	return s
}

// settle makes good the difference between the cost that was spent and what it
// actually was. The caller holds the lock.
func (b *bucket) settle(now int64, sp spending, actual int64) {
	switch {
	case actual > sp.cost:
		b.charge(now, actual-sp.cost)
	case actual == sp.cost:
	case sp.at <= now && sp.changes != b.changes && b.plan.drain() != nil:
		// How much of it has been regained at other rates is not known.
	case b.ledger == nil || b.plan.log:
		b.state = b.plan.refund(b.state, now, sp, actual)
	case sp.at > now:
		b.ledger.reduce(sp.at, sp.cost-actual)
	default:
		b.base = b.plan.refund(b.base, now, sp, actual)
		b.stale = true
	}
}

// reduce gives a part of what is booked for that instant back.
func (l *ledger) reduce(at, n int64) {
	l.entries.reduce(at, n)
	l.prune()
}

// prune takes note that entries have shrunk, or gone from the end.
func (l *ledger) prune() {
	l.stale = true
	for l.parts.newest() > l.entries.newest() {
		l.parts.remove(l.parts.n - 1)
	}
}

// charge spends n behind all that is booked, into debt if need be.
func (b *bucket) charge(now, n int64) {
	b.refold()
	n = min(n, b.plan.maxDebt-b.plan.spent(b.state, now))
	switch {
	case n <= 0:
	case b.ledger == nil || b.plan.log:
		b.state = b.plan.charge(b.state, now, n)
	default:
		b.book(spending{at: b.entries.newest(), cost: n})
	}
}

// forgive takes n from what is spent: bookings first, the last of all first.
func (b *bucket) forgive(now, n int64) {
	if b.ledger == nil || b.plan.log {
		b.state = b.plan.forgive(b.state, now, n)
		return
	}
	n -= b.entries.reduceNewest(n)
	b.base = b.plan.forgive(b.base, now, n)
	b.ledger.prune()
}
