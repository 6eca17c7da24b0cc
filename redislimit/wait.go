package redislimit

import (
	"context"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/outcome"
	"github.com/weir-go/ratelimit/internal/turns"
	"github.com/weir-go/ratelimit/internal/wait"
)

// Wait spends cost of the key's budget and returns nil when its time has come. It books its time in one round trip, and sleeps.
// Later callers, in any process, queue behind it. When a caller leaves, this process's callers that wait behind it for the same
// cost of the key move up, and the next caller takes the vacant place at the end, without a round trip. Callers of other
// processes keep their times. It fails like [ratelimit.Keyed.Wait], with ErrLimited also if the key has too many bookings, or
// with the errors of Take.
//
// A Wait that fails has spent nothing, unless its error says so. If the context ends, Wait gives back its booking within
// [Options.Timeout]; if that fails, the booking stays, and the error says so. Before Redis has answered, that takes up to 50
// ms; if there is no reply by then, the error wraps [ratelimit.ErrUnanswered].
func (l *Limiter) Wait(ctx context.Context, key string, cost int) error {
	ctx = wait.OrBackground(ctx)
	d, err := l.wait(ctx, key, cost)
	l.report(key, cost, d, err)
	return err
}

func (l *Limiter) wait(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	left, err := wait.Left(ctx)
	if err != nil {
		return ratelimit.Decision{}, ended(err, false)
	}
	return l.lines.Wait(ctx, turns.Key{Budget: key, Cost: cost}, left, func() (*ratelimit.Reservation, error) {
		r := new(request)
		r.call.undone = true
		d, err := l.decide(ctx, r, key, cost, left, opKeep)
		if err == nil && !d.Allowed {
			err = outcome.Unbooked(d, cost, left)
		}
		if err != nil {
			return ratelimit.NewReservation(d, nil), err
		}
		return ratelimit.NewReservation(d, r.settlerFor(max(cost, 1))), nil
	})
}
