package turns

import (
	"cmp"
	"slices"
	"time"
)

// Callers of a line are served in the order of their arrival. They may come to hold bookings in another order: calls under way at once reach
// the store in any order, one that leaves has booked an instant before those of others, and a store that has forgotten what it had booked
// has room for whoever calls next. Then they exchange the units that they have booked.

// orderLocked puts what the callers with bookings hold, and what nobody holds, into the order of their arrival.
func (ls *Lines[K]) orderLocked(l *line[K], now time.Time) {
	if l.bookings == 0 || l.bookings > 2*maxBooked { // so many are served at once
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

// disordered reports whether a caller is due before one that came earlier, or units that nobody holds are.
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

// exchange gives the callers the first units in the order of their arrival.
func (l *line[K]) exchange(booked []*caller[K], now time.Time) {
	due := make([]time.Time, len(booked))
	for i, c := range booked {
		due[i] = c.due()
		l.release(c)
	}
	for i, c := range booked {
		l.take(c)
		at := c.due()
		if at.Equal(due[i]) {
			continue
		}
		c.rouse()
		if at.After(due[i]) && at.Sub(now) > Horizon {
			l.bookAnew(c) // it may find more room than that
		}
		l.reconsider(c, now)
	}
}

// depose has the last of those with bookings call again if the first of those without them came before, and is served by their units.
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

// reconsider has a caller book anew that has taken units of a larger cost which are due in more than [Horizon]: its own cost may fit earlier.
func (l *line[K]) reconsider(c *caller[K], now time.Time) {
	if c.due().Sub(now) > Horizon && c.holds(func(p *part) bool { return p.cost > c.cost }) {
		l.bookAnew(c)
	}
}

// behind reports whether callers that came before one are about to call again.
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

// forget has the callers book anew whose bookings are of another life of the key than the answer to one: the store has forgotten them. Those
// that were booked since the call began may be of a later one. It reports whether there was any.
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
func (p *part) gone() bool { return p.void && p.settle == nil }

// holds reports whether a caller holds units of a part for which f returns true.
func (c *caller[K]) holds(f func(*part) bool) (any bool) {
	for _, s := range c.shares {
		any = f(s.of) || any
	}
	return any
}
