package ratelimit

// leakyBucket is a queue of work that leaves evenly, at the rate: the leaky bucket
// as a queue, as in traffic shaping (J. S. Turner, "New directions in communications",
// 1986; RFC 2475 calls it a shaper). What enters the queue is counted as by a token
// bucket whose burst is the queue's capacity, so over any interval t at most queue +
// rate·t enters. Each cost leaves when all before it has drained.
//
// state.at is the end of the queue: the instant at which all that has entered has drained.
type leakyBucket struct{ tokenBucket }

// leaves returns when a cost that enters now may leave: after all that entered before it.
// If that is not a whole nanosecond, at is rounded up and part is the fraction.
func (l *leakyBucket) leaves(s state, now int64) (at, part int64) {
	if at = l.regained(s); at <= now {
		return now, 0
	}
	return at, s.n
}

// earliest returns when the cost may enter the queue. What is booked does not hold it up
// further: it is in the queue already.
func (l *leakyBucket) earliest(s state, now, cost int64) int64 { return l.fits(s, now, cost) }

// spend books the cost to leave at that instant. If that is the end of the queue, rounded
// up, the cost is added to the end itself, so that no fraction is lost.
func (l *leakyBucket) spend(s state, at, cost int64) state {
	if l.regained(s) < at {
		s.at, s.n = at, 0
	}
	return l.owe(s, at, cost)
}

// replay books the cost at the place in the queue that it had: at its instant, or the
// fraction before it. What was given back before it leaves a gap there.
func (l *leakyBucket) replay(s state, sp spending) state {
	if begin := sp.begin(); (span{s.at, s.n}).less(begin) {
		s.at, s.n = begin.ns, begin.frac
	}
	return l.owe(s, sp.at, sp.cost)
}

// charge adds to the queue's end.
func (l *leakyBucket) charge(s state, now, n int64) state {
	return l.owe(l.advance(s, now), now, n)
}

// refund gives back only at the queue's end: what entered later keeps its place.
func (l *leakyBucket) refund(s state, now int64, sp spending, actual int64) state {
	end := l.plus(sp.begin(), l.price(sp.cost))
	if end.less(span{s.at, s.n}) {
		return s
	}
	return l.tokenBucket.refund(s, now, sp, actual)
}

// remaining returns the room in the queue, however long what enters it is delayed.
func (l *leakyBucket) remaining(s state, now int64) int64 { return l.room(s, now) }
