package lease

import (
	"time"

	"github.com/weir-go/ratelimit"
)

// batch is a reservation of the remote limiter that is spent here in pieces. It is
// guarded by the lock of the holding that holds it, and does not change any more once
// none does.
type batch struct {
	res      *ratelimit.Reservation
	size     int       // units reserved
	left     int       // units not spent
	open     int       // units spent by reservations that may still put them back
	round    int       // reservations of an earlier round cannot put anything back
	until    time.Time // when what is left is given back
	degraded bool      // made by what stands in for the shared store
}

// spent is what the remote limiter is to charge for the batch.
func (b *batch) spent() int { return b.size - b.left }

// claim is what a reservation may put back: n open units of a batch, in a round.
type claim struct {
	batch *batch
	round int
	n     int
}
