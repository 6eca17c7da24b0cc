package ratelimit

import (
	"context"
	"math"
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

	b     *account // that was charged, else nil
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

// timeLeft returns how long the context lasts, or why it has ended.
func timeLeft(ctx context.Context) (time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		return forever, nil
	}
	if left := time.Until(deadline); left > 0 {
		return left, nil
	}
	return 0, context.DeadlineExceeded
}

// forever is the time left to a context without a deadline.
const forever = time.Duration(math.MaxInt64)

// sleep waits out the delay. If the context ends first, it undoes what was booked
// for the delay's end.
func sleep(ctx context.Context, delay time.Duration, undo func()) error {
	if delay == 0 {
		return nil
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		select {
		case <-timer.C: // at the same instant, which is in time
			return nil
		default:
		}
		undo()
		return ctx.Err()
	}
}
