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
	// Book books the cost at most ahead from now, as Reserve does. If instead is a booking's Ref, the same
	// decision replaces that booking, provided that the new instant is in time. The new booking may come
	// before others if they keep their instants. A booking from another life of the key no longer exists.
	Book func(ctx context.Context, ahead time.Duration, instead any) (Made, error)

	// Check returns an error if the limit can never allow the cost now: see [Never].
	Check func() error
}

// Made is a Booker's decision.
type Made struct {
	ratelimit.Decision
	Settle func(actual int) error // nil if there is nothing to settle

	Confirm func() (bool, error) // confirms a tentative booking: see [turns.Answer]
	Life    uint64               // the key's life: see [turns.Answer]
	At      int64                // the cost's instant by the store's clock
	Ref     any                  // the store's reference, for replacing this booking by another
}

func (m *Made) answer(err error) turns.Answer[string] {
	return turns.Answer[string]{Allowed: m.Allowed, Delay: m.Delay, Retry: m.RetryAfter, Settle: m.Settle, Life: m.Life, Ref: m.Ref,
		Unsure: errors.Is(err, ratelimit.ErrUnanswered)}
}

// Never returns the error of a cost that the limit can never allow. For any other error it returns nil.
func Never(err error) error {
	if errors.Is(err, ratelimit.ErrExceedsLimit) || errors.Is(err, ratelimit.ErrBlocked) {
		return err
	}
	return nil
}

// Booked is a store's Reserve: a reservation whose Wait follows its limit, if it is booked ahead.
func Booked(ctx context.Context, bookings *turns.Bookings[string], key string, cost int, maxDelay time.Duration, b Booker) (*ratelimit.Reservation, error) {
	before := bookings.Made()
	made, err := b.Book(ctx, maxDelay, nil)
	bookings.Found(key, made.Life, before)
	if made.Settle == nil || err != nil || !made.Allowed {
		return ratelimit.NewReservation(made.Decision, made.Settle), err
	}
	if made.Delay <= 0 || cost <= 0 {
		return ratelimit.NewReservation(made.Decision, func(actual int) error {
			err := made.Settle(actual)
			if actual < cost {
				bookings.Moved(key)
			}
			return err
		}), nil
	}
	booking := bookings.Add(key, cost, made.answer(nil), func(ahead time.Duration, instead any) (turns.Answer[string], error) {
		made, err := b.Book(context.WithoutCancel(ctx), ahead, instead)
		return made.answer(err), err
	}, b.Check)
	res := ratelimit.NewReservation(made.Decision, booking.Settle)
	follow.Wait(res, booking.Wait)
	return res, nil
}
