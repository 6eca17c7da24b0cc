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
	if p.Delays() {
		return q.queue
	}
	return q.book
}
