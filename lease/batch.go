package lease

import (
	"time"

	"github.com/weir-go/ratelimit"
)

// batch is a reservation of the remote limiter that is spent here in pieces. It is guarded by the lock of its holding, until it is gone.
//
// It can be settled only once, so its rest is given back when no claim on it is open any more. Until then it is in the holding's batches as
// long as it can be spent, else in the holding's waiting.
type batch struct {
	res      *ratelimit.Reservation
	size     int              // units reserved
	left     int              // units not spent
	open     int              // units spent by reservations that may still put them back
	until    time.Duration    // when it is spent no more, by the timers
	degraded bool             // made by the stand-in for the shared store
	retired  bool             // spent no more: it waits for its claims to be closed
	direct   int              // parts whose rest is being reserved directly: the batch is not forfeited before
	late     bool             // it is forfeited as soon as that is so no more
	dated    bool             // the timers know when its claims are not waited for any longer
	latest   *ratelimit.Limit // the key's, as of when the batch was taken out; nil if it is not known
	gone     bool             // given back, forfeited or forgotten: nothing can be put back
}

// spent returns the units that the remote limiter is to charge for the batch.
func (b *batch) spent() int { return b.size - b.left }

// claims are the units that a reservation may put back into the batches that they came from.
type claims[K comparable] struct {
	h    *holding[K]
	list []claim
}

// claim is n open units of a batch.
type claim struct {
	batch *batch
	n     int
}

// release closes the claims, and puts back units that were not needed, as far as the batches are not
// gone. It returns how many could not be put back.
func (c *claims[K]) release(unneeded int) (lost int) {
	if c.h == nil {
		return unneeded
	}
	c.h.mu.Lock()
	defer c.h.mu.Unlock()
	lost = unneeded
	for i := len(c.list) - 1; i >= 0; i-- {
		n := min(unneeded, c.list[i].n)
		unneeded -= n
		if c.h.closeLocked(c.list[i], n) {
			lost -= n
		}
	}
	return lost
}
