package meter

import (
	"math"
	"slices"
	"sort"
)

// This file computes a line's end: a key's state after all waiting calls are served, if nothing changes.

// replayed spends turns and bookings in their order, on a copy of a state.
type replayed struct {
	m      *Meter
	s      State
	now    int64
	booked []booking // the later bookings
	loose  bool      // see gaps.go
	bar    int64     // see barred
}

// replayed returns the state as of an instant, up to date.
func (m *Meter) replayed(s State, now int64) replayed {
	r := replayed{m: m, now: now, loose: s.loose()}
	if !m.log {
		if r.loose {
			r.bar = m.barred(s.ledger)
		}
		r.s, r.booked = m.parted(s, now)
		r.s.detail = nil
		return r
	}
	r.s = s
	if s.detail != nil {
		r.s.detail = &detail{log: s.log.clone()}
	}
	l := m.algorithm.(*slidingLog)
	var n int64
	if r.booked, n = l.bookings(r.s, now); n > 0 {
		r.s.N -= r.s.log.reduceNewest(n)
	}
	return r
}

// whole returns the state with the remaining bookings.
func (r *replayed) whole() State {
	if !r.m.log {
		return r.m.fold(r.s, slices.Clone(r.booked))
	}
	s := r.s
	for _, b := range r.booked {
		s = r.m.spend(s, b.at, b.cost)
	}
	return s
}

// place returns the instant when a turn is spent. A turn goes behind the bookings made before it,
// unless there is room before them. It also goes behind later bookings whose time comes first.
func (r *replayed) place(t *Turn) (at, part int64) {
	m := r.m
	for {
		at, part = m.place(r.s, r.now, t.Cost)
		if len(r.booked) == 0 || r.booked[0].at > t.behind && r.booked[0].at >= at {
			return at, part
		}
		if r.loose && at < r.booked[0].at && (m.log || r.booked[0].at > r.bar) && m.harmless(r.s, at, t.Cost, r.before(t)) {
			return at, part
		}
		r.spend(&r.booked[0])
		r.booked = r.booked[1:]
	}
}

// before returns the bookings from before a turn.
func (r *replayed) before(t *Turn) []booking {
	k := sort.Search(len(r.booked), func(i int) bool { return r.booked[i].at > t.behind })
	return r.booked[:k]
}

func (r *replayed) spend(b *booking) {
	r.s = r.m.replay(r.s, b)
	r.now = max(r.now, b.at)
}

// spendTurn spends a cost at its place's instant.
func (r *replayed) spendTurn(cost, at int64) {
	if r.s = r.m.spend(r.s, at, cost); r.m.log {
		r.s = r.m.advance(r.s, at) // without this the state would keep an entry for each turn
	}
	r.now = at
}

// place returns the instant when a cost is spent if it goes behind everything else.
func (m *Meter) place(s State, now, cost int64) (at, part int64) {
	if m.leaky != nil {
		return m.leaky.leaves(s, now)
	}
	return m.earliest(s, now, cost), 0
}

// turns spends a line's turns. It leaves out turns above the capacity: they are about to be refused.
func (r *replayed) turns(l *Line) {
	capacity := r.m.capacity()
	n, cost := l.n, l.cost // of the remaining turns
	for t := l.first; t != nil; t = t.next {
		if n--; t.Cost > capacity {
			cost -= t.Cost
			continue
		}
		cost -= t.Cost
		at, _ := r.place(t)
		r.spendTurn(t.Cost, at)
		if n > 0 && len(r.booked) == 0 && l.most <= capacity && r.skip(l, n, cost) {
			break
		}
	}
}

// end spends a line's turns, and then the remaining bookings, and sets the line's end to the resulting state.
func (r *replayed) end(l *Line, e *end) {
	r.turns(l)
	e.ledger.loose = r.loose && len(r.booked) > 0
	e.ledger.list = append(e.room[:0], booking{at: r.now, after: r.s.alone()})
	for i := range r.booked {
		b := r.booked[i]
		r.spend(&b)
		if b.after = r.s.alone(); e.ledger.loose && !r.m.log {
			e.ledger.list = append(e.ledger.list, b)
		}
	}
	if !e.ledger.loose {
		e.ledger.list[0] = booking{at: r.now, after: r.s.alone()}
	}
	e.ledger.base = e.ledger.list[0].after
	e.state = r.s
	if e.detail.log = (totals{}); r.m.log && r.s.detail != nil {
		e.detail.log = r.s.log
	}
	e.detail.ledger, e.state.detail = &e.ledger, &e.detail
}

// spend adds a turn at the end.
func (e *end) spend(m *Meter, at, cost int64) {
	switch last := &e.ledger.list[len(e.ledger.list)-1]; {
	case !e.ledger.loose:
		e.state = m.spend(e.state, at, cost)
		last.at = max(last.at, at)
	case m.log:
		e.state.log.insert(at, cost)
		e.state.N += cost
		last.at = at
	default:
		k := e.ledger.search(at+1) - 1
		s := m.spend(e.ledger.list[k].after, at, cost)
		e.ledger.list = e.ledger.list[k:]
		e.ledger.list[0] = booking{at: at, after: s}
		for i := range e.ledger.list[1:] {
			b := &e.ledger.list[i+1]
			s = m.replay(s, b)
			b.after = s
		}
		e.ledger.base = e.ledger.list[0].after
		e.state.At, e.state.N, e.state.M = s.At, s.N, s.M
	}
}

// skip spends a line's last n turns at once. cost is the sum of their costs. If the turns must be examined one by
// one, it reports false. At least one turn before them has been spent already, and nothing is booked behind it.
func (r *replayed) skip(l *Line, n int, cost int64) bool {
	switch a := r.m.algorithm.(type) {
	case *leakyBucket:
		// Each cost is added to the queue's end, where it leaves.
		before := a.owe(r.s, r.now, cost-l.last.Cost)
		r.now = a.regained(before)
		r.s = a.owe(before, r.now, l.last.Cost)
		return true
	case *tokenBucket:
		return r.skipBucket(a, l, n, cost)
	}
	if l.uneven > 0 {
		return false
	}
	switch c := l.last.Cost; a := r.m.algorithm.(type) {
	case *fixedWindow:
		r.skipWindow(a, c, int64(n))
	case *calendar:
		r.skipCalendar(a, c, int64(n))
	case *slidingCounter:
		r.skipCounter(a, c, int64(n))
	case *slidingLog:
		return r.skipLog(a, c, int64(n))
	}
	return true
}

// skipBucket adds up the costs. The sum is exact as long as the bucket is
// never above full at a turn's rounded instant: then no fraction is lost.
func (r *replayed) skipBucket(t *tokenBucket, l *Line, n int, cost int64) bool {
	spare := t.minus(t.full, t.price(l.most)) // at the exact instant of the turn with the least room
	switch whole := t.one.frac == 0 && r.s.N == 0; {
	case whole || spare.ticks >= 1:
		owed := t.plus(span{r.s.At, r.s.N}, t.price(cost))
		r.s.At, r.s.N = owed.ticks, owed.frac
		over := t.minus(owed, t.full)
		if over.frac > 0 {
			over.ticks++
		}
		r.now = max(r.now, over.ticks)
		return true
	case l.uneven == 0 && l.most == t.capacity && l.last.Cost == l.most:
		// Each turn finds the bucket full, and waits until it is full again, rounded up.
		price := t.price(l.most)
		gap, first := price.ticks, r.s.At
		if price.frac > 0 {
			gap++
		}
		if r.s.N > 0 {
			first++
		}
		if over, overflows := Mul(int64(n-1), gap); overflows {
			return false
		} else {
			r.now = Add(first, over)
		}
		r.s.At, r.s.N = Add(r.now, price.ticks), price.frac
		return true
	}
	return false
}

// skipWindow fills the present window, and then whole ones.
func (r *replayed) skipWindow(w *fixedWindow, cost, n int64) {
	fit := (w.units - r.s.N) / cost
	if n <= fit {
		r.s.N += n * cost
		return
	}
	per := w.units / cost
	k := 1 + (n-fit-1)/per
	past, over := Mul(k, w.per)
	if over {
		past = math.MaxInt64
	}
	r.s.At, r.s.N = Add(r.s.At, past), ((n-fit-1)%per+1)*cost
	r.now = r.s.At
}

// skipCalendar is skipWindow for a calendar's windows.
func (r *replayed) skipCalendar(c *calendar, cost, n int64) {
	fit := (c.units - r.s.N) / cost
	if n <= fit {
		r.s.N += n * cost
		return
	}
	per := c.units / cost
	w := c.windows.After(r.s.M, 1+(n-fit-1)/per)
	r.s.At, r.s.N, r.s.M = w.From, ((n-fit-1)%per+1)*cost, w.Ordinal
	r.now = r.s.At
}

// skipCounter fills one window after the other, or every second one if a window's cost leaves no room in the next. After the first few
// they repeat each other: each begins like the one before.
func (r *replayed) skipCounter(c *slidingCounter, cost, n int64) {
	var last State // at the first turn of the last window
	var since, taken int64
	for n > 0 {
		r.s = c.roll(r.s, r.now)
		if taken > 0 && last.N == r.s.N && last.M == r.s.M && since-last.At == r.now-r.s.At {
			if k := (n - 1) / taken; k > 0 {
				past, over := Mul(k, r.now-since)
				if over {
					past = math.MaxInt64
				}
				r.s.At, r.now = Add(r.s.At, past), Add(r.now, past)
				n -= k * taken
			}
		}
		last, since, taken = r.s, r.now, 0
		if k := min(c.fit(r.s, cost), n-1); k > 0 { // all turns but the last, whose instant the caller needs
			r.s.N += k * cost
			n -= k
			taken = k
		}
		at := c.earliest(r.s, r.now, cost)
		r.s, r.now = c.spend(r.s, at, cost), at
		n--
		taken++
	}
}

// fit returns how many turns of a cost are spent in the state's window.
func (c *slidingCounter) fit(s State, cost int64) int64 {
	n := (c.units - s.N) / cost
	for ; n > 0; n-- {
		room := c.units - s.N - n*cost
		if room >= s.M {
			break
		}
		if left, _ := MulDiv(room, c.per, s.M); left > 0 {
			break
		}
	}
	return max(0, n)
}

// skipLog spends the first k turns, as many as fit into a window. From
// then on, each turn is served when the k-th turn before it leaves.
func (r *replayed) skipLog(l *slidingLog, cost, n int64) bool {
	k := l.units / cost
	if r.s.M > 0 || n <= 2*k {
		return false
	}
	ring := make([]int64, 0, k)
	for ; int64(len(ring)) < k; n-- {
		at := l.earliest(r.s, r.now, cost)
		r.spendTurn(cost, at)
		ring = append(ring, at)
	}
	past, over := Mul(n/k, l.per)
	if over {
		return false
	}
	rest := n % k
	r.s = State{}
	for i := range k {
		at := Add(ring[(i+rest)%k], past)
		if i+rest >= k {
			at = Add(at, l.per)
		}
		r.s, r.now = l.spend(r.s, at, cost), at
	}
	return true
}
