package meter

import (
	"math"
	"slices"
	"sort"
)

// State is a key's spending that is not yet regained. The meaning of its figures depends on the algorithm. For all of them,
// State{At: t} with all other figures zero is a key that is fresh at t and later.
type State struct {
	At int64 // buckets: when all is regained; windows: where the current one begins, or since when a calendar's is counted; log: where the debt begins
	N  int64 // buckets: the fractional part of at, in 1/units of a tick; windows: spent in this one; log: sum of its entries
	M  int64 // sliding counter: spent in the window before; log: the debt that is not among the entries; calendar: the window's ordinal

	*detail // nil for the algorithms that keep sums, unless something is booked
}

// detail is the part of a state on the heap: the spendings of a sliding log, and the ledger. A log's ledger has only a line and
// a rest, and is nil without them.
type detail struct {
	log    totals
	ledger *ledger
}

// Spending is a cost and the instant at which it is spent, or leaves a leaky bucket.
type Spending struct {
	At   int64
	Part int64 // token bucket: see open; else, if not 0: its place in a leaky bucket's queue begins that many 1/units of a tick after at − 1; or the ordinal of a calendar's window
	Cost int64

	Changed bool // at its settlement: the limit's figures differ from the ones it was spent under
	Open    bool // its real cost follows: see Keep
}

// begin returns the spending's instant before it was rounded up.
func (sp Spending) begin() span {
	if sp.Part == 0 {
		return span{ticks: sp.At}
	}
	return span{sp.At - 1, sp.Part}
}

// ledger lists a key's bookings: spending at later instants, which can be refunded until then. Bookings of one instant are one,
// which makes no difference to any sum.
//
// While there are bookings, the key's state is always base with them spent on top in order. So cancelling a booking removes it
// and spends the bookings behind it again, and no instant is sold twice.
//
// Each booking keeps the state after it, so that only the bookings behind a change have to be spent again: that is linear in
// their number, and less if the change runs out, as in windows. Of many bookings that are cancelled in a row, only the last one
// requires it.
type ledger struct {
	base State     // before the oldest booking; it has no detail
	list []booking // the oldest first
	line *Line     // the waiters; nil if there are none. A log has a ledger for this and the rest only
	gone int       // how many have been popped since list was copied last

	loose    bool  // there is room before bookings: see gaps.go
	barKnown bool  // bar is up to date
	bar      int64 // see barred

	// Of the bookings from changed on, to before unchanged, the cost may have changed, and no
	// state from there on shows it yet. If unchanged is 0, all is up to date.
	changed, unchanged int

	rest rest // set aside when the limit was lowered

	formers *formers // nil without former limits

	opens  []open // token bucket: the open reservations by now, the oldest first; the least debts rise in older, and behind these
	older  int    // the number of elements that are older than the last change: see total
	uneven bool   // they do not rise
}

// booking is the cost booked for one instant.
type booking struct {
	at, part, cost int64 // see Spending
	open           int   // the number of open reservations
	after          State // of the key; it has no detail
}

// oldest returns the instant of the first booking, or one after all others.
func (l *ledger) oldest() int64 {
	if len(l.list) == 0 {
		return math.MaxInt64
	}
	return l.list[0].at
}

// newest returns the instant of the last booking, or one before all others.
func (l *ledger) newest() int64 {
	if len(l.list) == 0 {
		return math.MinInt64
	}
	return l.list[len(l.list)-1].at
}

// add appends a booking, given the state after it. Of several at one instant, the place in the
// queue begins with the first.
func (l *ledger) add(sp Spending, after State) {
	l.barKnown = false
	after.detail = nil
	open := 0
	if sp.Open {
		open = 1
	}
	if n := len(l.list); n > 0 && l.list[n-1].at == sp.At {
		l.list[n-1].cost += sp.Cost
		l.list[n-1].open += open
		l.list[n-1].after = after
		return
	}
	l.list = append(l.list, booking{sp.At, sp.Part, sp.Cost, open, after})
}

// search returns the index of the first booking at that instant or later.
func (l *ledger) search(at int64) int {
	return sort.Search(len(l.list), func(i int) bool { return l.list[i].at >= at })
}

// stale reports whether a change is not shown yet.
func (l *ledger) stale() bool { return l.unchanged > 0 }

// touch records a change at or before the i-th booking.
func (l *ledger) touch(i int) {
	l.barKnown = false
	if !l.stale() {
		l.changed = i
	}
	l.changed, l.unchanged = min(l.changed, i), max(l.unchanged, i+1)
}

// reduce cancels up to n of the cost booked for the given instant. If nothing remains there, the booking stays with a cost of 0
// until refold, which passes by anyway; only the newest has a cost at all times.
func (l *ledger) reduce(at, n int64, open bool) {
	i := l.search(at)
	if i == len(l.list) || l.list[i].at != at {
		return // a grant has given it back before
	}
	if open && l.list[i].open > 0 {
		l.list[i].open--
	}
	if n == 0 {
		return
	}
	l.list[i].cost -= min(n, l.list[i].cost)
	l.touch(i)
	l.trim()
}

// reduceNewest gives up to n back, the last booking first, and returns how much.
func (l *ledger) reduceNewest(n int64) (took int64) {
	for i := len(l.list) - 1; i >= 0 && took < n; i-- {
		b := &l.list[i]
		off := min(n-took, b.cost)
		b.cost -= off
		took += off
		l.touch(i)
	}
	l.trim()
	return took
}

// trim forgets the newest bookings as long as their cost is 0.
func (l *ledger) trim() {
	n := len(l.list)
	for n > 0 && l.list[n-1].cost == 0 {
		n--
	}
	l.list = l.list[:n]
}

// popFront forgets the oldest k bookings. The base is the state after them.
func (l *ledger) popFront(m *Meter, k int) {
	l.due(m.token, l.list[:k])
	for i := 0; i < k && l.formers != nil; i++ {
		b := &l.list[i]
		l.formers.passed(m, b.after, b.at, b.cost, Final)
	}
	l.base = l.list[k-1].after
	l.list = l.list[k:]
	if l.gone += k; l.gone > len(l.list) { // removed bookings still take memory
		l.list, l.gone = slices.Clone(l.list), 0
	}
}

// due samples the debts at bookings that are past, and opens their open reservations.
func (l *ledger) due(t *tokenBucket, list []booking) {
	if t == nil {
		return
	}
	s := &l.base
	for i := range list {
		b := &list[i]
		if l.sample(b.at, l.total(t, b.at, s.owed(b.at))); b.open > 0 {
			l.opened(b.at, b.open)
		}
		s = &b.after
	}
}

// refold spends the bookings that a change has touched again, and the bookings behind them, until the state equals its former
// value. It closes the gaps.
func (l *ledger) refold(m *Meter) {
	kept := min(l.changed, len(l.list))
	s := l.base
	if kept > 0 {
		s = l.list[kept-1].after
	}
	for i := kept; i < len(l.list); i++ {
		b := l.list[i]
		if b.cost == 0 {
			continue
		}
		s = m.replay(s, &b)
		same := s == b.after && i+1 >= l.unchanged
		b.after = s
		l.list[kept] = b
		kept++
		if same {
			kept += copy(l.list[kept:], l.list[i+1:])
			break
		}
	}
	l.list = l.list[:kept]
	l.changed, l.unchanged = 0, 0
}

// Behind returns a state with a booking at a later instant, of which nothing else is known. Later costs queue behind it. It is
// for the algorithms that keep a ledger.
func (s State) Behind(at int64) State {
	s.detail = &detail{ledger: &ledger{base: s, list: []booking{{at: at, after: s}}}}
	return s
}
