package ratelimit

// spending is a cost and the instant at which it is spent, or leaves a leaky bucket.
type spending struct {
	at   int64
	part int64 // if not 0, the turn begins that many 1/units of a nanosecond after at − 1
	cost int64

	changes uint32 // the account's when it was spent
	changed bool   // when it is settled: the limit's figures are not those it was spent under
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

// state is what a key has spent and not yet regained. What its words mean is up
// to the algorithm. state{at: t} with nothing else is a key that is as good as
// new at t and later, for all of them.
type state struct {
	at int64 // buckets: when all is regained; windows: where the current one begins; log: where the debt begins
	n  int64 // buckets: what at leaves out, in 1/units ns; windows: spent in this one; log: spent
	m  int64 // sliding counter: spent in the window before; log: debt

	*ledger // spendings one by one where sums do not do, else nil
}

// behind returns at, or the instant of the last booking if that is later: who
// comes later queues behind what is booked.
func (s state) behind(at int64) int64 {
	if s.ledger == nil {
		return at
	}
	return max(at, s.entries.newest())
}

// owed returns how long all that is spent still takes to regain.
func (s state) owed(now int64) span {
	if s.at < now {
		return span{}
	}
	return span{s.at - now, s.n}
}
