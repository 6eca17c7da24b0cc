package ratelimit

import (
	"math"
	"time"
)

// request is how a cost may be spent.
type request struct {
	queue  int64 // for how long a leaky bucket may delay what it takes in
	book   int64 // how far ahead the other algorithms may book
	keep   bool  // what is spent ahead can be taken out again as if it had never been, until its time
	peek   bool  // to change nothing: the key stays under the limit that it is under
	untold bool  // the caller needs only the yes or no, and no error
}

// take is the request of Take and Allow: now, or whenever a leaky bucket lets it out.
var take = request{queue: math.MaxInt64}

// peek is the request of Peek, which answers as take does.
var peek = request{queue: math.MaxInt64, peek: true}

// reserve is the request of Reserve and Wait.
func reserve(ahead time.Duration) request {
	d := max(0, int64(ahead))
	return request{queue: d, book: d, keep: true}
}

// queue is the request of a stack's Reserve and Wait: only leaky buckets may delay it.
func queue(maxDelay time.Duration) request {
	return request{queue: max(0, int64(maxDelay)), keep: true}
}

// ahead returns how long after now the cost may be spent under a plan.
func (q request) ahead(p *plan) int64 {
	if p.leaky != nil {
		return q.queue
	}
	return q.book
}

// moment is a reading of the clock and what it counts as for one key: a reading below
// the highest that the key has recorded counts as that. What a key may spend follows
// from now; what callers are told to wait is counted from the reading.
type moment struct{ reading, now int64 }

// free is the offer for a cost of 0.
func (m moment) free() offer { return offer{at: m.now, retry: m.reading} }

// offer is an answer to a cost that has not been spent yet. It has four fields because the
// compiler keeps a struct in registers up to that many, and this one is passed around
// in each decision.
type offer struct {
	at, part int64  // how the cost would be spent: see spending
	retry    int64  // the first reading at which it would be
	changes  uint32 // the account's
}

// denied reports whether the offer is a denial at a reading.
func (o offer) denied(reading int64) bool { return o.retry > reading }

// spending returns what is spent if the offer is accepted.
func (o offer) spending(cost int64) spending {
	return spending{at: o.at, part: o.part, cost: cost, changes: o.changes}
}

// offer says how a cost would be spent in a state, if it may be spent that long after
// now. In a leaky bucket that is how long the queue may delay it; when it enters the
// queue is up to the room there.
func (p *plan) offer(s state, m moment, cost, ahead int64) offer {
	o := offer{at: p.earliest(s, m.now, cost), retry: m.reading}
	if p.leaky != nil {
		if o.at > m.now {
			o.retry = o.at // when the queue has room
		}
		o.at, o.part = p.leaky.leaves(s, m.now)
	}
	if ahead = min(ahead, p.maxAhead); o.at > m.now && ahead < maxReading {
		o.retry = max(o.retry, o.at-ahead)
	}
	return o
}
