package redislimit

import (
	"context"
	"fmt"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/ctxwait"
)

// Wait spends cost of the key's budget and returns nil when its time has come: at
// once if it fits, else after sleeping. It costs one round trip: waiters book their
// instants as they come, and later callers, in whatever process, queue behind them.
//
// A Wait that fails has spent nothing, unless its error says so. It fails at once, with an error that wraps
// [context.DeadlineExceeded], if the context's deadline comes before its time; with
// [ratelimit.ErrLimited] if a leaky bucket's queue is full, or if the key has 1,024 bookings ahead, a
// sliding log 2,000, since no more could be given back; and with the errors of
// Take. If the context ends while it sleeps, it gives back what it has booked, within
// [Options.Timeout], and returns the context's error; if giving back fails, the
// booking stays, and that error is joined to it. If the context ends while the booking
// is being made, Wait waits for the answer, for 50 ms at most, to give it back; if there is
// none, the error wraps [ratelimit.ErrUnanswered], and the booking may stay.
func (l *Limiter) Wait(ctx context.Context, key string, cost int) error {
	if ctx == nil {
		ctx = context.Background()
	}
	d, err := l.wait(ctx, key, cost)
	l.report(key, cost, d, err)
	return err
}

func (l *Limiter) wait(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	left, err := ctxwait.Left(ctx)
	if err != nil {
		return ratelimit.Decision{}, ended(err, false)
	}
	s := new(session)
	s.ticket.undone = true
	d, err := l.decide(ctx, s, key, cost, left, opKeep)
	switch {
	case err != nil:
		return d, err
	case !d.Allowed && (left == ctxwait.Forever || d.Limit.Algorithm == ratelimit.AlgorithmLeakyBucket && cost > d.Remaining):
		return d, fmt.Errorf("%w: cost %d cannot be booked for another %v under %v",
			ratelimit.ErrLimited, cost, d.RetryAfter, d.Limit)
	case !d.Allowed:
		return d, fmt.Errorf("%w: cost %d would have to wait for %v longer than the %v that are left, under %v",
			context.DeadlineExceeded, cost, d.RetryAfter, left, d.Limit)
	}
	return d, ratelimit.NewReservation(d, s.settlerFor(max(cost, 1))).Wait(ctx)
}
