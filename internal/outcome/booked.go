package outcome

import (
	"context"
	"errors"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/follow"
	"github.com/weir-go/ratelimit/internal/turns"
)

// Booker books a cost of one key in a store.
type Booker struct {
	// Book books the cost by up to a time ahead, as Reserve does, and returns how to settle that. The function is nil if there is
	// nothing to settle. A booking that moves may come before others, if these keep their instants.
	Book func(ctx context.Context, ahead time.Duration, moves bool) (ratelimit.Decision, func(actual int) error, error)

	// Check returns an error if the limit can never allow the cost now: see [Never].
	Check func() error
}

// Never returns an error if it is one of a cost that the limit can never allow, else nil.
func Never(err error) error {
	if errors.Is(err, ratelimit.ErrExceedsLimit) || errors.Is(err, ratelimit.ErrBlocked) {
		return err
	}
	return nil
}

// Booked is a store's Reserve: a reservation whose Wait follows its limit, if it is booked ahead.
func Booked(ctx context.Context, bookings *turns.Bookings[string], key string, cost int, maxDelay time.Duration, b Booker) (*ratelimit.Reservation, error) {
	d, settle, err := b.Book(ctx, maxDelay, false)
	if settle == nil || err != nil || !d.Allowed {
		return ratelimit.NewReservation(d, settle), err
	}
	if d.Delay <= 0 || cost <= 0 {
		return ratelimit.NewReservation(d, func(actual int) error {
			err := settle(actual)
			if actual < cost {
				bookings.Moved(key)
			}
			return err
		}), nil
	}
	answer := func(d ratelimit.Decision, settle func(int) error) turns.Answer[string] {
		return turns.Answer[string]{Allowed: d.Allowed, Delay: d.Delay, Retry: d.RetryAfter, Settle: settle}
	}
	booking := bookings.Add(key, cost, answer(d, settle), func(ahead time.Duration) (turns.Answer[string], error) {
		d, settle, err := b.Book(context.WithoutCancel(ctx), ahead, true)
		return answer(d, settle), err
	}, b.Check)
	res := ratelimit.NewReservation(d, booking.Settle)
	follow.Wait(res, booking.Wait)
	return res, nil
}
