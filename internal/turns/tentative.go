package turns

import (
	"math"
	"time"
)

// confirmLocked starts the confirmation of a caller's due tentative bookings. It reports whether all are lasting, and when to
// look again if the caller waits for a delay. It returns the error of a confirmation that has failed until the last instant.
func (ls *Lines[K]) confirmLocked(l *line[K], c *caller[K], delay time.Duration) (lasting bool, next time.Duration, err error) {
	lasting, next = true, delay
	for _, s := range c.shares {
		p := s.of
		if p.lost { // its caller is about to call again
			lasting = false
		}
		if p.confirm == nil {
			continue
		}
		if lasting && delay <= 0 {
			next = math.MaxInt64 // until a confirmation rouses the caller
		}
		lasting = false
		if p.confirming {
			continue
		}
		if p.failed != nil && delay <= 0 {
			return false, 0, p.failed
		}
		if at := time.Until(p.confirmAt); at > 0 {
			next = min(next, at)
			continue
		}
		p.confirming = true
		go ls.confirm(l, p)
	}
	return lasting, next, nil
}

// confirm confirms a tentative booking. If it is gone, its callers call again.
func (ls *Lines[K]) confirm(l *line[K], p *part) {
	lasts, err := p.confirm()
	ls.mu.Lock()
	defer ls.mu.Unlock()
	p.confirming, p.failed = false, err
	switch {
	case err != nil:
		p.confirmAt = time.Now().Add(repeat)
	case lasts:
		p.confirm = nil
	default:
		p.void, p.lost, p.confirm = true, true, nil
	}
	for b := l.booked; b != nil; b = b.next {
		if !b.holds(func(x *part) bool { return x == p }) {
			continue
		}
		if p.gone() {
			l.bookAnew(b)
		}
		b.rouse()
	}
	goBack(l.spare(time.Now()))
}

// Earlier records that a tentative booking's instant in the store is now earlier. ref is the booking's [Answer.Ref].
func (ls *Lines[K]) Earlier(key K, ref any, by time.Duration) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := ls.lines[key]
	if l == nil {
		return
	}
	var moved *part
	move := func(p *part) bool {
		if p.ref != ref {
			return false
		}
		if moved == nil {
			moved = p
			p.due, p.confirmAt, p.at = p.due.Add(-by), p.confirmAt.Add(-by), p.at-by.Microseconds()
		}
		return true
	}
	for _, p := range l.pool {
		move(p)
	}
	for c := l.booked; c != nil; c = c.next {
		if !c.holds(move) {
			continue
		}
		for i := range c.shares {
			if s := &c.shares[i]; s.of == moved {
				s.due = s.due.Add(-by)
			}
		}
		c.rouse()
	}
	if moved == nil {
		return
	}
	if l.calls == 0 {
		l.due = l.latest()
	}
	l.sortPool()
	goBack(ls.leftLocked(l))
}
