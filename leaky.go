package ratelimit

// leakyBucket is a queue of work that leaves evenly, at the rate: the leaky
// bucket as a queue, in the sense of traffic shaping. What enters it is counted
// as by a token bucket whose burst is the queue, so over any interval t at most
// queue + rate·t enters; each cost leaves when all before it has drained.
type leakyBucket struct{ tokenBucket }

// leaves returns when what enters now may leave: after all that entered before. If
// that is not a whole nanosecond it is rounded up, and part says of what.
func (l *leakyBucket) leaves(s state, now int64) (at, part int64) {
	if at = l.regained(s); at <= now {
		return now, 0
	}
	return at, s.n
}

// earliest does not queue behind what is booked: in a queue that is what enters it.
func (l *leakyBucket) earliest(s state, now, cost int64) int64 { return l.fits(s, now, cost) }

// spend books the cost to leave at that instant. Where that is the end of the
// queue, rounded up, it stands on that end itself, so that no fraction is lost.
func (l *leakyBucket) spend(s state, at, cost int64) state {
	if l.regained(s) < at {
		s.at, s.n = at, 0
	}
	return l.owe(s, at, cost)
}

// replay books the cost where it stood before: at the instant and part of one.
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

// refund gives back only at the queue's end: what entered later keeps its turn.
func (l *leakyBucket) refund(s state, now int64, sp spending, actual int64) state {
	end := l.plus(sp.begin(), l.price(sp.cost))
	if end.less(span{s.at, s.n}) {
		return s
	}
	return l.tokenBucket.refund(s, now, sp, actual)
}

func (l *leakyBucket) remaining(s state, now int64) int64 { return l.room(s, now) }
