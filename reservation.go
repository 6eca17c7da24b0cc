package ratelimit

import (
	"context"
	"sync/atomic"
	"time"
)

// Reservation is a charge that can be settled once the real cost is known. It embeds
// the [Decision] that made it: if that is not Allowed, nothing was charged and there
// is nothing to settle. Its methods are safe for concurrent use, and may be called
// on a nil Reservation.
type Reservation struct {
	Decision
	settled atomic.Bool
	settle  func(actual int) // of another engine, else nil

	b     *bucket // that was charged, else nil
	clock Clock
	spending
}

// NewReservation returns a reservation for an engine of another kind. The first call of
// Settle or Cancel, if the decision was Allowed, calls settle with the actual cost,
// which is not negative. A nil settle has nothing to do.
func NewReservation(d Decision, settle func(actual int)) *Reservation {
	return &Reservation{Decision: d, settle: settle}
}

// Settle says what the work has really cost; below zero counts as zero. What is
// above the reserved cost is charged, into debt if need be. What is below it is given
// back, except what has been regained since, and what later bookings stand on:
//
//   - token bucket: at most cost − rate·(time since it was spent);
//   - leaky bucket: the same, and only while nothing has entered after it;
//   - either of them: nothing, if their figures have changed since it was spent;
//   - windows and log: only while the spending still counts.
//
// So the last booking, cancelled before its time, leaves no trace, and the limit's
// bound always holds. Only the first call of Settle or Cancel counts. Once the key has
// been forgotten, by Reset, by eviction, or as good as new after being idle (see
// [Options.IdleTTL]), there is nothing to settle.
func (r *Reservation) Settle(actual int) {
	if r == nil || !r.Allowed || r.settled.Swap(true) {
		return
	}
	actual = max(0, actual)
	if r.settle != nil {
		r.settle(actual)
		return
	}
	if r.b != nil {
		r.b.settleAt(r.clock, r.spending, int64(actual))
	}
}

// Cancel gives the whole cost back: it is Settle(0).
func (r *Reservation) Cancel() { r.Settle(0) }

func (b *bucket) settleAt(clock Clock, sp spending, actual int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.plan == nil {
		return // dropped, and what it had spent with it
	}
	now := max(reading(clock), b.last)
	b.last = now
	if b.ledger != nil && !b.plan.log {
		b.popDue(now) // and no more: of many cancels in a row only the last needs a fold
	}
	b.settle(now, sp, actual)
}

// Reserve is Take, but it may book ahead by up to maxDelay (below zero counts as zero):
// Delay says when the work may begin, and later callers queue behind it. On a leaky
// bucket Delay is the queue's, and one above maxDelay is denied. A denial's
// RetryAfter is for the same call: with this maxDelay. Nothing is booked so far
// ahead that it would take more than 100 years to regain. Settle the reservation when
// the real cost is known, or cancel it. It is never nil; errors are those of Take.
func (l *Keyed[K]) Reserve(_ context.Context, key K, cost int, maxDelay time.Duration) (*Reservation, error) {
	r := &Reservation{clock: l.clock}
	var err error
	r.b, r.spending, err = l.decide(key, cost, request{ahead: int64(max(0, maxDelay)), keep: true}, &r.Decision)
	if l.onDecision != nil {
		l.onDecision(Event[K]{key, cost, r.Decision, err})
	}
	return r, err
}
