package ratelimit

import (
	"context"
	"fmt"
	"time"
)

// Wait spends cost of the key's budget and returns nil when its time has come: at
// once if it fits, else after sleeping. On a leaky bucket it returns when the work's
// turn comes, so waiters leave evenly spaced.
//
// Waiters of one key are served in the order of their calls: each books its instant
// when it comes, and later callers, of Take and Allow too, queue behind it. Those
// behind a waiter who gives up keep their instants. A Wait that fails has spent nothing. It fails at once, with an error that
// wraps [context.DeadlineExceeded], if the context's deadline comes before its time; with
// the context's error when that is cancelled; with [ErrLimited] if a leaky bucket's
// queue is full; and with the errors of [Keyed.Take].
//
// The waiting itself is in real time, whatever the limiter's [Clock].
func (l *Keyed[K]) Wait(ctx context.Context, key K, cost int) error {
	if ctx == nil {
		ctx = context.Background()
	}
	var d Decision
	err := l.wait(ctx, key, cost, &d)
	if l.onDecision != nil {
		l.onDecision(Event[K]{key, cost, d, err})
	}
	return err
}

func (l *Keyed[K]) wait(ctx context.Context, key K, cost int, d *Decision) error {
	left, err := timeLeft(ctx)
	if err != nil {
		return err
	}
	b, sp, err := l.decide(key, cost, request{ahead: int64(left), keep: true}, d)
	switch {
	case err != nil:
		return err
	case !d.Allowed && (left == forever || d.Limit.Algorithm == AlgorithmLeakyBucket && cost > d.Remaining):
		return fmt.Errorf("%w: cost %d cannot be booked for another %v under %v", ErrLimited, cost, d.RetryAfter, d.Limit)
	case !d.Allowed:
		return tooLate(cost, d.RetryAfter, left, d.Limit)
	}
	return sleep(ctx, d.Delay, func() { b.settleAt(l.clock, sp, 0) })
}

func tooLate(cost int, late, left time.Duration, l Limit) error {
	return fmt.Errorf("%w: cost %d would have to wait for %v longer than the %v that are left, under %v",
		context.DeadlineExceeded, cost, late, left, l)
}
