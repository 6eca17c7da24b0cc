package turns

import "time"

// A line's first caller may have booked further ahead than [Horizon]. Before its
// instant, other processes' callers may leave, and free earlier units. So the line looks
// for an earlier instant once: when the booking is no further ahead than the horizon.

// movable reports whether a call can replace a part.
func (p *part) movable() bool { return p.ref != nil && p.confirm == nil && !p.void && !p.moving }

// isMoving reports whether a call replaces a part by an earlier one.
// Until the call ends, the part serves nobody, and is not given back.
func (p *part) isMoving() bool { return p.moving }

// advanceLocked starts a call to move the booking of the line's
// first caller up, if it may move. call is that caller's function.
func (ls *Lines[K]) advanceLocked(l *line[K], c *caller[K], call func(Request) (Answer[K], error)) {
	if len(c.shares) != 1 || !l.steady() || l.pace.Spaced || l.anew > 0 || l.stale > 0 {
		return
	}
	p, ahead := c.shares[0].of, time.Until(c.due())-leastGain
	if c.shares[0].n != p.cost || !p.movable() || ahead < 2*l.trip {
		return
	}
	for b := l.booked; b != nil; b = b.next {
		if b.number < c.number {
			return
		}
	}
	p.moving = true
	go ls.advance(l, c, p, l.changes, func() (Answer[K], error) {
		a, err := call(Request{Cost: p.cost, Ahead: ahead, Between: true, Instead: p.ref})
		if u, left := err.(*Unfinished[K]); left {
			return u.Answer()
		}
		return a, err
	})
}

// advance moves a caller's part to the answer's instant. changes is the value of
// the line's changes when the call began. If the call panics, so does the caller.
func (ls *Lines[K]) advance(l *line[K], c *caller[K], p *part, changes int, answer func() (Answer[K], error)) {
	a, err := Answer[K]{Unsure: true}, error(nil)
	defer func() {
		value := recover()
		ls.mu.Lock()
		c.panics = value
		p.moving = false
		switch {
		case a.Unsure:
			p.void, p.settle = true, nil // the store may have replaced the part: nobody takes it or gives it back
		case err == nil && a.Allowed:
			l.booking++
			p.due, p.at, p.settle, p.ref = time.Now().Add(a.Delay), a.At, a.Settle, a.Ref
			p.life, p.number, p.void = a.Life, l.booking, p.void || changes != l.changes
			if l.calls == 0 && changes == l.changes {
				l.due = l.latest()
			}
			l.sortPool()
		}
		for b := l.booked; b != nil; b = b.next {
			if b.holds(func(x *part) bool { return x == p }) {
				if p.gone() {
					l.bookAnew(b)
				}
				b.rouse()
			}
		}
		spare := ls.leftLocked(l)
		ls.mu.Unlock()
		goBack(spare)
	}()
	a, err = answer()
}
