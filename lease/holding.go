package lease

import (
	"slices"
	"sync"
	"time"
)

// holding is this process's part of a key's budget, with the key's other state.
//
// Invariant: its batches' unspent units, plus the units under open claims, plus the units being fetched, are
// at most Options.MaxBatch. Unspent units of a retired batch do not count, because nobody may spend them.
//
// Lock order: the table's lock, a holding's lock, the returns' lock. No user code runs under these locks.
type holding[K comparable] struct {
	key        K
	next, prev *holding[K] // in the order of eviction; guarded by the table's lock

	mu          sync.Mutex // guards the fields below
	dropped     bool       // whether it has left the table; then it never holds anything again
	used        bool       // whether a decision used it since eviction last looked
	batches     []*batch   // the spendable batches, oldest first; the first may be used up
	waiting     []*batch   // the batches closed for spending, with open claims
	left        int        // the units left in batches
	open        int        // the units of open claims, on batches and on waiting
	low         int        // the next batch is fetched when at most this many units are left; if negative, none is
	spent       int64      // units spent in all
	local       uint64     // decisions made here in all
	fetch       *fetch[K]  // the present fetch, or nil
	demand      int64      // the units wanted by callers waiting for another caller's fetch
	remoteState remoteState
	last        time.Duration // the latest used reading
	denial      *denial       // the last denial; nil if there is none
	sizer       sizer
	returns     *returns
}

// atLocked returns a reading's instant. The clock is read before the lock is taken, so readings
// may arrive out of order: a reading before the last one counts as the last one. If it is a second
// or more before the last one, the clock has stepped back, and time goes on from the new reading.
func (h *holding[K]) atLocked(reading time.Duration) time.Duration {
	if h.last-reading >= time.Second {
		h.last = reading
	}
	h.last = max(h.last, reading)
	return h.last
}

// spendLocked spends cost of the held units and reports true, or spends nothing and reports false.
func (h *holding[K]) spendLocked(cost int) bool {
	if cost > h.left {
		return false
	}
	if b := h.batches[0]; cost <= b.left {
		b.left -= cost
		h.left -= cost
		h.spent += int64(cost)
		h.used = true
	} else {
		h.claimLocked(cost, nil)
	}
	return true
}

// claimLocked spends cost of the held units. The holding must have enough. Unless c is nil, c may put the cost back.
func (h *holding[K]) claimLocked(cost int, c *claims[K]) {
	h.left -= cost
	h.spent += int64(cost)
	h.used = true
	if c != nil {
		c.h = h
	}
	for {
		b := h.batches[0]
		n := min(cost, b.left)
		b.left -= n
		if c != nil && n > 0 {
			b.open += n
			h.open += n
			c.list = append(c.list, claim{b, n})
		}
		if cost -= n; cost == 0 {
			return
		}
		h.spentUpLocked()
	}
}

// degradedLocked reports whether the held part of a cost would be spent from a degraded batch.
func (h *holding[K]) degradedLocked(cost int) bool {
	for _, b := range h.batches {
		if cost <= 0 {
			break
		}
		if b.degraded && b.left > 0 {
			return true
		}
		cost -= b.left
	}
	return false
}

// spentUpLocked removes the first batch after its last unit was spent. If no
// claim on the batch is open, the remote limiter's charge for it is final.
func (h *holding[K]) spentUpLocked() {
	b := h.batches[0]
	h.batches = slices.Delete(h.batches, 0, 1)
	if b.open > 0 {
		h.waiting = append(h.waiting, b)
	} else {
		b.gone = true
	}
}

// closeLocked closes a claim, and puts unneeded units back. It reports whether they could be put back.
func (h *holding[K]) closeLocked(c claim, unneeded int) bool {
	b := c.batch
	if b.gone {
		return false
	}
	b.open -= c.n
	h.open -= c.n
	b.left += unneeded
	h.spent -= int64(unneeded)
	if b.retired {
		h.returns.idle(unneeded)
		if b.open == 0 {
			h.waiting = slices.DeleteFunc(h.waiting, func(other *batch) bool { return other == b })
			h.returns.idle(-b.left)
			h.giveLocked(b)
		}
		return true
	}
	h.left += unneeded
	if i := slices.Index(h.waiting, b); i >= 0 && (b.left > 0 || b.open == 0) {
		h.waiting = slices.Delete(h.waiting, i, i+1)
		if b.left > 0 {
			h.batches = append(h.batches, b)
		} else {
			b.gone = true
		}
	}
	return true
}

// roomLocked returns how many units may be fetched without holding more than most.
func (h *holding[K]) roomLocked(most int) int { return most - h.open - h.left }

// addLocked adds a batch. The next batch is fetched when half this one is spent, unless
// one caller needs all. So nothing is fetched ahead of need for a key with little traffic.
func (h *holding[K]) addLocked(b *batch, need int) {
	for len(h.batches) > 0 && h.batches[0].left == 0 {
		h.spentUpLocked()
	}
	h.batches = append(h.batches, b)
	h.left += b.left
	if h.low = -1; b.size > max(1, need) {
		h.low = b.size / 2
	}
}

// retireLocked removes the due batches. Each rest is given back now, or when the last claim on its batch is closed.
func (h *holding[K]) retireLocked(due func(b *batch) bool) {
	h.batches = slices.DeleteFunc(h.batches, func(b *batch) bool {
		if !due(b) {
			return false
		}
		h.left -= b.left
		b.retired = true
		if b.left > 0 {
			h.sizer.forget()
		}
		if b.open > 0 {
			h.returns.idle(b.left)
			h.waiting = append(h.waiting, b)
		} else {
			h.giveLocked(b)
		}
		return true
	})
	for _, b := range h.waiting {
		b.retired = b.retired || due(b)
	}
	if len(h.batches) == 0 {
		h.batches = nil
	}
}

// forfeitLocked stops waiting for claims on due batches: units put back later are lost. If
// unfinished direct calls have spent from a batch, the batch is kept until they have ended.
func (h *holding[K]) forfeitLocked(due func(b *batch) bool) {
	h.waiting = slices.DeleteFunc(h.waiting, func(b *batch) bool {
		if !due(b) {
			return false
		}
		if b.direct > 0 {
			b.late = true
			return false
		}
		h.open -= b.open
		h.returns.idle(-b.left) // a batch has no rest before it is retired
		h.returns.forfeit()
		h.giveLocked(b)
		return true
	})
}

// giveLocked gives back the rest of a removed batch.
func (h *holding[K]) giveLocked(b *batch) {
	b.gone = true
	if b.left > 0 {
		b.latest = h.remoteState.limit
		h.returns.give(b)
	}
}
