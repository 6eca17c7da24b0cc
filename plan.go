package ratelimit

import (
	"math"
)

// plan is a limit made ready for decisions. It is immutable, so all keys under the limit
// share it without a lock.
type plan struct {
	algorithm // nil for Unlimited and Blocked, which track nothing

	// The fields that every decision reads come first.
	seq      uint64       // the number of the era it was made in, and the bits below
	capacity int64        // the limit's
	log      bool         // the algorithm is the sliding log, whose bookings are among its entries
	ordered  bool         // the algorithm spends only on a state that has been advanced to now
	token    *tokenBucket // the algorithm, if it is that one: Allow has a shorter way for it
	leaky    *leakyBucket // the algorithm, if it is that one, which delays what it admits; else nil

	// Without these two bounds, sums of instants and of costs could overflow.
	maxDebt  int64 // how much may be owed
	maxAhead int64 // how far ahead may be booked

	limit Limit
	early *early // lists keys that may be fresh earlier than was known; nil if nobody needs that
}

// newPlan returns the plan for a limit, or why the limit is invalid. A limit that is
// valid but has no case here is a mistake of ours: without a plan it would allow all.
func newPlan(l Limit, seq uint64) (*plan, error) {
	if err := l.Validate(); err != nil {
		return nil, err
	}
	p := &plan{seq: seq, limit: l, capacity: int64(l.Capacity())}
	switch l.Algorithm {
	case AlgorithmTokenBucket:
		t := newTokenBucket(l.Rate, l.Burst)
		p.algorithm, p.token = &t, &t
		p.maxDebt, p.maxAhead = t.bounds()
	case AlgorithmLeakyBucket:
		// It takes what fits into the queue now and delays it, so what is booked ahead is
		// the queue itself.
		p.leaky = &leakyBucket{newTokenBucket(l.Rate, l.Burst)}
		p.algorithm, p.ordered = p.leaky, true
		p.maxDebt, _ = p.leaky.bounds()
		p.maxAhead = math.MaxInt64 // bounded by the queue's capacity
	case AlgorithmFixedWindow, AlgorithmSlidingLog, AlgorithmSlidingCounter:
		p.window(int64(l.Rate.Per), int64(l.Rate.Units))
	case AlgorithmUnlimited, AlgorithmBlocked:
		// Nothing is tracked: the capacity says all.
	default:
		panic("ratelimit: no plan for " + l.Algorithm.String())
	}
	return p, nil
}

// window makes the plan that of an algorithm that counts units for each window. A debt runs
// over into whole windows, so its bound is a number of windows too: as many as there are
// in a century, as long as twice their units can be counted.
func (p *plan) window(per, units int64) {
	windows := min(century/per, mostCounted/units)
	p.maxDebt, p.maxAhead = windows*units, max(0, (windows-1)*per)
	switch p.limit.Algorithm {
	case AlgorithmFixedWindow:
		p.algorithm = &fixedWindow{per, units, p.maxDebt}
	case AlgorithmSlidingCounter:
		p.algorithm = &slidingCounter{per, units, p.maxDebt}
	case AlgorithmSlidingLog:
		p.algorithm, p.log, p.ordered = &slidingLog{per, units}, true, true
	default:
		panic("ratelimit: no window for " + p.limit.Algorithm.String())
	}
}

// tracks reports whether keys under this plan have anything to remember. If not, no method
// of algorithm may be called.
func (p *plan) tracks() bool { return p.algorithm != nil }

// ordinary reports whether a cost is from 1 to the capacity, as almost all are. That is one
// comparison instead of two: less 1 and without a sign, 0 and all costs below it are
// larger than any capacity.
func (p *plan) ordinary(cost int) bool { return uint64(int64(cost)-1) < uint64(p.capacity) }

// exceeds is the error for a cost above the capacity.
func (p *plan) exceeds(cost int64) error { return &exceedsError{p.limit, cost} }

// replay spends a booking on top of those before it. One that was given back has a cost
// of 0 and leaves no trace, not even in a window's phase.
func (p *plan) replay(s state, sp spending) state {
	if sp.cost == 0 {
		return s
	}
	if p.leaky != nil {
		return p.leaky.replay(s, sp)
	}
	return p.spend(s, sp.at, sp.cost)
}

// equals reports whether the plans' limits count alike, so that a state of one is one of
// the other. Names count nothing.
func (p *plan) equals(q *plan) bool {
	return p.limit.Named("") == q.limit.Named("")
}

// expired reports whether a key under the plan is to ask for its limit again.
func (p *plan) expired() bool { return p.seq&expiredBit != 0 }

// given reports whether the plan is that of a request, rather than the limiter's for
// the key.
func (p *plan) given() bool { return p.seq&givenBit != 0 }

// era returns the number of the era that the plan was made in.
func (p *plan) era() uint64 { return p.seq &^ (expiredBit | givenBit) }

// outdates reports whether a decision under the plan puts a key under it that is under
// the old one. Of two plans of the limiter the one of the later era stays; a request's
// plan gives way to any other.
func (p *plan) outdates(old *plan) bool {
	switch {
	case p == old:
		return false
	case p.given() || old.given():
		return true
	}
	return p.era() > old.era() || p.era() == old.era() && old.expired()
}

// These make the number of no era out of an era's.
const (
	expiredBit = 1 << 63
	givenBit   = 1 << 62
)

// drain returns the plan's algorithm as a token bucket, if it counts like one: a leaky
// bucket's state is the same debt in time.
func (p *plan) drain() *tokenBucket {
	switch a := p.algorithm.(type) {
	case *tokenBucket:
		return a
	case *leakyBucket:
		return &a.tokenBucket
	}
	return nil
}

// family says what a plan's state counts. Within a family, what is spent carries over
// from one limit to another exactly.
type family int

const (
	familyBucket family = iota // the time until all is regained
	familyWindow               // what is spent since a window's beginning
	familyLog                  // each spending
)

// family returns the algorithm's family. It is only called for a plan that tracks something,
// and an algorithm that is not named here must not pass for one that is.
func (p *plan) family() family {
	switch p.limit.Algorithm {
	case AlgorithmTokenBucket, AlgorithmLeakyBucket:
		return familyBucket
	case AlgorithmFixedWindow, AlgorithmSlidingCounter:
		return familyWindow
	case AlgorithmSlidingLog:
		return familyLog
	}
	panic("ratelimit: no family for " + p.limit.Algorithm.String())
}
