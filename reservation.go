package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit/internal/ctxwait"
)

// Reservation is a charge that can be settled once the real cost is known. It embeds
// the [Decision] that made it: if that is not Allowed, nothing was charged and there
// is nothing to settle. Its methods are safe for concurrent use, and may be called
// on a nil Reservation.
type Reservation struct {
	Decision
	settled atomic.Bool
	settle  func(actual int) error // of another engine or of a stack, else nil
	made    time.Time              // by the monotonic clock, if there is a delay

	keyed interface{ settleKey(actual int64) error } // of a Keyed, else nil
}

// keyedReservation is a reservation of a Keyed. It has the key, which may have left the table before the
// reservation is settled.
type keyedReservation[K comparable] struct {
	Reservation
	l   *Keyed[K]
	key K
	b   *account // that was charged, nil if none was
	sp  spending
}

func (x *keyedReservation[K]) settleKey(actual int64) error {
	switch {
	case x.b != nil:
		if late := x.b.settleAt(x.l.clock, x.sp, actual); late > 0 {
			return unlessFull(x.l.charge(x.key, late))
		}
	case x.sp.Cost == 0:
		return x.l.charge(x.key, actual)
	}
	return nil
}

// unlessFull leaves out that there was no room for a key which had been charged, and is charged more. Such a
// reservation settles what it can.
func unlessFull(err error) error {
	if errors.Is(err, ErrTableFull) {
		return nil
	}
	return err
}

// NewReservation returns a reservation for an engine of another kind, as of now: Delay
// counts from this moment. The first call of Settle or Cancel, if the decision was
// Allowed, calls settle with the actual cost, which is not negative, and returns its
// error. A nil settle has nothing to do.
func NewReservation(d Decision, settle func(actual int) error) *Reservation {
	r := &Reservation{Decision: d, settle: settle}
	r.booked()
	return r
}

// booked takes note of the time if there is a delay to wait out.
func (r *Reservation) booked() {
	if r.Delay > 0 {
		r.made = time.Now()
	}
}

// Settle says what the work has really cost; below zero counts as zero. What is
// above the reserved cost is charged, into debt if need be. What is below it is given
// back, except what has been regained since, and what later bookings depend on:
//
//   - token bucket: at most cost − rate·(time since it was spent);
//   - leaky bucket: the same, and only while nothing has entered after it;
//   - either of them: nothing, if their figures have changed since it was spent;
//   - windows and log: only while the spending still counts;
//   - sliding counter: nothing that the window before counts, if its figures have changed.
//
// A grant ([Keyed.Adjust] below zero) does not say whose spending it gives back. A booking
// that it has given back, and whose time has not come, gives back nothing a second time. Of
// what was spent already, Settle may give back again what the grant gave back, and so what
// others have spent since. Settle first, or grant less.
//
// So the last booking, cancelled before its time, leaves no trace, and the limit's
// bound always holds. Only the first call of Settle or Cancel counts.
//
// If the key has left the table meanwhile because it was fresh, what is above the reserved cost is
// charged as [Keyed.Adjust] does, unless the table has no room for it. After [Keyed.Reset], and after
// the key was evicted from a full table, there is nothing to settle.
//
// To give back what is booked takes time linear in the number of bookings behind it, and in a
// sliding log in the number of spendings before or behind it, whichever are fewer.
//
// In memory the error is nil, except for a reservation of cost 0, which can fail as
// [Keyed.Adjust] can, and for one of a key that has left the table, if LimitFor returns an invalid limit. A remote engine returns one if it could not settle: then what was
// reserved stays charged, and a second call does not try again.
func (r *Reservation) Settle(actual int) error {
	if r == nil || !r.Allowed || r.settled.Swap(true) {
		return nil
	}
	actual = max(0, actual)
	if r.settle != nil {
		return r.settle(actual)
	}
	if r.keyed != nil {
		return r.keyed.settleKey(int64(actual))
	}
	return nil
}

// Cancel gives the whole cost back: it is Settle(0).
func (r *Reservation) Cancel() error { return r.Settle(0) }

// Wait sleeps until Delay is over, in real time and counted from when the reservation
// was made. If the context's deadline comes before that, it fails at once; if the
// context ends in the meantime, it fails then. In both cases it cancels the
// reservation, and returns the context's error, joined with that of Cancel. It returns
// [ErrLimited] if the reservation is not Allowed, and nil if it is nil or settled.
func (r *Reservation) Wait(ctx context.Context) error {
	switch {
	case r == nil || r.settled.Load():
		return nil
	case !r.Allowed:
		return fmt.Errorf("%w: the reservation was denied, under %v", ErrLimited, r.Limit)
	}
	ctx = ctxwait.OrBackground(ctx)
	left, err := ctxwait.Left(ctx)
	if err != nil {
		return also(err, r.Cancel())
	}
	delay := r.delayLeft()
	if delay > left {
		return also(fmt.Errorf("%w: the delay ends %v after the deadline, under %v",
			context.DeadlineExceeded, delay-left, r.Limit), r.Cancel())
	}
	if err = ctxwait.Sleep(ctx, delay); err != nil {
		return also(err, r.Cancel())
	}
	return nil
}

// delayLeft returns what is left of the delay.
func (r *Reservation) delayLeft() time.Duration {
	if r.Delay <= 0 {
		return 0
	}
	return max(0, r.Delay-time.Since(r.made))
}

// also returns an error with a second one joined to it, if there is a second one.
func also(err, second error) error {
	if second == nil {
		return err
	}
	return errors.Join(err, second)
}
