package meter

import "math"

// State is what a key has spent and not yet regained. What its figures mean is up
// to the algorithm. State{At: t} with nothing else is a key that is fresh at t and
// later, for all of them.
type State struct {
	At int64 // buckets: when all is regained; windows: where the current one begins; log: where the debt begins
	N  int64 // buckets: the fractional part of at, in 1/units of a tick; windows: spent in this one; log: sum of its entries
	M  int64 // sliding counter: spent in the window before; log: the debt that is not among the entries

	*detail // nil for the algorithms that keep sums, unless something is booked
}

// detail is what a state keeps on the heap: the spendings of a sliding log, or the
// bookings of another algorithm. Only one of the two is ever in use.
type detail struct {
	log    ring[int64]
	ledger *ledger
}

// Spending is a cost and the instant at which it is spent, or leaves a leaky bucket.
type Spending struct {
	At   int64
	Part int64 // if not 0, its place in a leaky bucket's queue begins that many 1/units of a tick after at − 1
	Cost int64

	Changed bool // when it is settled: the limit's figures are not those it was spent under
}

// begin returns the spending's instant before it was rounded up.
func (sp Spending) begin() span {
	if sp.Part == 0 {
		return span{ticks: sp.At}
	}
	return span{sp.At - 1, sp.Part}
}

// ledger lists a key's bookings: what is spent at a later instant, and can be given back
// until then. Bookings of one instant are one, which makes no difference to any sum.
//
// While there are bookings, the account's state is always base with them spent on
// top in order. So to cancel one is to take it out and to work the state out again,
// and no instant is sold twice.
type ledger struct {
	base    State          // before the oldest booking; it has no detail
	entries ring[stretch]  // the bookings, the oldest first
	parts   ring[struct{}] // leaky bucket: each booking's Spending.Part that is not 0, as a cost
	stale   bool           // a booking has been reduced, and the state does not show it yet
}

// oldest returns the instant of the first booking, or one after all others.
func (l *ledger) oldest() int64 {
	if l.entries.len() == 0 {
		return math.MaxInt64
	}
	return l.entries.get(0).at
}

// add appends a booking. Of several at one instant, the place in the queue begins
// with the first.
func (l *ledger) add(sp Spending) {
	if sp.Part > 0 && l.entries.newest() < sp.At {
		l.parts.push(entry{sp.At, sp.Part})
	}
	l.entries.add(entry{sp.At, sp.Cost})
}

// get returns the i-th booking. One that was given back has a cost of 0.
func (l *ledger) get(i int) Spending {
	e := l.entries.get(i)
	return Spending{At: e.at, Part: l.parts.at(e.at), Cost: e.cost}
}

// reduce gives back a part of what is booked for that instant, and returns how much.
func (l *ledger) reduce(at, n int64) int64 {
	if n = l.entries.reduce(at, n); l.entries.at(at) == 0 {
		l.parts.reduce(at, math.MaxInt64)
	}
	l.stale = true
	return n
}

// reduceNewest gives up to n back, the last booking first, and returns how much.
func (l *ledger) reduceNewest(n int64) int64 {
	n = l.entries.reduceNewest(n)
	for l.parts.newest() > l.entries.newest() {
		l.parts.reduceNewest(l.parts.at(l.parts.newest()))
	}
	l.stale = true
	return n
}

// popFront forgets the oldest k bookings, which are those up to now.
func (l *ledger) popFront(k int, now int64) {
	l.entries.popFront(k)
	l.parts.popFront(l.parts.search(now + 1))
}

// stretch is what a run of bookings comes to. For the buckets that is a flow. Windows have
// no such function: what is remembered is what the run made of the state that it met last.
// Once a change at an earlier booking has run out, as it does with the windows that
// it falls into, later runs meet the same states again.
type stretch struct {
	flow    flow
	in, out State
}

// flow is what a run of bookings does to what a bucket owes. owed, as an instant,
// becomes
//
//	min(max(owed, least) + price, most)
//
// One booking does that, and one such function after another is one again, so the bookings
// of a run need not be spent one by one. The zero flow is that of no booking.
type flow struct{ least, price, most span }

// behind returns at, or the instant of the last booking if that is later: what comes
// later queues behind what is booked. It is for the algorithms that keep a ledger.
func (s State) behind(at int64) int64 {
	if s.detail == nil {
		return at
	}
	return max(at, s.ledger.entries.newest())
}

// Behind returns a state with something booked at a later instant, of which nothing else is
// known. What comes later queues behind it. It is for the algorithms that keep a ledger.
func (s State) Behind(at int64) State {
	l := &ledger{base: s}
	l.entries.add(entry{at, 0})
	s.detail = &detail{ledger: l}
	return s
}

// owed returns how long it still takes to regain what is spent.
func (s State) owed(now int64) span {
	if s.At < now {
		return span{}
	}
	return span{s.At - now, s.N}
}
