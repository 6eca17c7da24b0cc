package meter

import (
	"math"
	"slices"
	"sort"
)

// State is a key's spending, as far as it is not regained. The meaning of its figures depends on
// the algorithm. For all, State{At: t} with all other figures zero is a fresh key at t and later.
type State struct {
	// buckets: the instant when all is regained; windows: the beginning of the current
	// one, or in a calendar the key's first decision there; log: the debt's beginning
	At int64
	N  int64 // buckets: the fraction of At, in 1/units of a tick; windows: the spending in this one; log: the sum of its entries
	// sliding counter: the spending in the previous window; log:
	// the debt, without the entries; calendar: the window's ordinal
	M int64

	*detail // nil for the algorithms with sums, unless something is booked
}

// detail is the part of a state on the heap: the spendings of a sliding log, and the ledger. A log's ledger has only a line and
// a rest, and is nil without them.
type detail struct {
	log    totals
	ledger *ledger
}

// ledger lists a key's bookings: spending at later instants, refundable until
// then. Bookings of one instant are one. This makes no difference to any sum.
//
// While there are bookings, the key's state is always base with the bookings spent on top in order. To cancel
// a booking, the ledger removes it and spends the bookings behind it again, so no instant is sold twice.
//
// Each booking keeps the state after it, so only the bookings behind a change have to
// be spent again. The time is linear in their number, and less if the change runs out,
// as in windows. Of many bookings cancelled in a row, only the last one requires it.
type ledger struct {
	base State     // the state before the oldest booking; it has no detail
	list []booking // the oldest first
	line *Line     // the waiters, or nil; a log has a ledger only for these and the rest
	gone int32     // bookings removed since list was copied last

	loose    bool  // whether there is room before bookings: see gaps.go
	barKnown bool  // whether bar is up to date
	bar      int64 // see barred

	// The bookings from changed to before unchanged may have other costs now. The states
	// from changed on do not show it yet. If unchanged is 0, all states are up to date.
	changed, unchanged int32

	rest rest  // the units set aside when the limit was lowered
	lost *lost // nil if no units are lost

	formers follower // nil if there are no former limits

	openList // in a token bucket: the open reservations by now
}

// booking is the cost booked for one instant.
type booking struct {
	at, part, cost int64 // see Spending
	open           int   // open reservations
	after          State // the key's state after it; without detail
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

// behind returns at, or the instant of the last booking if later, because
// later costs queue behind bookings. It is for the algorithms with a ledger.
func (s State) behind(at int64) int64 {
	if s.detail == nil || s.ledger == nil {
		return at
	}
	return max(at, s.ledger.newest())
}

// Behind returns a state with a booking at a later instant, and nothing
// else. Later costs queue behind it. It is for the algorithms with a ledger.
func (s State) Behind(at int64) State {
	s.detail = &detail{ledger: &ledger{base: s, list: []booking{{at: at, after: s}}}}
	return s
}

// OnHeap reports whether a copy of the state shares memory with it.
func (s *State) OnHeap() bool { return s.detail != nil }

// loose reports whether costs may go before a state's bookings.
func (s *State) loose() bool { return s.detail != nil && s.ledger != nil && s.ledger.loose }

// oldest returns the instant of the first booking, or if there is none an instant after all others.
func (l *ledger) oldest() int64 {
	if len(l.list) == 0 {
		return math.MaxInt64
	}
	return l.list[0].at
}

// newest returns the instant of the last booking, or never if there is none.
func (l *ledger) newest() int64 {
	if len(l.list) == 0 {
		return math.MinInt64
	}
	return l.list[len(l.list)-1].at
}

// search returns the index of the first booking at the instant or later.
func (l *ledger) search(at int64) int {
	return sort.Search(len(l.list), func(i int) bool { return l.list[i].at >= at })
}

// at returns the state at an instant without the later bookings, and these bookings. The ledger is up to date.
func (l *ledger) at(now int64) (State, []booking, int64) {
	k := l.search(now + 1)
	if k == 0 {
		return l.base, l.list, now
	}
	return l.list[k-1].after, l.list[k:], now
}

// add appends a booking with the state after it. If several bookings
// have one instant, their place in the queue begins with the first.
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

// insert adds a booking before later ones.
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

// stale reports whether some state does not show a change yet.
func (l *ledger) stale() bool { return l.unchanged > 0 }

// touch records a change at or before the i-th booking.
func (l *ledger) touch(i int) {
	l.barKnown = false
	if !l.stale() {
		l.changed = int32(i)
	}
	l.changed, l.unchanged = min(l.changed, int32(i)), max(l.unchanged, int32(i+1))
}

// reduce cancels up to n of the cost booked for the given instant. A booking without any
// remaining cost stays until refold visits it anyway; only the newest booking always has a cost.
func (l *ledger) reduce(at, n int64, open bool) {
	i := l.search(at)
	if i == len(l.list) || l.list[i].at != at {
		return // a grant has given the booking back before
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

// reduceNewest gives up to n back, the last booking first, and returns the amount.
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

// Line returns a state's line, nil if it has none.
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

// asideAt returns the live rest at an instant.
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

// lostAt returns the counting lost units at an instant.
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

// takeLost takes up to n from the lost units, and returns the amount.
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

// dropLost drops the lost units if the state's counted units are regained. It reports whether it dropped any.
func (l *ledger) dropLost(now int64) bool {
	if l.lost == nil || l.lost.until > now {
		return false
	}
	l.lost = nil
	return true
}

// follower counts the spending of a key outside of the limit in force, as its
// former limits do: see former.go. Every change of a state is reported to it.
type follower interface {
	// passed charges a cost after it has passed at an instant. s is the state of the limit in force afterwards.
	passed(s State, at, cost int64, keep Keep)
	// booked prepares for a cost in the future
	booked(at int64)
	// adjusted charges a delta above 0, and forgives a delta below 0.
	adjusted(now, delta int64)
	// held returns the instant before which the key is not forgotten.
	held() int64
	// over drops ended former limits, and reports whether none is left.
	over(now int64) bool
}

// passed reports a passed cost and its instant. The receiver is the state after it.
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

// booked reports a future cost's instant to the former limits.
func (s State) booked(at int64) {
	if s.detail != nil && s.ledger != nil && s.ledger.formers != nil {
		s.ledger.formers.booked(at)
	}
}

// adjusted reports a charge of delta, or a grant if delta is below 0.
func (s State) adjusted(now, delta int64) {
	if s.detail == nil || s.ledger == nil {
		return
	}
	if s.ledger.dropLost(now); s.ledger.formers != nil {
		s.ledger.formers.adjusted(now, delta)
	}
}
