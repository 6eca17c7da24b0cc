package lease

import (
	"time"

	"github.com/weir-go/ratelimit"
)

// batch is a reservation of the remote limiter. This process spends it
// in pieces. The lock of its holding guards it until the batch is gone.
//
// A batch can be settled only once, so its rest is given back only when no claim on it is open. Until
// then the batch is in the holding's batches while it can be spent, and then in the holding's waiting.
type batch struct {
	res      *ratelimit.Reservation
	size     int              // units reserved
	left     int              // units not spent
	open     int              // units spent by reservations, which may still put them back
	until    time.Duration    // when the batch is retired, by the timers
	degraded bool             // whether the stand-in for the shared store made the reservation
	retired  bool             // whether the batch is no longer spent and waits for its claims to be closed
	direct   int              // parts whose rest is being reserved directly; until then the batch is not forfeited
	late     bool             // whether the batch is forfeited as soon as direct is 0
	dated    bool             // whether the timers have the instant when the batch is forfeited
	latest   *ratelimit.Limit // the key's limit when the batch was taken out; nil if not known
	gone     bool             // whether the batch was given back, forfeited or forgotten; then nothing can be put back
}

// spent counts the units to charge the remote limiter with.
func (b *batch) spent() int { return b.size - b.left }

// claims are a reservation's units, as far as it may put them back into their batches.
type claims[K comparable] struct {
	h    *holding[K]
	list []claim
}

// claim is n open units of a batch.
type claim struct {
	batch *batch
	n     int
}

// release closes the claims, and puts unneeded units back into
// existing batches. It returns how many units could not be put back.
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
