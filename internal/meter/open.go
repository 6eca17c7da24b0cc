package meter

import (
	"math"
	"slices"
	"sort"
)

// This file keeps a token bucket's open reservations, whose real cost is not known yet.
//
// A settlement below the cost gives back the amount by which the key would owe less if the real cost had been
// charged at the beginning. At first the two debts differ by the price of the difference in cost. Passing time
// lowers both alike, and brings them closer only while the smaller one is zero. So they still differ by the
// minimum debt since the reservation, but at most by this price. Each open reservation therefore keeps the
// minimum debt since it began, sampled just before each spending, after each grant, and at the settlement.
//
// The amount given back lowers the debt at each instant since the reservation, as if it had never been charged.
// So it also lowers the least debts of the other open reservations. The state then always equals the state in
// which each settled reservation was charged its real cost from the beginning. It is never above the state in
// which a cost was admitted, so the bound holds for the real costs. Giving back less equals a larger real cost,
// and keeps the bound, too. So a list of bounded length may lower a least debt, but never raises one.

// open is one open reservation, or several with the same least debt, exactly or after rounding.
type open struct {
	from  int64 // the oldest one's instant; all are before the next element's
	part  int64 // the number of grants before it at that instant, made while other reservations of the instant were open
	count int
	least span // the least debt since, at any instant after from; unsampled if there was none yet
}

// openList lists a token bucket's open reservations, the oldest first. The
// least debts rise among the older elements, and among the later ones.
type openList struct {
	opens  []open
	older  int  // elements from before the limit's last change: see total
	uneven bool // the least debts do not rise in this way
}

// unsampled is above any debt.
var unsampled = span{ticks: math.MaxInt64}

// maxOpens is the maximum number of elements of a list: see merge. A list has no more than there are open reservations, and each
// settlement takes time linear in the elements behind its own.
var maxOpens = 4096

// sample records the debt just before a spending, or a change of the state. All reservations with a higher least debt
// become one element with this debt. Within an instant nothing is regained, so sample skips this instant's reservations.
func (l *openList) sample(at int64, owed span) {
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
func (l *openList) remove(i, j int) {
	l.older -= min(j, l.older) - min(i, l.older)
	l.opens = slices.Delete(l.opens, i, j)
}

// part returns a reservation's part of its instant: grants divide an instant into parts.
func (l *openList) part(at int64) int64 {
	n := len(l.opens)
	switch {
	case n == 0 || l.opens[n-1].from < at:
		return 0
	case l.opens[n-1].least == unsampled && n > l.older:
		return l.opens[n-1].part
	}
	return l.opens[n-1].part + 1
}

// lower lowers the least debts of the oldest n to at most owed. It drops reservations without anything left to give back.
func (l *openList) lower(n int, owed span) {
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

// lowerAll is lower if the least debts do not rise. An element with
// nothing to give back stays, if an earlier one can give back more.
func (l *openList) lowerAll(n int, owed span) {
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
func (l *openList) lowerFrom(first, n int, owed span) {
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

// granted is sample after a grant, which also counts for its instant's reservations. The last of
// these stay even if they can give back nothing, so later ones of the instant get another part.
func (l *openList) granted(at int64, owed span) {
	n := len(l.opens)
	if n > 0 && l.opens[n-1].from == at {
		n--
		if owed.less(l.opens[n].least) {
			l.opens[n].least = owed
		}
	}
	l.lower(n, owed)
}

// opened adds n reservations of an instant. The caller has called sample for it.
func (l *openList) opened(at int64, n int) {
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

// merge merges two neighbours among the oldest n, the ones with the most similar least debts.
// If the oldest reservations give back less than the difference, it drops them instead.
func (l *openList) merge(n int) {
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

// openAt returns the index of a spending's element, or −1 if there is none: then the whole spending is
// regained. A spending of another algorithm has no element; an earlier one must not give back more for it.
func (l *openList) openAt(sp Spending) int {
	part := sp.Part
	if sp.Changed && part != 0 {
		part = -1 // the part may stand for a place in a queue
	}
	return sort.Search(len(l.opens), func(i int) bool {
		return l.opens[i].from > sp.At || l.opens[i].from == sp.At && l.opens[i].part > part
	}) - 1
}

// dropPaid drops the reservations that can no longer give anything back. It keeps
// a present instant's reservations: a later one must not get a dropped one's part.
func (l *openList) dropPaid(now int64) {
	k := 0
	for k < len(l.opens) && l.opens[k].least == (span{}) && l.opens[k].from < now {
		k++
	}
	l.remove(0, k)
}

// closed removes one settled reservation from the i-th element at now. While an instant with a grant lasts, its
// last element stays even if it is empty: a later reservation must not get the part of an earlier, dropped one.
func (l *openList) closed(i int, now int64) {
	o := &l.opens[i]
	o.count--
	if o.from == now && i == len(l.opens)-1 && (o.part > 0 || o.least != unsampled) {
		return
	}
	if o.count <= 0 {
		l.remove(i, i+1)
	}
}
