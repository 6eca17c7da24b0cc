package ratelimit

import (
	"context"
	"fmt"
	"math"
	"time"
)

// Wait spends cost of the key's budget and returns nil when its time has come: at
// once if it fits, else after sleeping. On a leaky bucket it returns when the work's
// turn comes, so waiters leave evenly spaced.
//
// Waiters of one key are served in the order of their calls: each books its instant
// when it comes, and later callers, of Take and Allow too, queue behind it. A Wait
// that fails has spent nothing. It fails at once, with an error that
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
	if err := ctx.Err(); err != nil {
		return err
	}
	ahead := time.Duration(math.MaxInt64)
	if deadline, ok := ctx.Deadline(); ok {
		if ahead = time.Until(deadline); ahead < 0 {
			return context.DeadlineExceeded
		}
	}
	b, at, err := l.decide(key, cost, request{ahead: int64(ahead), keep: true}, d)
	if err != nil {
		return err
	}
	if !d.Allowed {
		return l.tooLate(key, cost, ahead, d)
	}
	if d.Delay == 0 {
		return nil
	}
	return sleep(ctx, d.Delay, func() { b.settleAt(l.clock, at, int64(cost), 0) })
}

// tooLate says why a cost could not be booked.
func (l *Keyed[K]) tooLate(key K, cost int, ahead time.Duration, d *Decision) error {
	if ahead == math.MaxInt64 || d.Limit.Algorithm == AlgorithmLeakyBucket && cost > d.Remaining {
		return fmt.Errorf("%w: cost %d does not fit for another %v under %v", ErrLimited, cost, d.RetryAfter, d.Limit)
	}
	return fmt.Errorf("%w: cost %d would have to wait %v longer than the %v that are left, under %v",
		context.DeadlineExceeded, cost, d.RetryAfter, ahead, d.Limit)
}

// sleep waits out the delay, or undoes what was booked for its end.
func sleep(ctx context.Context, delay time.Duration, undo func()) error {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		undo()
		return ctx.Err()
	}
}
