package meter

// leakyBucket is a queue whose work leaves evenly, at the rate: the leaky bucket as a queue, as in
// traffic shaping (J. S. Turner, "New directions in communications", 1986; RFC 2475 calls it a
// shaper). Entering costs are counted as by a token bucket whose burst is the queue's capacity, so
// over any interval t at most queue + rate·t enters. Each cost leaves when all before it has drained.
//
// State.At is the queue's end: the instant when all work in it has drained.
type leakyBucket struct{ tokenBucket }

// leaves returns the instant when a cost may leave if it enters now: after all earlier
// costs. If this is not a whole tick, at is rounded up and part is the fraction.
func (l *leakyBucket) leaves(s State, now int64) (at, part int64) {
	if at = l.regained(s); at <= now {
		return now, 0
	}
	return at, s.N
}

// earliest returns the instant when the cost may enter the queue.
// Bookings do not delay it further: they are already in the queue.
func (l *leakyBucket) earliest(s State, now, cost int64) int64 { return l.fits(s, now, cost) }

// spend books the cost to leave at an instant. If the instant is the queue's
// end, rounded up, the cost is added to the exact end, so no fraction is lost.
func (l *leakyBucket) spend(s State, at, cost int64) State {
	if l.regained(s) < at {
		s.At, s.N = at, 0
	}
	return l.owe(s, at, cost)
}

// replay books the cost at its former place in the queue: at its instant, or the fraction before it. A refund of an earlier
// cost leaves a gap there.
func (l *leakyBucket) replay(s State, sp Spending) State {
	if begin := sp.begin(); (span{s.At, s.N}).less(begin) {
		s.At, s.N = begin.ticks, begin.frac
	}
	return l.owe(s, sp.At, sp.Cost)
}

// charge adds to the queue's end.
func (l *leakyBucket) charge(s State, now, n int64) State {
	return l.owe(l.advance(s, now), now, n)
}

// refund refunds only at the queue's end: later costs keep their places.
func (l *leakyBucket) refund(s State, now int64, sp Spending, actual int64) State {
	end := l.plus(sp.begin(), l.price(sp.Cost))
	if end.less(span{s.At, s.N}) {
		return s
	}
	return l.tokenBucket.refund(s, now, sp, actual)
}

// remaining returns the room in the queue. A cost that fits may still be delayed.
func (l *leakyBucket) remaining(s State, now int64) (n, debt int64) { return l.room(s, now) }
