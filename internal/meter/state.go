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
	gone int32     // how many have been popped since list was copied last

	loose    bool  // there is room before bookings: see gaps.go
	barKnown bool  // bar is up to date
	bar      int64 // see barred

	// Of the bookings from changed on, to before unchanged, the cost may have changed, and no
	// state from there on shows it yet. If unchanged is 0, all is up to date.
	changed, unchanged int32

	rest rest  // set aside when the limit was lowered
	lost *lost // nil if there is none

	formers follower // nil without former limits

	openList // token bucket: the open reservations by now
}

// booking is the cost booked for one instant.
type booking struct {
	at, part, cost int64 // see Spending
	open           int   // the number of open reservations
	after          State // of the key; it has no detail
}

func (b *booking) begin() span { return Spending{At: b.at, Part: b.part}.begin() }

// alone returns the state without its detail.
func (s State) alone() State {
	s.detail = nil
	return s
}

// owed returns the time until all spending is regained.
func (s State) owed(now int64) span {
	if s.At < now {
		return span{}
	}
	return span{s.At - now, s.N}
}

// behind returns at, or the instant of the last booking if that is later: later costs queue behind bookings. It is for the
// algorithms that keep a ledger.
func (s State) behind(at int64) int64 {
	if s.detail == nil || s.ledger == nil {
		return at
	}
	return max(at, s.ledger.newest())
}

// Behind returns a state with a booking at a later instant, and nothing else.
// Later costs queue behind it. It is for the algorithms that keep a ledger.
func (s State) Behind(at int64) State {
	s.detail = &detail{ledger: &ledger{base: s, list: []booking{{at: at, after: s}}}}
	return s
}

// OnHeap reports whether a copy of the state shares memory with it.
func (s *State) OnHeap() bool { return s.detail != nil }

// loose reports whether costs may go before the bookings of a state.
func (s *State) loose() bool { return s.detail != nil && s.ledger != nil && s.ledger.loose }

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

// search returns the index of the first booking at that instant or later.
func (l *ledger) search(at int64) int {
	return sort.Search(len(l.list), func(i int) bool { return l.list[i].at >= at })
}

// at returns the state at an instant, without the later bookings, and these. It is up to date.
func (l *ledger) at(now int64) (State, []booking, int64) {
	k := l.search(now + 1)
	if k == 0 {
		return l.base, l.list, now
	}
	return l.list[k-1].after, l.list[k:], now
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

// insert adds a booking before others.
func (l *ledger) insert(sp Spending) {
	b := booking{at: sp.At, part: sp.Part, cost: sp.Cost}
	if sp.Open {
		b.open = 1
	}
	i := l.search(sp.At)
	if i < len(l.list) && l.list[i].at == sp.At {
		other := &l.list[i]
		if b.begin().less(other.begin()) {
			other.part = b.part
		}
		other.cost += b.cost
		other.open += b.open
	} else {
		l.list = slices.Insert(l.list, i, b)
	}
	l.touch(i)
}

// stale reports whether a change is not shown yet.
func (l *ledger) stale() bool { return l.unchanged > 0 }

// touch records a change at or before the i-th booking.
func (l *ledger) touch(i int) {
	l.barKnown = false
	if !l.stale() {
		l.changed = int32(i)
	}
	l.changed, l.unchanged = min(l.changed, int32(i)), max(l.unchanged, int32(i+1))
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

// isOpen reports whether anything is open by now, or will be.
func (l *ledger) isOpen() bool {
	return len(l.opens) > 0 || slices.ContainsFunc(l.list, func(b booking) bool { return b.open > 0 })
}

// empty reports whether nothing is booked, open or set aside.
func (l *ledger) empty() bool {
	return len(l.list) == 0 && !l.stale() && len(l.opens) == 0 && l.rest.units == 0 && l.line == nil && l.lost == nil && l.formers == nil && !l.loose
}

// Line returns the line of a state, nil if it has none.
func (s *State) Line() *Line {
	if s.detail == nil || s.ledger == nil {
		return nil
	}
	return s.ledger.line
}

// attach gives the line to a state.
func (s *State) attach(l *Line) {
	if s.detail == nil {
		s.detail = new(detail)
	}
	if s.ledger == nil {
		s.ledger = new(ledger)
	}
	s.ledger.line = l
}

// asideAt returns the rest that is alive at an instant.
func (s State) asideAt(now int64) rest {
	if s.detail == nil || s.ledger == nil || s.ledger.rest.units == 0 {
		return rest{}
	}
	return s.ledger.rest.alive(now)
}

// setAside returns a state with a rest.
func (s State) setAside(r rest) State {
	if r.units == 0 {
		return s
	}
	if s.detail == nil {
		s.detail = new(detail)
	}
	if s.ledger == nil {
		s.ledger = &ledger{}
	}
	s.ledger.rest = r
	return s
}

// lostAt returns the lost units at an instant.
func (s State) lostAt(now int64) lost {
	if s.detail == nil || s.ledger == nil || s.ledger.lost == nil || s.ledger.lost.until <= now {
		return lost{until: never}
	}
	return *s.ledger.lost
}

// withLost returns a state with lost units.
func (s State) withLost(x lost) State {
	if x.units == 0 {
		return s
	}
	if s.detail == nil {
		s.detail = new(detail)
	}
	if s.ledger == nil {
		s.ledger = new(ledger)
	}
	s.ledger.lost = &x
	return s
}

// takeLost takes up to n from the lost units, and returns how much.
func (l *ledger) takeLost(n int64) int64 {
	if l.lost == nil {
		return 0
	}
	n = min(n, l.lost.units)
	if l.lost.units -= n; l.lost.units == 0 {
		l.lost = nil
	}
	return n
}

// dropLost drops lost units if their others are regained. It reports whether it dropped any.
func (l *ledger) dropLost(now int64) bool {
	if l.lost == nil || l.lost.until > now {
		return false
	}
	l.lost = nil
	return true
}

// follower counts what a key spends beside the limit in force: its former limits do, see former.go. Whatever changes a state reports
// it here.
type follower interface {
	// passed charges a cost that has passed at an instant. The state is the one of the limit in force, after it.
	passed(s State, at, cost int64, keep Keep)
	// booked prepares for a cost that will pass.
	booked(at int64)
	// adjusted charges a delta above 0, and forgives one below.
	adjusted(now, delta int64)
	// held returns the instant before which the key is not forgotten.
	held() int64
	// over drops what does not count any more, and reports whether that was all.
	over(now int64) bool
}

// passed reports a cost that has passed at an instant, after which the state is this one.
func (s State) passed(at, cost int64, keep Keep) {
	if s.detail != nil && s.ledger != nil {
		s.ledger.passed(s, at, cost, keep)
	}
}

func (l *ledger) passed(s State, at, cost int64, keep Keep) {
	if l.dropLost(at); l.formers != nil {
		l.formers.passed(s, at, cost, keep)
	}
}

// booked reports a cost that will pass.
func (s State) booked(at int64) {
	if s.detail != nil && s.ledger != nil && s.ledger.formers != nil {
		s.ledger.formers.booked(at)
	}
}

// adjusted reports what was charged, or given back if that is below 0.
func (s State) adjusted(now, delta int64) {
	if s.detail == nil || s.ledger == nil {
		return
	}
	if s.ledger.dropLost(now); s.ledger.formers != nil {
		s.ledger.formers.adjusted(now, delta)
	}
}
