package meter

import (
	"math"
	"slices"
	"sort"
)

// This file keeps a token bucket's open reservations, whose real cost is not known yet.
//
// To settle a reservation below its cost gives back the amount that the key would owe less if the real cost had been charged at
// the beginning. That debt and the actual one differ by the price of the difference at first. Passing time lowers both alike,
// and brings them closer only while the smaller one is at zero. So they still differ by the least debt since the reservation,
// and by no more than that price. Each open reservation therefore keeps the least debt since, which is sampled just before each
// spending, after each grant, and at the settlement.
//
// The amount given back lowers the debt at each instant since the reservation, as if it had never been charged, and so the
// least debts of the other open reservations. The state is then always the one in which each settled reservation has been
// charged its real cost from the beginning. That state is never above the one in which a cost was admitted, so the bound holds
// for the real costs. To give back less is the same as a larger real cost, and keeps the bound too: a list of bounded length
// may lower a least debt, and never raises one.

// Keep is the part of a spending that may still change.
type Keep uint8

const (
	Final  Keep = iota // nothing may change
	Booked             // if it is spent later than now, it can be taken out until then, as if it had never been
	Open               // as Booked, and its real cost follows in a call of Settle
)

// open is one open reservation, or several that share a least debt, exactly or after rounding.
type open struct {
	from  int64 // the instant of the oldest of them; all are before the next element's
	part  int64 // the number of grants before it in that instant while others of the instant were open
	count int
	least span // the least debt since, at any instant after from; unsampled if there was none yet
}

// unsampled is more than can be owed.
var unsampled = span{ticks: math.MaxInt64}

// maxOpens is the maximum number of elements of a list: see merge. A list has no more than there are open reservations, and each
// settlement takes time linear in the elements behind its own.
var maxOpens = 4096

// sample records the debt just before a spending, or a change of the state. The reservations with a higher least
// debt become one with this one. Within an instant nothing is regained, so its own reservations are left alone.
func (l *ledger) sample(at int64, owed span) {
	n := len(l.opens)
	if n == 0 || l.opens[n-1].from == at {
		return
	}
	if l.opens[n-1].count == 0 { // see closed
		n--
		l.remove(n, n+1)
	}
	l.lower(n, owed)
}

// remove removes the elements from i on, to before j.
func (l *ledger) remove(i, j int) {
	l.older -= min(j, l.older) - min(i, l.older)
	l.opens = slices.Delete(l.opens, i, j)
}

// part returns the part of an instant in which a reservation lies: grants divide an instant.
func (l *ledger) part(at int64) int64 {
	n := len(l.opens)
	switch {
	case n == 0 || l.opens[n-1].from < at:
		return 0
	case l.opens[n-1].least == unsampled && n > l.older:
		return l.opens[n-1].part
	}
	return l.opens[n-1].part + 1
}

// lower lowers the least debts of the oldest n to at most owed. Reservations that give back nothing any more are
// dropped.
func (l *ledger) lower(n int, owed span) {
	if l.uneven {
		l.lowerAll(n, owed)
		return
	}
	if n > l.older {
		l.lowerFrom(l.older, n, owed)
		n = l.older
	}
	l.lowerFrom(0, n, owed)
}

func byLeast(a, b open) int {
	if a.least == b.least {
		return 0
	} else if a.least.less(b.least) {
		return -1
	}
	return 1
}

// lowerAll is lower where the least debts do not rise. An element without one stays, if an earlier one has more.
func (l *ledger) lowerAll(n int, owed span) {
	if owed == (span{}) {
		l.remove(0, n)
		return
	}
	for i := n - 1; i >= 0; i-- {
		if owed.less(l.opens[i].least) {
			l.opens[i].least = owed
		}
		if j := i + 1; j < n && j != l.older && l.opens[i].least == l.opens[j].least {
			l.opens[i].count += l.opens[j].count
			l.remove(j, j+1)
			n--
		}
	}
	l.uneven = !slices.IsSortedFunc(l.opens, byLeast)
}

// lowerFrom is lower for the elements from first on, to before n.
func (l *ledger) lowerFrom(first, n int, owed span) {
	i, count := n, 0
	for i > first && !l.opens[i-1].least.less(owed) {
		i--
		count += l.opens[i].count
	}
	switch {
	case i == n:
	case owed == (span{}):
		l.remove(first, n) // i is first, or the least debt before it is 0 too
	default:
		l.opens[i].least, l.opens[i].count = owed, count
		l.remove(i+1, n)
	}
}

// granted is sample after a grant, which counts for the reservations of its instant too. The last of these stay even
// if they give back nothing, so that later ones of the instant get another part.
func (l *ledger) granted(at int64, owed span) {
	n := len(l.opens)
	if n > 0 && l.opens[n-1].from == at {
		n--
		if owed.less(l.opens[n].least) {
			l.opens[n].least = owed
		}
	}
	l.lower(n, owed)
}

// opened adds n reservations of an instant, for which sample has been called.
func (l *ledger) opened(at int64, n int) {
	part := l.part(at)
	if k := len(l.opens); k > 0 && l.opens[k-1].from == at && l.opens[k-1].part == part {
		l.opens[k-1].count += n
		return
	}
	if len(l.opens) == maxOpens {
		l.merge(maxOpens)
	}
	l.opens = append(l.opens, open{from: at, part: part, count: n, least: unsampled})
}

// merge makes one of two neighbours among the oldest n, whose least debts differ least; or it drops the oldest of all, if the
// reservations in it give back less than that.
func (l *ledger) merge(n int) {
	best, least := 0, l.opens[0].least
	for i := 1; i < n; i++ {
		if i == l.older {
			continue
		}
		a, b := l.opens[i-1].least, l.opens[i].least
		if b.less(a) {
			a, b = b, a
		}
		if d := (span{b.ticks - a.ticks, b.frac - a.frac}); d.less(least) {
			best, least = i, d
		}
	}
	if best > 0 {
		l.opens[best-1].count += l.opens[best].count
		if l.opens[best].least.less(l.opens[best-1].least) {
			l.opens[best-1].least = l.opens[best].least
		}
	}
	l.remove(best, best+1)
}

// openAt returns the index of the element with a reservation, or −1 if there is none: then all that was charged for
// it is regained. A spending of another algorithm has no element, and an earlier one gives back no more for it.
func (l *ledger) openAt(sp Spending) int {
	part := sp.Part
	if sp.Changed && part != 0 {
		part = -1 // it may be a place in a queue
	}
	return sort.Search(len(l.opens), func(i int) bool {
		return l.opens[i].from > sp.At || l.opens[i].from == sp.At && l.opens[i].part > part
	}) - 1
}

// total returns what is owed at an instant, and what is set aside: that is the debt of which the least is kept. The units set aside
// are the first that reservations from before the change give back. Later ones have no part in them, and give back less by
// that; so the two are never merged. Once the units have lapsed, their old limit has regained all that was spent under it, and the
// reservations from before the change give back nothing any more.
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

// dropPaid drops the reservations that give back nothing any more, except those of an instant that lasts: a later reservation
// must not get the part of a dropped one.
func (l *ledger) dropPaid(now int64) {
	k := 0
	for k < len(l.opens) && l.opens[k].least == (span{}) && l.opens[k].from < now {
		k++
	}
	l.remove(0, k)
}

// less returns a − b, or 0 if that is below.
func (t *tokenBucket) less(a, b span) span {
	if a = t.minus(a, b); a.ticks < 0 {
		return span{}
	}
	return a
}

// reopened gives a state that has been carried over from another token bucket the open reservations that it had there. Its debts
// are the same numbers of units. If some of them neither count here nor are set aside, nothing is given back any more.
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
		if o.least = to.token.worthDown(from.token, o.least); s.ledger.rest.units > 0 { // of which whole units are given back first
			n, _ := to.token.worth(o.least)
			o.least = to.token.price(n)
		}
	}
	l.uneven = !slices.IsSortedFunc(l.opens, byLeast)
	l.dropPaid(now)
	s.ledger.opens, s.ledger.older, s.ledger.uneven = l.opens, len(l.opens), l.uneven
	return to.trimmed(s)
}

// gaveBack lowers the least debts after an amount was given back at now, of a spending before or in the i-th element, and after
// all elements before that. An earlier reservation has at most the i-th one's. Reservations of now stay, as after a grant.
//
// A spending that is not open has no element. Its refund is no more than has not been regained of it, so without it the debt
// would still have been at least the one that was sampled just before it: earlier reservations keep their least debts.
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

// closed removes one settled reservation from the i-th element at now. The last element of an instant with a grant stays, even
// if it is empty, as long as the instant lasts: a later reservation must not get the part of an earlier, dropped one.
func (l *ledger) closed(i int, now int64) {
	o := &l.opens[i]
	o.count--
	if o.from == now && i == len(l.opens)-1 && (o.part > 0 || o.least != unsampled) {
		return
	}
	if o.count <= 0 {
		l.remove(i, i+1)
	}
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

// trimmed drops a detail without content.
func (m *Meter) trimmed(s State) State {
	if s.detail == nil || s.ledger == nil {
		return s
	}
	l := s.ledger
	if l.loose && !m.log && len(l.list) == 0 && !l.stale() {
		l.loose = false
	}
	if !l.empty() {
		return s
	}
	if m.log {
		s.detail.ledger = nil
	} else {
		s.detail = nil
	}
	return s
}

// empty reports whether nothing is booked, open or set aside.
func (l *ledger) empty() bool {
	return len(l.list) == 0 && !l.stale() && len(l.opens) == 0 && l.rest.units == 0 && l.line == nil && l.formers == nil && !l.loose
}

// settleToken settles a token bucket's spending.
func (m *Meter) settleToken(s State, now int64, sp Spending, actual int64) State {
	switch l := m.bookings(s); {
	case sp.At <= now:
		s = m.settleSpent(s, now, sp, actual)
	case l != nil:
		l.reduce(sp.At, max(0, sp.Cost-actual), sp.Open)
	}
	if actual > sp.Cost {
		return m.owe(s, now, actual-sp.Cost)
	}
	return s
}

// settleSpent gives back the excess of the cost of a token bucket's spending over actual, as far as the key would
// owe less. The spending's instant is not after now. A cost above the spending's is not charged here.
func (m *Meter) settleSpent(s State, now int64, sp Spending, actual int64) State {
	if actual >= sp.Cost && !sp.Open || s.detail == nil && sp.Open {
		return s
	}
	if s.detail == nil {
		return m.token.refund(s, now, sp, actual)
	}
	l, base := s.ledger, s
	booked := m.bookings(s) != nil
	if booked {
		base = l.base
	}
	total := l.total(m.token, now, base.owed(now))
	i := l.openAt(sp)
	if back := m.token.refundable(l, i, total, now, sp, actual); back != (span{}) {
		counted := back
		if sp.Changed && l.rest.units > 0 { // a lower cost would have set less aside at the change
			n, _ := m.token.worth(back)
			n = min(n, l.rest.units)
			l.rest.reduce(n)
			counted = m.token.minus(back, m.token.price(n))
		}
		if sp.Changed {
			counted = l.formers.fromLost(m.token, counted)
		}
		base = m.token.regain(base, now, counted)
		first := max(i, 0)
		if i >= 0 && !sp.Open && (l.opens[i].from < sp.At || l.opens[i].part < sp.Part) {
			first = i + 1
		}
		l.gaveBack(m.token, first, now, back)
		if booked {
			l.base = base
			l.touch(0)
		} else {
			s = base
		}
	}
	if i = l.openAt(sp); i >= 0 && sp.Open {
		l.closed(i, now)
	}
	return m.trimmed(s)
}

// refundable returns the amount to give back of a spending in the i-th element. A spending since the last change has no part in the
// units set aside.
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
