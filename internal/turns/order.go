package turns

import (
	"cmp"
	"slices"
	"time"
)

// A line's callers are served in the order of their arrival. Their bookings may come in another order, for three reasons.
// Concurrent calls reach the store in any order. A leaving caller may have booked an instant before the others'. And after
// a store has forgotten its bookings, it has room for whoever calls next. Then the callers exchange their booked units.

// orderLocked distributes the booked units, the callers' and the pool's, in the order of the callers' arrival.
func (ls *Lines[K]) orderLocked(l *line[K], now time.Time) {
	if l.bookings == 0 || l.bookings > 2*maxBooked { // so many callers are served at the same time: their order does not matter
		return
	}
	booked := l.inOrder()
	if l.disordered(booked) {
		l.exchange(booked, now)
	}
	if c := l.first; c != nil && !c.tries && l.anew == 0 {
		l.depose(c, booked, now)
	}
	clear(booked)
}

// inOrder returns the callers that keep their bookings, in the order of their arrival.
func (l *line[K]) inOrder() []*caller[K] {
	l.sorted = l.sorted[:0]
	for c := l.booked; c != nil; c = c.next {
		if c.state == isBooked && !c.holds(func(p *part) bool { return p.void }) {
			l.sorted = append(l.sorted, c)
		}
	}
	slices.SortFunc(l.sorted, func(a, b *caller[K]) int { return cmp.Compare(a.number, b.number) })
	return l.sorted
}

// disordered reports whether a caller's units are due before an
// earlier caller's, or units in the pool before the last caller's.
func (l *line[K]) disordered(booked []*caller[K]) bool {
	var last time.Time
	for _, c := range booked {
		due := c.due()
		if due.Before(last) {
			return true
		}
		last = due
	}
	return slices.ContainsFunc(l.pool, func(p *part) bool { return !p.void && p.next().Before(last) })
}

// exchange distributes the units again: the first units go to the first caller by arrival, and so on.
func (l *line[K]) exchange(booked []*caller[K], now time.Time) {
	due := make([]time.Time, len(booked))
	for i, c := range booked {
		due[i] = c.due()
		l.release(c)
	}
	for i, c := range booked {
		l.take(c)
		l.reconsider(c, now)
		at := c.due()
		if at.Equal(due[i]) {
			continue
		}
		c.rouse()
		if at.After(due[i]) && at.Sub(now) > Horizon {
			l.bookAnew(c) // a new booking may be earlier
		}
	}
}

// depose makes the last callers with bookings call again if c, the first caller
// without a booking, came before them, and if their units suffice for c.
func (l *line[K]) depose(c *caller[K], booked []*caller[K], now time.Time) {
	n, from := l.vacant(), len(booked)
	for ; n < c.cost && from > 0; from-- {
		x := booked[from-1]
		if x.number < c.number || !x.due().After(now) {
			return
		}
		for _, s := range x.shares {
			n += s.n
		}
	}
	if n < c.cost {
		return
	}
	for _, x := range booked[from:] {
		l.release(x)
		l.bookAnew(x)
	}
}

// reconsider makes a caller book again if it holds only some units of a booking
// due in more than [Horizon]: on their own, these units may be due earlier.
func (l *line[K]) reconsider(c *caller[K], now time.Time) {
	for _, s := range c.shares {
		if s.n < s.of.cost && s.at().Sub(now) > Horizon {
			l.bookAnew(c)
		}
	}
}

// behind reports whether callers that came before c are about to call again.
func (l *line[K]) behind(c *caller[K]) bool {
	before := func(x *caller[K]) bool { return x != nil && x.number < c.number }
	if before(l.first) || slices.ContainsFunc(l.giving, before) {
		return true
	}
	for b := l.booked; b != nil; b = b.next {
		if b.state == isAnew && before(b) {
			return true
		}
	}
	return false
}

// forget makes callers book again if the store has forgotten their bookings: if the answer
// to c reports another life for the key. Bookings made since the call began may belong to a
// later life, so forget leaves them alone. It reports whether the store has forgotten any.
func (l *line[K]) forget(c *caller[K], life uint64) (any bool) {
	forget := func(p *part) bool {
		if life == 0 || p.life == 0 || p.life == life || p.number > c.since || p.gone() {
			return false
		}
		p.void, p.settle, any = true, nil, true
		return true
	}
	for _, p := range l.pool {
		forget(p)
	}
	c.holds(forget)
	for b := l.booked; b != nil; b = b.next {
		if b.holds(func(p *part) bool { return forget(p) || p.gone() }) {
			l.bookAnew(b)
		}
	}
	return any
}

// gone reports whether the store has forgotten a part.
func (p *part) gone() bool { return p.void && (p.settle == nil || p.lost) }

// holds calls f for each part in which the caller holds units, and reports whether f has returned true for one.
func (c *caller[K]) holds(f func(*part) bool) (any bool) {
	for _, s := range c.shares {
		any = f(s.of) || any
	}
	return any
}
