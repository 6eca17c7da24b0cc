package ratelimit

import (
	"fmt"
	"math"
)

// plan is a limit made ready to be asked: immutable, and shared by all the keys
// that it holds for.
type plan struct {
	algorithm              // nil where nothing is tracked: unlimited, blocked
	seq       uint64       // of the era it was made in; with expiredBit, if the key's limit is to be asked for again
	capacity  int64        // of the limit
	log       bool         // the algorithm keeps all its spendings in the ledger
	ordered   bool         // the algorithm spends only on a state that has been advanced to now
	token     *tokenBucket // the algorithm, if it is that one; else nil
	leaky     *leakyBucket // the algorithm, if it delays what it admits; else nil
	maxDebt   int64        // how much may be owed
	maxAhead  int64        // how far ahead may be booked
	limit     Limit
	early     *early // lists keys that may be fresh earlier than was known; nil if nobody needs that
}

// newPlan returns the plan for a limit, or why the limit is invalid.
func newPlan(l Limit, seq uint64) (*plan, error) {
	if err := l.Validate(); err != nil {
		return nil, err
	}
	p := &plan{seq: seq, limit: l, capacity: int64(l.Capacity())}
	per, units := int64(l.Rate.Per), int64(l.Rate.Units)
	maxDebt, maxAhead := bounds(l)
	p.maxDebt, p.maxAhead = maxDebt, maxAhead
	switch l.Algorithm {
	case AlgorithmTokenBucket:
		t := newTokenBucket(l.Rate, l.Burst)
		p.algorithm, p.token = &t, &t
	case AlgorithmLeakyBucket:
		p.leaky = &leakyBucket{newTokenBucket(l.Rate, l.Burst)}
		p.algorithm, p.ordered = p.leaky, true
		p.maxAhead = math.MaxInt64 // its queue is bound enough
	case AlgorithmFixedWindow:
		p.algorithm = &fixedWindow{per, units, maxDebt}
	case AlgorithmSlidingLog:
		p.algorithm, p.log, p.ordered = &slidingLog{per, units}, true, true
	case AlgorithmSlidingCounter:
		p.algorithm = &slidingCounter{per, units, maxDebt}
	}
	return p, nil
}

// bounds returns what may be owed, in cost, and how far ahead may be booked:
// as much as is regained in a century, and can be counted. Buckets regain
// steadily, windows whole units at a time; a sliding counter takes two windows.
func bounds(l Limit) (maxDebt, maxAhead int64) {
	const most = math.MaxInt64 / 2
	per, units := int64(l.Rate.Per), int64(l.Rate.Units)
	switch l.Algorithm {
	case AlgorithmTokenBucket, AlgorithmLeakyBucket:
		t := newTokenBucket(l.Rate, l.Burst)
		n, _ := t.worth(span{ns: century})
		maxDebt = max(min(n, most), t.capacity)
		maxAhead = t.price(maxDebt).ns - t.full.ns
	case AlgorithmFixedWindow, AlgorithmSlidingLog, AlgorithmSlidingCounter:
		windows := min(century/per, most/units)
		maxDebt = windows * units
		maxAhead = (windows - 1) * per
	}
	return maxDebt, max(0, maxAhead)
}

// tracks reports whether keys under this plan have anything to remember.
func (p *plan) tracks() bool { return p.algorithm != nil }

// check returns why a cost can never be spent under this plan, nil if it can.
func (p *plan) check(cost int) error {
	if cost < 0 {
		return fmt.Errorf("%w: %d", ErrNegativeCost, cost)
	}
	if int64(cost) <= p.capacity {
		return nil
	}
	return p.exceeds(int64(cost))
}

func (p *plan) blocked() error {
	if p.limit.Name == "" {
		return fmt.Errorf("%w: the limit allows no cost above 0", ErrBlocked)
	}
	return fmt.Errorf("%w: the limit %q allows no cost above 0", ErrBlocked, p.limit.Name)
}

func (p *plan) exceeds(cost int64) error {
	if p.limit.Algorithm == AlgorithmBlocked {
		return p.blocked()
	}
	name := ""
	if p.limit.Name != "" {
		name = fmt.Sprintf(" %q", p.limit.Name)
	}
	return fmt.Errorf("%w%s: cost %d is above %d, the capacity of %v",
		ErrExceedsLimit, name, cost, p.capacity, p.limit)
}

// replay spends a booking on top of those before it.
func (p *plan) replay(s state, sp spending) state {
	if sp.cost == 0 {
		return s
	}
	if p.leaky != nil {
		return p.leaky.replay(s, sp)
	}
	return p.spend(s, sp.at, sp.cost)
}

// equals reports whether the plans' limits count alike.
func (p *plan) equals(q *plan) bool {
	return p.limit.Named("") == q.limit.Named("")
}

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

// drain returns the plan's algorithm as a token bucket, if it counts like one.
func (p *plan) drain() *tokenBucket {
	switch a := p.algorithm.(type) {
	case *tokenBucket:
		return a
	case *leakyBucket:
		return &a.tokenBucket
	}
	return nil
}

// family says what a plan's state counts.
type family int

const (
	familyBucket family = iota // the time until all is regained
	familyWindow               // what is spent since a window's beginning
	familyLog                  // each spending
)

// family returns the algorithm's family. The plan tracks something.
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
